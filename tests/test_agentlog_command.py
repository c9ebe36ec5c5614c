"""`stepscope agentlog`: tables, JSON, exit codes, and that no text of a log leaves it."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli import main

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Done:
    """What a command left."""

    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str | Path) -> Done:
    """The command in this process, as its console entry runs it."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main(["agentlog", *map(str, arguments)])
    return Done(returncode=int(ended.value.code or 0), stdout=out.getvalue(), stderr=err.getvalue())


def told(*arguments: str | Path) -> dict[str, Any]:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


SECRET = "zebra-crossing"


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    """Three turns; a tool's result is edited before the third. Every text holds SECRET."""
    system = {"role": "system", "content": f"{SECRET} " * 40}
    messages = [system, {"role": "user", "content": f"{SECRET} please " * 10}]
    log = tmp_path / "chat.jsonl"
    with log.open("w") as out:
        for turn in range(3):
            said = {"role": "assistant", "content": f"{SECRET} answer {turn} " * 8}
            usage = {"prompt_tokens": sum(len(item["content"]) for item in messages) // 4, "completion_tokens": 40,
                     "prompt_tokens_details": {"cached_tokens": 16 * turn}}  # fmt: skip
            record = {"timestamp": 1_700_000_000 + 60 * turn, "user": "u", "model": "m", "messages": list(messages),
                      "response": {"id": f"r{turn}", "choices": [{"message": said}], "usage": usage}}  # fmt: skip
            out.write(json.dumps(record) + "\n")
            messages += [said, {"role": "tool", "content": f"{SECRET} result {turn} " * 20}]
            if turn == 1:
                messages[3] = {"role": "tool", "content": f"{SECRET} removed"}
        out.write("broken\n")
    return log


def test_turns_of_a_chat_log(chat: Path) -> None:
    found = told(chat, "--by", "turn")
    first, second, third = found["turns"]
    pieces = [key for key in first if key.endswith("_tokens")]
    for row in (first, second, third):
        kinds = [key for key in pieces if key not in ("prompt_tokens", "output_tokens", "recorded_cached_tokens")]
        assert sum(row[key] for key in kinds) == row["prompt_tokens"]
    assert first["fresh_tokens"] == first["prompt_tokens"]
    assert second["resent_output_tokens"] > 0 and second["prefix_changed_tokens"] == 0
    assert third["break_role"] == "tool" and third["break_token"] < second["prompt_tokens"]
    assert found["skipped_records"] == 1
    assert found["totals"]["recorded_cached_tokens"] == 48
    assert found["problems"] == [{"file": "chat.jsonl", "line": 4, "message": "not JSON, or cut off"}]


@pytest.mark.parametrize("by", ["session", "turn"])
def test_no_text_leaves_the_log(chat: Path, by: str) -> None:
    for done in (run(chat, "--by", by), run(chat, "--by", by, "--json")):
        assert done.returncode == 0
        assert "zebra" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--by", "turn", "--model", "llama-3.1-8b", "--gpu", "H100-SXM5"),
        ("--model", "llama-3.1-8b", "--gpu", "H100-SXM5"),
        ("--cache", "tokens=200k", "--ttl", "60"),
    ],
)
def test_tables_fit(chat: Path, options: tuple[str, ...]) -> None:
    done = run(chat, *options)
    assert done.returncode == 0 and not done.stderr
    for line in done.stdout.splitlines():
        assert len(line) <= 100 or line.startswith("note: ")
    assert "prefill share" not in done.stdout
    assert "4: not JSON, or cut off" in done.stdout


def test_device_time_adds_up(chat: Path) -> None:
    found = told(chat, "--by", "turn", "--model", "llama-3.1-8b", "--gpu", "H100-SXM5")
    turns = sum(value for row in found["turns"] for key, value in row.items() if key.endswith("_ns") and key[:-3] in (
        "fresh", "resent_output", "block_remainder", "prefix_changed", "compaction", "evicted", "expired", "caching_off", "unexplained",
    ))  # fmt: skip
    assert turns == found["totals"]["prefill_floor_ns"] == sum(row["prefill_floor_ns"] for row in found["sessions"]) > 0
    assert any("prefill floor: llama-3.1-8b on one H100-SXM5" in note for note in found["notes"])


def test_mixed_formats(chat: Path, tmp_path: Path) -> None:
    blocks = tmp_path / "blocks.jsonl"
    blocks.write_text('{"input_length": 600, "output_length": 5, "hash_ids": [1, 2], "session_id": "u"}\n')
    replay = tmp_path / "replay.csv"
    replay.write_text("session_id,round_idx,prefix_len,input_len,output_len\nu,0,0,100,5\nu,1,100,50,x\n")
    found = told(chat, blocks, replay)
    assert found["formats"] == {"chat": 3, "block-hash": 1, "tracelab-csv": 1}
    assert found["totals"]["sessions"] == len(found["sessions"]) == 3  # 'u' of one file is not 'u' of another
    assert [item["line"] for item in found["problems"]] == [4, 3]
    assert told(tmp_path)["totals"] == found["totals"]


def test_names_are_printed_without_control_characters(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(
        json.dumps({"input_length": 9, "output_length": 5, "hash_ids": [], "session_id": "\x1b[31mred\n"}) + "\n"
    )
    done = run(log)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout and "\\x1b[31mred\\n" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("log.jsonl", "--cache", "large"), 2, "unknown cache large"),
        (("log.jsonl", "--cache", "tokens=0"), 2, "--cache: 0 is not a number"),
        (("log.jsonl", "--cache", "tokens=9e99"), 2, "unknown cache"),
        (("log.jsonl", "--cache", "blocks=5"), 2, "needs the size of a block"),
        (("log.jsonl", "--cache", "recorded", "--ttl", "5"), 2, "time to live"),
        (("log.jsonl", "--ttl", "-1"), 2, "--ttl"),
        (("log.jsonl", "--gpu", "H100-SXM5"), 2, "--gpu without --model"),
        (("log.jsonl", "--model", "llama-3.1-8b"), 2, "no device is given"),
        (("log.jsonl", "--model", "nonsense", "--gpu", "H100-SXM5"), 2, "unknown model nonsense"),
        (("log.jsonl", "--tokenizer", "absent"), 2, "there is no tokenizer at absent"),
        (("log.jsonl", "--format", "nonsense"), 2, "unknown format nonsense"),
        (("log.jsonl", "--bad-rows", "stop"), 3, "log.jsonl:2: not a JSON object, or cut off"),
        (("absent.jsonl",), 3, "there is no file"),
        (("unknown.jsonl",), 3, "of no known format"),
        (("empty.jsonl",), 3, "is empty"),
        (("nothing.jsonl",), 5, "no request with token counts"),
        ((), 2, "LOG..."),
    ],
)  # fmt: skip
def test_mistakes(tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    (tmp_path / "log.jsonl").write_text('{"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n{"input_len')
    (tmp_path / "unknown.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "nothing.jsonl").write_text('{"input_length": -600, "output_length": 5, "hash_ids": [1, 2]}\n')
    named = [str(tmp_path / item) if item.endswith(".jsonl") else item for item in arguments]
    done = run(*named)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr and "Traceback" not in done.stderr
    assert "hint: " in done.stderr


def test_a_cache_of_blocks_is_one_of_tokens(chat: Path) -> None:
    blocks = told(chat, "--cache", "blocks=6", "--block", "32")
    assert blocks["totals"] == told(chat, "--cache", "tokens=192", "--block", "32")["totals"]
    assert blocks["totals"]["evicted_tokens"] > 0


def test_recorded_beside_possible() -> None:
    path = DATA / "agent-logs/claude_code/tracelab_claude_session.jsonl"
    if not path.exists():
        pytest.skip(f"sample logs are not here: {path}")
    done = run(path)
    assert "10 requests of 1 session" in done.stdout
    assert "15 records repeat a request that is counted once" in done.stdout
    assert re.search(
        r"hit ratio 88\.43 % \(possible under this cache\)\n  recorded 94\.23 %, 3,020 tokens", done.stdout
    )


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Eight times the requests and blocks: what is kept is some bytes per block and session, not the log."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        from agentlog import _write  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    peaks = []
    for requests in (10_000, 80_000):
        log = tmp_path / f"{requests}.jsonl"
        _write(log, requests, named=False)
        code = (
            "import resource, sys; from cli import main\n"
            "try: main(sys.argv[1:])\n"
            "finally: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        command = [sys.executable, "-c", code, "agentlog", str(log)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=True)
        assert f"{requests:,} requests" in done.stdout
        peaks.append(int(done.stderr.split()[-1]) / 1024)
        size_mb = log.stat().st_size / 1e6
    assert size_mb > 12
    assert peaks[1] - peaks[0] < 120
