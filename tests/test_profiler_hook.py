"""The hook inside an engine process (here a stub; test_engine_vllm.py has the real one): records, and harmlessness."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from engine_harness import STUB

PLUGIN = Path(__file__).resolve().parents[1] / "profiler" / "hooks" / "plugin"

# Found and loaded the way vLLM does it.
LOAD = """
from importlib.metadata import entry_points
from types import SimpleNamespace as N
for point in entry_points(group="vllm.general_plugins"):
    if point.name == "stepscope":
        point.load()()

def cached(ids, computed, outputs, resumed=()):
    return N(req_ids=ids, num_computed_tokens=computed, num_output_tokens=outputs, resumed_req_ids=set(resumed))
def out(scheduled, new=(), old=None, spec=()):
    new = [N(req_id=i, num_computed_tokens=c) for i, c in new]
    return N(num_scheduled_tokens=scheduled, scheduled_new_reqs=new, scheduled_cached_reqs=old or cached([], [], []),
             scheduled_spec_decode_tokens=dict(spec))
def got(**tokens):
    return {0: N(outputs=[N(request_id=i, new_token_ids=[7] * n, finish_reason=r) for i, (n, r) in tokens.items()])}
def request(i, prompt):
    return N(request_id=i, num_prompt_tokens=prompt, session_id="S", arrival_time=1700000000.5)
from vllm.v1.core.sched.scheduler import Scheduler
"""

TWO_REQUESTS = """
s = Scheduler(
    [out({"a": 20}, new=[("a", 0)]), out({"a": 1, "b": 6}, new=[("b", 16)], old=cached(["a"], [20], [1])),
     out({}), out({"b": 4}, old=cached(["b"], [22], [1]), spec=[("b", [1, 2, 3])])],
    [got(a=(1, None)), got(a=(1, "stop"), b=(1, None)), got(b=(3, "length"))])
assert s.add_request(request("a", 20)) == "added"
s.add_request(request("b", 22))
for _ in range(2):
    s.update_from_output(s.schedule(), None)
s.schedule()
s.update_from_output(s.schedule(), None)
"""


def run(
    tmp_path: Path, script: str, *, fail: str = "", before: str = ""
) -> tuple[list[dict[str, Any]], subprocess.CompletedProcess[str]]:
    """Records of the process that ran `script`, and the process."""
    env = {
        **os.environ, "PYTHONPATH": f"{PLUGIN}{os.pathsep}{STUB}", "STEPSCOPE_LEDGER_DIR": str(tmp_path),
        "STEPSCOPE_HOOK_FAIL": fail,
    }  # fmt: skip
    ended = subprocess.run(
        [sys.executable, "-c", before + LOAD + script], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    files = list(tmp_path.glob("*.jsonl"))
    assert len(files) <= 1
    return [json.loads(line) for file in files for line in file.read_text().splitlines()], ended


def kinds(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == kind]


def test_steps_with_counts_as_scheduled(tmp_path: Path) -> None:
    records, ended = run(tmp_path, TWO_REQUESTS)
    assert ended.returncode == 0, ended.stderr
    keys = ("seq", "total", "ids", "new", "computed", "prompts", "out", "spec", "first", "resumed")
    assert [tuple(step[key] for key in keys) for step in kinds(records, "step")] == [
        (0, 20, ["a"], [20], [0], [20], [0], [0], [True], [False]),
        (1, 7, ["a", "b"], [1, 6], [20, 16], [20, 22], [1, 0], [0, 0], [False, True], [False, False]),
        (2, 4, ["b"], [4], [22], [22], [1], [3], [False], [False]),
    ]
    assert [
        (r["seq"], r["ids"], r["acc"], r["done"], r["reason"], r["done_out"]) for r in kinds(records, "result")
    ] == [
        (0, ["a"], [1], [], [], []),
        (1, ["a", "b"], [1, 1], ["a"], ["stop"], [2]),
        (2, ["b"], [3], ["b"], ["length"], [4]),
    ]
    for step, result in zip(kinds(records, "step"), kinds(records, "result"), strict=True):
        assert step["t0"] <= step["t1"] <= result["r0"] <= result["r1"]
        assert (step["running"], step["waiting"], step["kv"]) == (1, 0, 0.25)
    assert [(r["event"], r["id"], r["session"], r["prompt"], r["arrival"]) for r in kinds(records, "request")] == [
        ("queued", "a", "S", 20, 1_700_000_000_500_000_000),
        ("queued", "b", "S", 22, 1_700_000_000_500_000_000),
    ]


def test_header_states_limits_and_model(tmp_path: Path) -> None:
    records, _ = run(tmp_path, "s = Scheduler()")
    (header,) = records
    assert header["kind"] == "header"
    facts = ("block_size", "enable_prefix_caching", "max_num_batched_tokens", "max_num_seqs", "max_model_len")
    assert [header[fact] for fact in facts] == [16, True, 32, 4, 64]
    assert header["num_blocks"] is None, "unknown is null"
    assert (header["model"]["hidden_size"], header["model"]["dtype"]) == (8, "bfloat16")


@pytest.mark.parametrize(
    "again",
    ['out({"a": 21}, old=cached(["a"], [0], [1], resumed=["a"]))', 'out({"a": 21}, new=[("a", 0)])'],
    ids=["as a cached request", "as a new request"],
)
def test_a_preempted_request_comes_back_as_resumed(tmp_path: Path, again: str) -> None:
    records, _ = run(
        tmp_path,
        f"""
s = Scheduler([out({{"a": 20}}, new=[("a", 0)]), {again}], [got(a=(1, None)), got(a=(1, None))])
s.add_request(request("a", 20))
s.update_from_output(s.schedule(), None)
s._preempt_request(request("a", 20), 0.0)
s.update_from_output(s.schedule(), None)
""",
    )
    first, second = kinds(records, "step")
    assert (first["first"], first["resumed"]) == ([True], [False])
    assert (second["first"], second["resumed"], second["computed"]) == ([False], [True], [0])
    assert [r["event"] for r in kinds(records, "request")] == ["queued", "preempted"]


def test_requests_aborted_from_outside_are_finished(tmp_path: Path) -> None:
    records, _ = run(
        tmp_path,
        """
s = Scheduler([out({"a": 20}, new=[("a", 0)])], [got(a=(1, None))])
s.add_request(request("a", 20)); s.add_request(request("b", 5))
s.update_from_output(s.schedule(), None)
s.finish_requests("a", None); s.finish_requests(["b", "unknown"], None)
""",
    )
    assert [(r["ids"], r["out"]) for r in kinds(records, "aborted")] == [(["a"], [1]), (["b"], [0])]


def test_profiler_marks_evictions_and_no_summary_table(tmp_path: Path) -> None:
    records, ended = run(
        tmp_path,
        """
import inspect
from vllm.v1.engine.core import EngineCore
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.profiler.wrapper import TorchProfilerWrapper
core = EngineCore()
assert core.profile() == (True, None) and core.profile(is_start=False, profile_prefix="p") == (False, "p")
try:
    core.profile(True, "refuse")
except RuntimeError:
    print("refused")
assert list(inspect.signature(EngineCore.profile).parameters) == ["self", "is_start", "profile_prefix"]
assert len(KVCacheManager().take_events()) == 2
wrapper = TorchProfilerWrapper()
print(wrapper.dump_cpu_time_total, wrapper.dump_device_time_total)
""",
    )
    assert ended.stdout.splitlines() == ["refused", "False False"], ended.stderr
    assert [(mark["mark"], mark["value"]) for mark in kinds(records, "mark")] == [
        ("profile_start_begin", None), ("profile_start_end", None), ("profile_stop_begin", None),
        ("profile_stop_end", None), ("profile_start_begin", None), ("profile_start_failed", None), ("kv_evicted", 3),
    ]  # fmt: skip


@pytest.mark.parametrize(("where", "lost"), [("register", "step"), ("schedule", "step"), ("result", "result")])
def test_a_hook_made_to_fail_says_so_and_leaves_the_engine_alone(tmp_path: Path, where: str, lost: str) -> None:
    records, ended = run(tmp_path, TWO_REQUESTS, fail=where)
    assert (ended.returncode, ended.stderr) == (0, "")
    errors = [mark["text"] for mark in kinds(records, "mark") if mark["mark"] == "error"]
    assert errors and all(f"RuntimeError: made to fail at {where}" in text for text in errors)
    assert kinds(records, lost) == []


def test_the_engines_own_exceptions_pass_through(tmp_path: Path) -> None:
    _, ended = run(
        tmp_path,
        """
s = Scheduler([out({"a": 20}, new=[("a", 0)])], [ValueError("the engine's own")])
s.update_from_output(s.schedule(), None)
""",
    )
    assert ended.returncode == 1 and ended.stderr.splitlines()[-1] == "ValueError: the engine's own"


def test_an_engine_with_other_attributes_is_survived(tmp_path: Path) -> None:
    records, ended = run(
        tmp_path,
        """
s = Scheduler([N(num_scheduled_tokens={"a": 1})] * 40, [got(a=(1, None))] * 40)
del s.vllm_config
for _ in range(40):
    s.update_from_output(s.schedule(), None)
""",
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    errors = [mark["text"] for mark in kinds(records, "mark") if mark["mark"] == "error"]
    assert 0 < sum("schedule: AttributeError" in text for text in errors) <= 5, "not one per step"


def test_a_missing_method_is_named_and_the_rest_is_recorded(tmp_path: Path) -> None:
    older = "import vllm.v1.core.sched.scheduler as m; del m.Scheduler._preempt_request\n"
    records, ended = run(tmp_path, TWO_REQUESTS, before=older)
    assert ended.returncode == 0
    assert "Scheduler._preempt_request does not exist" in kinds(records, "mark")[0]["text"]
    assert len(kinds(records, "step")) == 3


def test_switched_off_nothing_is_loaded_or_written(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{PLUGIN}{os.pathsep}{STUB}"}
    env.pop("STEPSCOPE_LEDGER_DIR", None)
    code = (
        LOAD + "import sys; print('stepscope_hook.ledger' in sys.modules, hasattr(Scheduler.schedule, '__wrapped__'))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout.strip() == "False False"


def test_a_ledger_that_cannot_be_written_is_no_problem_of_the_engine(tmp_path: Path) -> None:
    records, ended = run(tmp_path / "missing" / "folder", TWO_REQUESTS)
    assert (ended.returncode, ended.stderr, records) == (0, "", [])


def test_kill_9_loses_no_more_than_the_last_fifth_of_a_second(tmp_path: Path) -> None:
    script = """
import time
s = Scheduler([out({"a": 1}, new=[("a", 0)]) for _ in range(100000)], [])
while True:
    s.schedule(); print(time.time_ns(), flush=True); time.sleep(0.01)
"""
    env = {
        **os.environ, "PYTHONPATH": f"{PLUGIN}{os.pathsep}{STUB}", "STEPSCOPE_LEDGER_DIR": str(tmp_path),
    }  # fmt: skip
    command = [sys.executable, "-c", LOAD + script]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1.0)
        process.send_signal(signal.SIGKILL)
        last_done_ns = int(process.stdout.read().splitlines()[-1])
    lines = next(tmp_path.glob("*.jsonl")).read_text().splitlines()
    last_written_ns = json.loads(lines[-1])["t0"]
    # Twice the interval: on a machine that is busy with something else the thread wakes late.
    assert last_done_ns - last_written_ns < 400_000_000


def test_a_forked_child_writes_its_own_file(tmp_path: Path) -> None:
    script = """
import os
s = Scheduler()
child = os.fork()
if child == 0:
    s = Scheduler()
    from stepscope_hook import ledger
    ledger.flush()
    os._exit(0)
os.waitpid(child, 0)
"""
    env = {**os.environ, "PYTHONPATH": f"{PLUGIN}{os.pathsep}{STUB}", "STEPSCOPE_LEDGER_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", LOAD + script], env=env, check=True, timeout=60)
    files = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in tmp_path.iterdir()}
    assert len(files) == 2
    assert all([str(record["pid"]) for record in records] == [stem] for stem, records in files.items())
