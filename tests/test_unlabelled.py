"""Steps without labels: real recordings with their labels taken out, against the labelled answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from trace_builder import US, TraceBuilder

from traces import labels
from traces.ingest import IngestOptions, ingest_once

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
GPU, VLLM, SGLANG = "gpu-traces", "engine-traces/vllm_cpu", "engine-traces/sglang_cpu"
# file, with Python frames: (source, steps, share of device time in the right step); the same without frames.
# vLLM's steps of no token (three in one recording, five in another) launch nothing and cannot be seen.
# SGLang on the CPU: what is launched between sampling and the next label belongs to the step before by its label, and
# looks like preparation of the next one without.
CASES = [
    (f"{GPU}/b200_vllm_eager_prefill/eager_trace.json.gz", ("python", 1, 0.999), None),  # ends before sampling
    (f"{GPU}/b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz",
     ("python", 1, 0.999), ("graph", 1, 0.999)),
    (f"{GPU}/h100_transformers_qwen1.5_0.5b/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", ("graph", 1, 0.999), ("graph", 1, 0.999)),
    (f"{GPU}/sglang_decode/sglang_Qwen3-8B_decode.json.gz", ("python", 1, 0.998), ("graph", 1, 0.995)),
    (f"{GPU}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz", ("python", 1, 0.999), ("graph", 1, 0.999)),
    (f"{GPU}/vllm_decode_full/graph_execution.json.gz", ("python", 1, 0.999), ("graph", 1, 0.999)),
    (f"{GPU}/vllm_prefilldecode_piecewise/graph_execution.json.gz", ("python", 1, 0.999), ("graph", 1, 0.999)),
    (f"{VLLM}/server_agent3turns.pt.trace.json.gz", None, ("graph", 48, 0.99)),
    (f"{VLLM}/tiny_detailed_shapes.pt.trace.json.gz", None, ("graph", 89, 0.99)),
    (f"{VLLM}/tiny_simple_stacks.pt.trace.json.gz", ("python", 18, 0.99), ("graph", 17, 0.99)),
    (f"{SGLANG}/1795965119.9996974-TP-0.trace.json.gz", ("python", 17, 0.98), ("graph", 17, 0.94)),
    (f"{SGLANG}/nsteps-TP-0.trace.json.gz", None, ("graph", 5, 0.85)),
]  # fmt: skip
STRIPPED = [
    pytest.param(name, expected, keeps_frames, id=f"{Path(name).parent.name}-{Path(name).name[:10]}-{'frames' if keeps_frames else 'bare'}")
    for name, with_frames, without in CASES
    for expected, keeps_frames in ((with_frames, True), (without, False))
    if expected is not None or not keeps_frames
]  # fmt: skip


def stripped(name: str, folder: Path, *, keep_frames: bool) -> Path:
    """The recording without step labels, and without Python frames unless they are kept."""
    document = json.loads(gzip.decompress((DATA / name).read_bytes()))
    document["traceEvents"] = [
        event for event in document["traceEvents"]
        if not ("user_annotation" in str(event.get("cat")) and labels.parse(str(event.get("name"))) is not None)
        and (keep_frames or event.get("cat") != "python_function")
    ]  # fmt: skip
    target = folder / "stripped.json"
    target.write_text(json.dumps(document))
    return target


def agreement(labelled: Path, other: Path) -> float:
    """Share of the labelled steps' device time that lies in the counterpart of its step; each step has one at most."""
    with duckdb.connect() as con:
        con.execute(f"ATTACH '{labelled}' AS a (READ_ONLY); ATTACH '{other}' AS b (READ_ONLY)")
        row = con.execute("""
            WITH pair AS (
                SELECT x.step_id AS one, y.step_id AS two, sum(x.busy_ns) AS ns
                FROM a.kernels AS x JOIN b.kernels AS y USING (kernel_id)
                WHERE x.valid AND x.step_id IS NOT NULL
                GROUP BY ALL
            ),
            ranked AS (
                SELECT
                    *, row_number() OVER (PARTITION BY one ORDER BY ns DESC) AS r1,
                    row_number() OVER (PARTITION BY two ORDER BY ns DESC) AS r2
                FROM pair
                WHERE two IS NOT NULL
            )
            SELECT (SELECT sum(ns) FROM ranked WHERE r1 = 1 AND r2 = 1)::DOUBLE / (SELECT sum(ns) FROM pair)
        """).fetchone()
    assert row is not None
    return row[0] or 0.0


@pytest.mark.parametrize(("name", "expected", "keep_frames"), STRIPPED)
def test_steps_without_labels_are_those_of_the_labels(
    name: str, expected: tuple[str, int, float] | None, keep_frames: bool, sample_database: Callable[..., Path], tmp_path: Path
) -> None:  # fmt: skip
    labelled = sample_database(name)
    target = tmp_path / "run.duckdb"
    ingest_once([str(stripped(name, tmp_path, keep_frames=keep_frames))], target, IngestOptions())
    with duckdb.connect(str(target), read_only=True) as con:
        found = con.execute("SELECT source, count(*) FROM steps GROUP BY source").fetchall()
        kernels = con.execute("SELECT count(*) FROM kernels WHERE step_id IS NOT NULL").fetchone()
    if expected is None:  # nothing to go by: no step is made up
        assert (found, kernels) == ([], (0,))
        return
    source, steps, share = expected
    assert found == [(source, steps)]
    assert agreement(labelled, target) >= share


def test_the_period_of_the_kernel_sequence(tmp_path: Path) -> None:
    """Seven steps of an engine whose kernels have names that say nothing: one in front, eight layers of two."""
    trace = TraceBuilder(rank=0)
    at, corr = 1_000 * US, 1
    for _ in range(7):
        for name in ["front", *["one", "two"] * 8]:
            trace.launch(at, corr).kernel(at + 50 * US, 4 * US, corr, name=name)
            at, corr = at + 5 * US, corr + 1
    target = tmp_path / "run.duckdb"
    ingest_once([str(trace.write(tmp_path / "trace.json"))], target, IngestOptions())
    with duckdb.connect(str(target), read_only=True) as con:
        assert (
            con.execute("SELECT source, kind, n_kernels FROM steps ORDER BY seq").fetchall()
            == [("period", "other", 17)] * 7
        )
        first = con.execute("SELECT DISTINCT arg_min(name, start_ns) FROM kernels GROUP BY step_id").fetchall()
    assert first == [("front",)]
