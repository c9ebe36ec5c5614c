"""A slice of a Mooncake trace against a real engine: lengths, prefix hits and lateness are what the plan says."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from pathlib import Path

import pytest
from engine_harness import Ended, profile_real

from profiler.workloads.arrivals import planned_arrivals
from profiler.workloads.prefixes import PromptBlocks
from profiler.workloads.synthesis import fitted

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "workloads"
LOG = DATA / "mooncake_fast25_synthetic_trace.jsonl"
CONTEXT, ENGINE_BLOCK = 2048, 32
# Blocks of 512 become blocks of 32, as large as the engine's. A beat slow enough for each prefill to end before the next.
OPTIONS = "length_scale=0.0625,rate=5,cv=0"

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
    pytest.mark.skipif(not LOG.exists(), reason="../shared/data/workloads is absent"),
]


def slice_of(log: Path, path: Path) -> Path:
    """The requests of eight conversations of four to twelve turns each: they share much, and little with each other."""
    lines = log.read_text().splitlines()
    roots = [json.loads(line)["hash_ids"][0] for line in lines]
    chosen = [root for root, turns in Counter(roots).items() if 4 <= turns <= 12][:8]
    path.write_text("\n".join(line for line, root in zip(lines, roots, strict=True) if root in chosen) + "\n")
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return slice_of(LOG, tmp_path_factory.mktemp("log") / "slice.jsonl")


@pytest.fixture(scope="module")
def run(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    ended = profile_real(
        tmp_path_factory.mktemp("replay") / "run", "--workload", f"replay:path={log},{OPTIONS}", "--no-trace",
        "--engine-arg", f"block-size={ENGINE_BLOCK}", "--engine-arg", f"max-model-len={CONTEXT}",
    )  # fmt: skip
    assert ended.code == 0, ended.err
    return ended


def test_a_replay_is_what_its_log_says(run: Ended, log: Path) -> None:
    arrivals = fitted(planned_arrivals(f"replay:path={log},{OPTIONS}", 0), CONTEXT)
    n = arrivals.frame.height
    assert n == 47 and any("prompts are cut" in note for note in run.manifest["workload"]["notes"])  # type: ignore[index]
    lines = [json.loads(line) for line in (run.run_dir / "requests.jsonl").read_text().splitlines()]
    got = sorted((line for line in lines if line["pass"] == "control"), key=lambda line: int(line["index"]))
    assert [line["status"] for line in got] == ["ok"] * n

    prompts = arrivals.frame["input_tokens"].to_list()
    assert [line["prompt_tokens"] for line in got] == prompts
    assert [line["output_tokens"] for line in got] == arrivals.frame["output_tokens"].to_list()
    assert max(map(sum, zip(prompts, (line["output_tokens"] for line in got), strict=True))) == CONTEXT

    leading = PromptBlocks.of(arrivals.frame, ENGINE_BLOCK).seen_before().tolist()
    hits = [
        min(n * ENGINE_BLOCK, (tokens - 1) // ENGINE_BLOCK * ENGINE_BLOCK)
        for n, tokens in zip(leading, prompts, strict=True)
    ]
    assert [line["cached_tokens"] for line in got] == hits
    assert sum(hits) > 0.7 * sum(prompts)

    offsets = arrivals.frame["arrival_ns"].to_list()
    assert offsets == [index * 200_000_000 for index in range(n)]
    control = next(item for item in run.manifest["passes"] if item["name"] == "control")  # type: ignore[union-attr, attr-defined]
    assert [line["planned_ns"] - control["start_ns"] for line in got] == offsets
    late = sorted(line["late_ns"] for line in got)
    assert (control["late_p50_ns"], control["late_p99_ns"], control["late_max_ns"]) == (late[23], late[46], late[46])
