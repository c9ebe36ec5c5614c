"""A real vLLM on the CPU: the recordings agree with each other, and its failures are survived."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from engine_harness import COMMAND, Ended, finish, left_behind, profile_real, start, wait_for

from profiler.cpu import has_bf16

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vLLM in this environment"),
]

# After a request has ended vLLM runs an empty iteration, execute_0_…, to tell its workers: no step of the ledger.
STEP_LABEL = re.compile(r"execute_[1-9].*context_.*generation_")
PASSES = ("warmup", "control", "profiled")
ENGINE_REQUEST = re.compile(r"(?:chatcmpl|cmpl)-(.+?)(?:-\d+)?-[0-9a-f]{8}")


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ledger(run_dir: Path) -> list[dict[str, Any]]:
    (path,) = (run_dir / "ledger").glob("*.jsonl")
    return json_lines(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    scratch = Path(tempfile.mkdtemp(prefix="t-"))  # short: the engine's sockets go below it
    run_dir = tmp_path_factory.mktemp("engine") / "run"
    ended = profile_real(
        run_dir, "--workload", "agent:sessions=3,turns=3,output=8", "--window", "all", "--engine-env", "VLLM_LOGGING_PREFIX=given:",
        env={"TMPDIR": str(scratch), "VLLM_API_KEY": "s3cret", "HF_TOKEN": "t0ken", "VLLM_RINGBUFFER_WARNING_INTERVAL": "61"},
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert left_behind(run_dir) == []
    assert list(scratch.iterdir()) == [], "nothing of the engine's is left in the temporary folder"
    scratch.rmdir()
    return ended


def test_a_run_is_complete_and_marked_by_the_hook(run: Ended) -> None:
    manifest = run.manifest
    assert (manifest["status"], manifest["hook_errors"], manifest["warnings"]) == ("complete", [], [])
    assert manifest["capture"]["marked_by"] == "hook"
    assert manifest["engine_version"] and manifest["dtype"] == ("bfloat16" if has_bf16() else "float32")
    passes = manifest["passes"]
    assert tuple(item["name"] for item in passes) == PASSES
    assert [item["first_cached_tokens"] for item in passes] == [0, 0, 0], "passes do not feed each other"
    assert [item["failed"] for item in passes] == [0, 0, 0]


def test_ledger_steps_are_the_labelled_steps_of_the_window(run: Ended) -> None:
    window = run.manifest["capture"]
    steps = [
        record
        for record in ledger(run.run_dir)
        if record["kind"] == "step" and window["start_ns"] <= record["t0"] <= window["end_ns"]
    ]
    (trace,) = (run.run_dir / "trace").glob("*.pt.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    labels = [
        event["name"] for event in events if event.get("cat") == "user_annotation" and STEP_LABEL.match(event["name"])
    ]
    assert len(steps) == window["steps"] > 20
    assert len(labels) == len(steps)
    assert not list((run.run_dir / "trace").glob("*profiler_out*")), "no summary table was built"


def test_requests_agree_between_client_and_ledger(run: Ended) -> None:
    records = ledger(run.run_dir)
    prompts = {record["id"]: record["prompt"] for record in records if record["kind"] == "request"}
    cached: dict[str, int] = {}
    outputs: Counter[str] = Counter()
    for record in records:
        if record["kind"] == "step":
            rows = zip(record["ids"], record["computed"], record["first"], strict=True)
            cached |= {request: computed for request, computed, first in rows if first}
        elif record["kind"] == "result":
            outputs.update(dict(zip(record["ids"], record["acc"], strict=True)))
    by_client: dict[str, tuple[int, int, int]] = {}
    for request, prompt in prompts.items():
        matched = ENGINE_REQUEST.fullmatch(request)
        assert matched is not None, request
        by_client[matched.group(1)] = (prompt, cached[request], outputs[request])
    requests = json_lines(run.run_dir / "requests.jsonl")
    assert len(requests) == 2 + 9 + 9
    assert by_client == {
        item["client_request_id"]: (item["prompt_tokens"], item["cached_tokens"], item["output_tokens"])
        for item in requests
    }
    assert any(item["cached_tokens"] > 0 for item in requests), "later turns find their prefix"


def test_every_step_has_a_result_and_sums_to_the_prompts_and_outputs(run: Ended) -> None:
    records = ledger(run.run_dir)
    steps = {record["seq"]: record for record in records if record["kind"] == "step"}
    results = {record["seq"]: record for record in records if record["kind"] == "result"}
    assert sorted(steps) == sorted(results) == list(range(len(steps)))
    computed: dict[str, int] = defaultdict(int)
    for step in steps.values():
        assert step["t0"] <= step["t1"] <= results[step["seq"]]["r0"]
        assert step["total"] == sum(step["new"])
        for request, new, before, first in zip(step["ids"], step["new"], step["computed"], step["first"], strict=True):
            assert first or computed[request] == before, "each step goes on where the last one ended"
            computed[request] = before + new
    finished = {request for result in results.values() for request in result["done"]}
    assert finished == {record["id"] for record in records if record["kind"] == "request"}


def test_header_says_what_the_engine_is(run: Ended) -> None:
    header = ledger(run.run_dir)[0]
    assert header["kind"] == "header" and header["engine"] == "vllm"
    assert header["block_size"] == 128 and header["num_blocks"] > 0 and header["enable_prefix_caching"] is True
    assert header["model"]["hidden_size"] == 128 and header["model"]["num_hidden_layers"] == 2


def test_metrics_were_scraped_around_each_pass(run: Ended) -> None:
    names = sorted(path.stem for path in (run.run_dir / "metrics").iterdir())
    assert names == sorted(f"{name}-{side}" for name in PASSES for side in ("before", "after"))
    text = (run.run_dir / "metrics" / "control-after.prom").read_text()
    assert text.startswith("# stepscope scraped_ns=") and "vllm:prefix_cache_queries" in text


def test_sensors_were_sampled_over_all_passes(run: Ended) -> None:
    path = run.run_dir / "telemetry" / "telemetry.jsonl"
    header, *records = json_lines(path)
    samples = [item for item in records if "kind" not in item]
    passes = run.manifest["passes"]
    assert samples[0]["ts_ns"] < passes[0]["start_ns"] and samples[-1]["ts_ns"] > passes[-1]["end_ns"]
    sql = (
        "SELECT count(*) AS n, count(cpu_util) AS util, max(cpu_util) AS most, count(power_w) AS power, "
        "count(energy_j) AS energy, min(device) AS device, min(rank) AS rank FROM telemetry"
    )
    asked = subprocess.run(
        [*COMMAND, "query", str(run.run_dir), "--json", sql], capture_output=True, text=True, check=True
    )
    (row,) = json.loads(asked.stdout)
    known = sum(len(item) > 2 for item in samples)  # the first one has no share yet
    assert row["n"] == known > 50 and row["util"] >= row["n"] * 0.8 and 0.2 < row["most"] <= 1
    assert (row["device"], row["rank"]) == (0, 0)
    if header["source"] == "rapl":
        assert row["power"] == row["n"] - 1 and row["energy"] == row["n"]
    else:
        assert (row["power"], row["energy"]) == (0, 0), "not known is not 0"
    assert run.manifest["telemetry"]["source"] == header["source"]


def test_the_engine_does_not_see_our_packages(run: Ended) -> None:
    """The engine runs in the run directory, so that folders of the caller's cannot shadow its modules."""
    env = run.manifest["engine_env"]
    assert env["PYTHONPATH"].split(os.pathsep)[0].endswith("plugin")
    assert sys.prefix in run.manifest["engine_python"]


def test_passes_say_what_others_took_of_the_processors(run: Ended) -> None:
    assert all(0 <= item["others_cpu"] <= 1 for item in run.manifest["passes"])


def test_settings_of_the_engine_s_environment_are_recorded_and_secrets_are_not(run: Ended) -> None:
    """A key for the user's own server neither locks ours nor is it written down."""
    env = run.manifest["engine_env"]
    assert (env["VLLM_RINGBUFFER_WARNING_INTERVAL"], env["VLLM_LOGGING_PREFIX"]) == ("61", "given:")
    assert "given:" in (run.run_dir / "engine.log").read_text(), "the engine got it"
    written = [path for path in run.run_dir.rglob("*") if path.is_file()]
    assert {path.name for path in written} >= {"manifest.json", "run.duckdb", "engine.log"}
    for secret in (b"s3cret", b"t0ken"):
        assert not [path for path in written if secret in path.read_bytes()]


class TestHookThatFails:  # an engine of its own, in a worker of its own
    def test_preemption_and_a_failing_profile_hook_are_recorded(self, tmp_path: Path) -> None:
        """A cache of 40 blocks for eight long requests; and the hook fails at the profiler's marks."""
        arguments = ("max-model-len=1024", "block-size=32", "num-gpu-blocks-override=40", "max-num-batched-tokens=256")
        flags = [part for argument in arguments for part in ("--engine-arg", argument)]
        ended = profile_real(
            tmp_path / "run", "--workload", "batch:n=8,prompt=200,output=150", "--no-control", "--window", "steps=20", *flags,
            env={"STEPSCOPE_HOOK_FAIL": "profile"},
        )  # fmt: skip
        assert ended.code == 0, ended.err
        assert ended.manifest["status"] == "complete"
        assert all("RuntimeError: made to fail at profile" in text for text in ended.manifest["hook_errors"])
        assert ended.manifest["hook_errors"] and ended.manifest["capture"]["marked_by"] == "client"
        assert "step ledger: profile: RuntimeError" in ended.err
        records = ledger(ended.run_dir)
        preempted = Counter(record["id"] for record in records if record.get("event") == "preempted")
        resumed: Counter[str] = Counter()
        for record in records:
            if record["kind"] == "step":
                resumed.update(i for i, flag in zip(record["ids"], record["resumed"], strict=True) if flag)
        assert preempted and resumed == preempted
        assert any(record.get("mark") == "kv_evicted" for record in records)
        assert left_behind(ended.run_dir) == []


class TestKilledCore:  # an engine of its own, in a worker of its own
    def test_an_engine_core_killed_while_recording(self, tmp_path: Path) -> None:
        run_dir = tmp_path / "run"
        arguments = ["profile", "--model", "tiny", "--out", str(run_dir), "--no-control", "--window", "all",
                     "--workload", "batch:n=4,prompt=64,output=2000"]  # fmt: skip
        process = start(arguments)
        marked = b'"mark":"profile_start_end"'
        wait_for(lambda: any(marked in file.read_bytes() for file in run_dir.glob("ledger/*.jsonl")), 300, "recording")
        wait_for(lambda: next(run_dir.glob("ledger/*.jsonl")).read_bytes().count(b'"step"') > 60, 60, "steps")
        os.kill(int(next(run_dir.glob("ledger/*.jsonl")).stem), signal.SIGKILL)
        ended = finish(process, run_dir)
        assert ended.code == 4
        assert "error: the engine died during the profiled pass" in ended.err and "Traceback" not in ended.err
        assert ended.manifest["status"] == "engine_failed"
        assert left_behind(run_dir) == []
        records = ledger(run_dir)
        assert sum(record["kind"] == "step" for record in records) > 60
        assert list((run_dir / "trace").glob("*.json.gz")), "the orphaned worker's recording was waited for"
        asked = subprocess.run(
            [*COMMAND, "query", str(run_dir), "SELECT count(*) AS n FROM steps", "--json"], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert json.loads(asked.stdout)[0]["n"] > 60, "still ingestible"


class TestFullDisk:  # an engine of its own, in a worker of its own
    def test_a_disk_that_fills_up_while_tracing(self, tmp_path: Path) -> None:
        """A small file system in a mount namespace of its own."""
        may_mount = shutil.which("unshare") is not None and (
            subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", str(tmp_path)], check=False).returncode
            == 0
        )
        if not may_mount:
            pytest.skip("mount namespaces are not allowed here")
        script = 'mount -t tmpfs -o size=12m none "$0" && "$@"; code=$?; cat "$0/run/manifest.json"; exit $code'
        arguments = [*COMMAND, "profile", "--model", "tiny", "--out", str(tmp_path / "run"), "--window", "all",
                     "--workload", "agent:sessions=3,turns=3,output=24", "--no-control", "--quiet"]  # fmt: skip
        ended = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script, str(tmp_path), *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 4, ended.stderr
        assert "error: the engine's profiler could not finish its recording: is the disk full?" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert json.loads(ended.stdout)["status"] == "trace_missing"
        assert left_behind(tmp_path) == []
