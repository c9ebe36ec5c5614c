"""What goes wrong with an engine (played by a stub): exit code, message, what is kept, and that no process is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from engine_harness import SMALL, Ended, finish, left_behind, profile_stub, start, stub_python, wait_for

FAST = ["--ready-timeout", "2", "--stop-timeout", "1", "--quiet"]


def errors(ended: Ended) -> list[str]:
    return [line for line in ended.err.splitlines() if line.startswith(("error:", "hint:"))]


def profile(tmp_path: Path, *arguments: str, env: dict[str, str] | None = None) -> Ended:
    return finish(start(["profile", *arguments], env, cwd=tmp_path), tmp_path / "run")


def test_a_run_leaves_the_documented_layout_and_no_process(tmp_path: Path) -> None:
    ended = profile_stub(tmp_path)
    assert ended.code == 0, ended.err
    names = {str(path.relative_to(ended.run_dir)) for path in ended.run_dir.rglob("*") if path.is_file()}
    assert {
        "manifest.json", "plan.jsonl", "requests.jsonl", "engine.log", "model/config.json", "model/tokenizer.json",
        "trace/rank0.pt.trace.json.gz", "metrics/control-before.prom", "metrics/profiled-after.prom",
    } <= names  # fmt: skip
    assert [item["name"] for item in ended.manifest["passes"]] == ["warmup", "control", "profiled"]
    assert ended.manifest["status"] == "complete"
    assert ended.manifest["capture"]["marked_by"] == "client"  # the stub loads no plugin
    assert ended.manifest["hook_errors"] == ["the hook did not report: no step ledger was written"]
    assert f"run directory: {ended.run_dir}" in ended.out and "stepscope query" in ended.out
    assert left_behind(ended.run_dir) == []


def test_without_control_or_trace_the_other_pass_remains(tmp_path: Path) -> None:
    passes = {}
    for flag in ("--no-control", "--no-trace"):
        (tmp_path / flag).mkdir()
        ended = profile_stub(tmp_path / flag, flag, "--quiet")
        assert ended.code == 0, ended.err
        passes[flag] = [item["name"] for item in ended.manifest["passes"]]
    assert passes == {"--no-control": ["warmup", "profiled"], "--no-trace": ["warmup", "control"]}


@pytest.mark.parametrize(
    ("fault", "message", "status", "recorded"),
    [
        ("refuse_start", "refused to start its profiler: HTTP 500 no profiler today", "engine_failed", False),
        ("slow_stop", "stop_profile was not done after 1 s", "stop_timeout", True),
        ("fail_stop", "stop_profile failed: HTTP 500 [Errno 28] No space left on device", "engine_failed", False),
        ("write_nothing", "the engine's profiler wrote nothing", "trace_missing", False),
        ("die_midrun", "the engine died during the profiled pass (signal SIGKILL)", "engine_failed", True),
        ("refuse_all", "every request of the warmup pass failed: HTTP 400: not today", "engine_failed", False),
    ],
)
def test_failures_of_a_serving_engine_keep_what_there_is(
    tmp_path: Path, fault: str, message: str, status: str, recorded: bool
) -> None:
    ended = profile_stub(tmp_path, *FAST, fault=fault)
    assert ended.code == 4
    error, hint = errors(ended)
    assert error.startswith("error: ") and message in error
    assert str(ended.run_dir) in hint
    assert ended.manifest["status"] == status
    assert (ended.run_dir / "trace" / "rank0.pt.trace.json.gz").exists() == recorded
    assert (ended.run_dir / "run.duckdb").exists(), "still ingestible"
    assert "Traceback" not in ended.err
    assert left_behind(ended.run_dir) == []


def test_an_engine_that_dies_at_start_shows_the_last_thirty_lines(tmp_path: Path) -> None:
    ended = profile_stub(tmp_path, *FAST, fault="die")
    assert ended.code == 4
    assert "the engine ended before it was ready (exit code 3)" in ended.err
    assert [line for line in ended.err.splitlines() if "| log line" in line] == [
        f"  | log line {number}" for number in range(10, 40)
    ]
    assert ended.manifest["status"] == "engine_failed"
    assert left_behind(ended.run_dir) == []


def test_an_engine_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    ended = profile_stub(tmp_path, *FAST, fault="never_ready")
    assert (ended.code, errors(ended)[0]) == (4, "error: the engine was not ready after 2 s")
    assert left_behind(ended.run_dir) == []


def test_processes_that_ignore_signals_and_left_the_group_are_killed(tmp_path: Path) -> None:
    ended = profile_stub(tmp_path, "--quiet", fault="stubborn")
    assert ended.code == 0
    assert left_behind(ended.run_dir) == []


@pytest.mark.parametrize(
    ("fault", "stage", "ingestible"),
    [
        ("never_ready", "engine.log", False),
        ("slow_tokens", "metrics/warmup-before.prom", False),
        ("slow_tokens", "metrics/control-before.prom", True),
        ("slow_tokens", "metrics/profiled-before.prom", True),
        ("slow_stop", "trace/rank0.pt.trace.json", True),
    ],
)
def test_ctrl_c_at_every_stage(tmp_path: Path, fault: str, stage: str, ingestible: bool) -> None:
    run_dir = tmp_path / "run"
    arguments = ["profile", *SMALL, "--python", str(stub_python(tmp_path)), "--out", str(run_dir), "--quiet"]
    process = start(arguments, {"STUB_FAULT": fault})
    wait_for((run_dir / stage).exists, 60, stage)
    process.send_signal(signal.SIGINT)
    ended = finish(process, run_dir, timeout_s=60)
    assert ended.code == 130, ended.err
    assert ended.err.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in ended.err
    assert ended.manifest["status"] == "interrupted"
    assert (run_dir / "run.duckdb").exists() == ingestible
    assert left_behind(run_dir) == []


def test_sigterm_is_an_interruption_too(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ["profile", *SMALL, "--python", str(stub_python(tmp_path)), "--out", str(run_dir), "--quiet"]
    process = start(arguments, {"STUB_FAULT": "never_ready"})
    wait_for((run_dir / "engine.log").exists, 60, "start")
    process.send_signal(signal.SIGTERM)
    assert finish(process, run_dir, timeout_s=60).code == 130
    assert left_behind(run_dir) == []


def test_an_engine_does_not_outlive_a_killed_stepscope(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    arguments = ["profile", *SMALL, "--python", str(stub_python(tmp_path)), "--out", str(run_dir), "--quiet"]
    process = start(arguments, {"STUB_FAULT": "slow_tokens", "TMPDIR": str(tmp_path)})
    wait_for((run_dir / "metrics" / "warmup-before.prom").exists, 60, "warm-up")
    process.kill()
    finish(process, run_dir)
    wait_for(lambda: left_behind(run_dir) == [], 10, "the server ends")
    assert json.loads((run_dir / "manifest.json").read_text())["status"] == "interrupted"


def test_no_engine_installed(tmp_path: Path) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nshift_s="-S"\nexec "{sys.executable}" -S -I "$@"\n')
    bare.chmod(0o755)
    ended = profile(tmp_path, *SMALL, "--python", str(bare), "--out", "run")
    assert ended.code == 2
    assert errors(ended)[0] == f"error: vllm is not installed for {bare}"
    assert "--python PATH" in errors(ended)[1]
    assert not ended.run_dir.exists()


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("nowhere/python", "nowhere/python does not exist"),
        ("", "is a directory"),
        ("not-python", "does not behave like a Python"),
        ("not-executable", "cannot be run: Permission denied"),
    ],
)
def test_a_wrong_python(tmp_path: Path, python: str, message: str) -> None:
    (tmp_path / "not-python").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "not-python").chmod(0o755)
    (tmp_path / "not-executable").write_text("")
    ended = profile(tmp_path, *SMALL, "--python", str(tmp_path / python) if python != "nowhere/python" else python,
                    "--out", "run")  # fmt: skip
    assert ended.code == 2
    assert message in errors(ended)[0] and len(errors(ended)) == 2
    assert not ended.run_dir.exists()


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ended = profile_stub(tmp_path, "--port", str(port))
    assert ended.code == 2
    assert errors(ended)[0] == f"error: port {port} cannot be used: Address already in use"
    assert not ended.run_dir.exists()


@pytest.mark.parametrize(
    ("model", "content", "message"),
    [
        ("no-such-model", None, "neither a preset nor an existing folder nor a hub id"),
        ("./gone/model", None, "neither a preset nor an existing folder nor a hub id"),
        ("folder", None, "holds no config.json"),
        ("folder", "{oops", "cannot be read"),
        ("folder", "[1]", "not a JSON object"),
        ("folder", '{"hidden_size": 8}', "lacks model_type"),
    ],
)
def test_a_model_that_cannot_be(tmp_path: Path, model: str, content: str | None, message: str) -> None:
    (tmp_path / "folder").mkdir()
    if content is not None:
        (tmp_path / "folder" / "config.json").write_text(content)
    ended = profile(tmp_path, "--model", model, "--python", str(stub_python(tmp_path)), "--out", "run")
    assert ended.code == 2
    assert message in errors(ended)[0] and len(errors(ended)) == 2
    assert not ended.run_dir.exists()


def test_an_out_directory_that_exists_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("x")
    ended = profile_stub(tmp_path)
    assert ended.code == 2
    assert errors(ended) == [
        f"error: {ended.run_dir} exists", "hint: choose a new directory with --out, or leave --out out"
    ]  # fmt: skip
    assert [path.name for path in ended.run_dir.iterdir()] == ["precious"]


def test_an_out_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ended = profile(tmp_path, *SMALL, "--python", str(stub_python(tmp_path)), "--out", "file/deeper/run")
    assert ended.code == 2
    assert errors(ended)[0] == "error: cannot write to file/deeper/run: Not a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_out_directory_without_permission(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    ended = profile(tmp_path, *SMALL, "--python", str(stub_python(tmp_path)), "--out", "closed/run")
    assert (ended.code, errors(ended)[0]) == (2, "error: cannot write to closed/run: Permission denied")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "other"], "unknown engine 'other'"),
        (["--window", "steps=0"], "cannot read the window 'steps=0'"),
        (["--window", "seconds=nan"], "cannot read the window 'seconds=nan'"),
        (["--workload", "nope"], "unknown workload 'nope'"),
        (["--engine-arg", "=3"], "cannot read --engine-arg '=3'"),
        (["--engine-arg", "--api_key=x"], "--engine-arg api-key: what loads the engine sends no key"),
        (["--engine-env", "OMP_NUM_THREADS"], "cannot read --engine-env 'OMP_NUM_THREADS'"),
        (["--engine-env", "A B=1"], "cannot read --engine-env 'A B=1'"),
        (["--engine-env", "STEPSCOPE_LEDGER_DIR=/x"], "--engine-env STEPSCOPE_LEDGER_DIR is set by stepscope itself"),
        (["--engine-env", "HF_TOKEN=x"], "--engine-env HF_TOKEN looks like a secret"),
        (["--device", "cuda"], "CPU build|no NVIDIA GPU"),
    ],
)
def test_wrong_options(tmp_path: Path, arguments: list[str], message: str) -> None:
    ended = profile(tmp_path, "--model", "tiny", *arguments, "--out", "run")
    assert ended.code == 2
    assert any(part in errors(ended)[0] for part in message.split("|"))
    assert not ended.run_dir.exists()


def test_a_disk_that_is_full_for_ourselves(tmp_path: Path) -> None:
    """A file size limit on stepscope alone stands in for a full disk: requests.jsonl cannot grow."""
    run_dir = tmp_path / "run"
    script = f'ulimit -f 128; exec "{sys.executable}" -c "from cli import main; main()" "$@"'
    arguments = ["profile", "--workload", "batch:n=200,prompt=32,output=4", "--model", "tiny", "--quiet", "--no-calibrate",
                 "--python", str(stub_python(tmp_path)), "--out", str(run_dir)]  # fmt: skip
    answer = subprocess.run(
        ["sh", "-c", script, "sh", *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert answer.returncode == 2, answer.stderr
    assert (
        f"cannot write {run_dir}/requests.jsonl: File too large" in answer.stderr and "Traceback" not in answer.stderr
    )
    assert left_behind(run_dir) == []
