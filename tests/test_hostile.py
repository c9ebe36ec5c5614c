"""Hostile or damaged input through the command line: an exit code of ours, two lines, nothing half-written."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
import reading_runs
from trace_builder import DECODE, MS, US, RunBuilder, TraceBuilder

from cli import Composition
from traces.errors import UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore

Run = Callable[..., tuple[int, str, str]]
FAR = ("9223372036854775.807", "4611686018427387.904")  # µs: the end of int64, and just beyond the year 2116
ESCAPE = "\x1b[31mred\x07"


def trace(*, name: str = "gemm", **top: Any) -> TraceBuilder:
    builder = TraceBuilder(rank=0, **top)
    for step in range(3):
        at = 100 * US * (step + 1)
        builder.label(at, 50 * US, DECODE).launched(at + US, at + 10 * US, 20 * US, step + 1, name=name)
    return builder


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def served(folder: Path) -> Path:
    builder = RunBuilder().request("a", 0, [2 * MS, 3 * MS], prompt=64)
    builder.step(MS, 900 * US, [{"id": "cmpl-a-0-00c0ffee", "new": 64, "computed": 0, "prompt": 64}])
    return builder.write(folder)


@pytest.mark.parametrize("far", FAR)
@pytest.mark.parametrize("key", ["ts", "dur"])
def test_a_time_beyond_all_calendars_costs_its_event_only(run: Run, tmp_path: Path, key: str, far: str) -> None:
    old = '"ts": 110.000' if key == "ts" else '"dur": 20.000'
    (tmp_path / "t.json").write_text(trace().text().replace(old, f'"{key}": {far}', 1))
    assert run("ingest", "t.json", "-q")[0] == 0
    with duckdb.connect("t.duckdb", read_only=True) as con:
        assert con.execute("SELECT count(*), sum(dur_ns)::BIGINT FROM kernels").fetchall() == [(2, 40 * US)]
        (dropped,) = con.execute("SELECT dropped FROM sources").fetchone() or ("",)
    assert json.loads(dropped) == {"absurd_time": 1}


def test_an_absurd_clock_base_leaves_the_recording_its_own_clock(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(trace(baseTimeNanoseconds=2**63 - 1).text())
    assert run("ingest", "t.json", "-q")[0] == 0
    with duckdb.connect("t.duckdb", read_only=True) as con:
        assert con.execute("SELECT clock, window_start_ns FROM runs").fetchall() == [("recording", 110 * US)]


def test_nothing_but_absurd_times_is_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(re.sub(r'"ts": [\d.]+', f'"ts": {FAR[0]}', trace().text()))
    code, out, err = run("ingest", "t.json", "-q")
    assert (code, out, names(tmp_path)) == (5, "", ["t.json"])
    assert err.startswith("error: t.json: readable, but without a single usable event\nhint: ")


def test_a_device_number_beyond_32_bits_is_device_0(run: Run, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(trace().text().replace('"device": 0', '"device": 1000000000000'))
    assert run("ingest", "t.json", "-q")[0] == 0
    with duckdb.connect("t.duckdb", read_only=True) as con:
        assert con.execute("SELECT device, busy_ns FROM devices").fetchall() == [(0, 60 * US)]


@pytest.mark.parametrize(
    ("key", "value"),
    [("created_ns", "x"), ("created_ns", 2**70), ("created_ns", True), ("created_ns", []), ("engine", 5), ("passes", 5),
     ("capture", {"start_ns": "x", "end_ns": 1, "marked_by": "hook"}), ("hook_errors", "x")],
)  # fmt: skip
def test_a_manifest_with_wrong_types_is_refused(run: Run, tmp_path: Path, key: str, value: object) -> None:
    path = served(tmp_path / "run") / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    code, _, err = run("ingest", "run", "-q")
    assert (code, (tmp_path / "run" / "run.duckdb").exists()) == (3, False)
    assert "manifest.json is not a manifest of a run: " in err and "\nhint: " in err


@pytest.mark.parametrize("text", ["[" * 100_000, '{"run_id": ' + "9" * 5000 + "}"], ids=["deep", "long-number"])
def test_a_manifest_that_python_refuses_to_decode(run: Run, tmp_path: Path, text: str) -> None:
    (served(tmp_path / "run") / "manifest.json").write_text(text)
    assert run("ingest", "run", "-q")[0] == 3


def test_a_request_record_no_parser_takes_is_dropped(run: Run, tmp_path: Path) -> None:
    path = served(tmp_path / "run") / "requests.jsonl"
    good = path.read_text()
    path.write_text(good + good.replace('"session_id":null', '"session_id":NaN'))
    assert run("ingest", "run", "-q")[0] == 0
    with duckdb.connect("run/run.duckdb", read_only=True) as con:
        assert con.execute("SELECT count(*) FROM requests").fetchall() == [(1,)]


def test_the_name_of_a_pass_is_spelled_out(run: Run, tmp_path: Path) -> None:
    path = served(tmp_path / "run") / "requests.jsonl"
    path.write_text(path.read_text().replace('"pass":"profiled"', f'"pass":{json.dumps(ESCAPE)}'))
    assert run("ingest", "run", "-q")[0] == 0
    for command in ("summary", "requests"):
        code, out, _ = run(command, "run")
        assert (code, "\x1b" in out, "\\x1b[31mred" in out) == (0, False, True)


def test_a_column_name_is_spelled_out(run: Run, tmp_path: Path) -> None:
    trace().write(tmp_path / "t.json")
    run("ingest", "t.json", "-q")
    assert run("query", "t.duckdb", f'select 1 as "{ESCAPE}"')[1].splitlines()[0] == "\\x1b[31mred\\x07"


@pytest.mark.parametrize(
    "command", [("kernels", "t.duckdb", "--csv"), ("query", "t.duckdb", "select name from kernels", "--csv")]
)
def test_csv_is_exact_in_a_pipe_and_spelled_out_on_a_terminal(
    run: Run, tmp_path: Path, command: tuple[str, ...]
) -> None:
    trace(name=ESCAPE).write(tmp_path / "t.json")
    run("ingest", "t.json", "-q")
    assert ESCAPE in run(*command)[1]  # exactly as in the recording
    ours, theirs = pty.openpty()
    script = Path(sys.executable).with_name("stepscope")
    subprocess.run([script, *command], stdout=theirs, check=True, cwd=tmp_path)
    os.close(theirs)
    shown = os.read(ours, 100_000)
    os.close(ours)
    assert b"\x1b" not in shown and b"\\x1b[31mred" in shown


@pytest.mark.parametrize("cut", ["half", "checksum", "table", "column"])
def test_a_damaged_database_is_said_to_be_unreadable(run: Run, tmp_path: Path, cut: str) -> None:
    trace().write(tmp_path / "t.json")
    run("ingest", "t.json", "-q")
    path = tmp_path / "t.duckdb"
    raw = path.read_bytes()
    if cut == "half":
        path.write_bytes(raw[: len(raw) // 2])
    elif cut == "checksum":
        path.write_bytes(raw[:4096] + bytes(8192) + raw[12288:])
    else:
        with duckdb.connect(str(path)) as con:
            con.execute("DROP TABLE steps" if cut == "table" else "ALTER TABLE steps DROP COLUMN kind")
    before = path.read_bytes()
    for command in (
        ("summary", path),
        ("query", path, "select * from kernels"),
        ("analyze", path),
        ("ingest", "t.json", "-o", path),
    ):
        code, _, err = run(*command)
        assert (code, err.count("error: "), err.count("hint: ")) == (3, 1, 1), command
    assert (path.read_bytes(), names(tmp_path)) == (before, ["t.duckdb", "t.json"])


@pytest.mark.parametrize("name", ["x" * 5000, "a\x00b"], ids=["long", "nul"])
def test_a_name_that_no_file_can_have(run: Run, name: str) -> None:
    code, _, err = run("summary", name)
    assert (code, "cannot be reached" in err) == (3, True)


def test_a_file_whose_name_is_no_utf8(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff.json")).write_text(trace().text())
    assert run("ingest", "ranks", "-q")[0] == 0
    with duckdb.connect("ranks.duckdb", read_only=True) as con:
        assert con.execute("SELECT name FROM sources").fetchall() == [("\ufffd.json",)]


@pytest.mark.parametrize("target", ["t.json/x.duckdb", "x" * 300], ids=["below-a-file", "long"])
def test_a_target_that_cannot_be(run: Run, tmp_path: Path, target: str) -> None:
    trace().write(tmp_path / "t.json")
    code, _, err = run("ingest", "t.json", "-q", "-o", target)
    assert (code, err.count("error: cannot write"), err.count("hint: "), names(tmp_path)) == (2, 1, 1, ["t.json"])


def test_a_kernel_name_of_many_megabytes_costs_its_event_only(tmp_path: Path) -> None:
    path, target = tmp_path / "huge.json", tmp_path / "run.duckdb"
    names_of_kernels = ["one", "x" * 40_000_000, "two"]
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "ts": 10 * at, "dur": 5, "args": {"device": 0, "stream": 7}}
        for at, name in enumerate(names_of_kernels)
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    report = ingest_once([str(path)], target, IngestOptions())
    assert report.files[0].dropped == {"too_large": 1}
    with duckdb.connect(str(target), read_only=True) as con:
        assert con.execute("SELECT name FROM kernels ORDER BY start_ns").fetchall() == [("one",), ("two",)]


def test_a_run_that_another_process_added_meanwhile_is_not_lost(tmp_path: Path) -> None:
    target = tmp_path / "all.duckdb"
    first, second = (str(trace(name=name).write(tmp_path / f"{name}.json")) for name in ("one", "two"))

    def other(_con: object, _run_id: str) -> None:  # not by an ingest, which would wait for its turn
        elsewhere = tmp_path / "elsewhere.duckdb"
        ingest_once([second], elsewhere, IngestOptions(name="second"))
        elsewhere.replace(target)

    with pytest.raises(UsageProblem, match="changed by another process meanwhile"):
        ingest_once([first], target, IngestOptions(name="first", finish=other))
    with duckdb.connect(str(target), read_only=True) as con:
        assert con.execute("SELECT name FROM runs").fetchall() == [("second",)]
    assert names(tmp_path) == ["all.duckdb", "one.json", "two.json"]


@pytest.mark.parametrize(
    "line",
    ['{"kind":"header","pid":1180591620717411303424,"ts":"x"}', '{"kind":"header","pid":"x","ts":1.5}', '{"kind":"header","ts":[null]}',
     '{"kind":"header","a":' + "[" * 100_000 + "}", '{"kind":"request","event":"queued","id":null,"ts":1}',
     '{"kind":"step","seq":9,"t0":1,"t1":2,"total":1,"ids":[null],"new":[1],"computed":[0],"prompts":[1],"out":[0],"spec":[0],"first":[true],"resumed":[false]}',
     '{"kind":"step","seq":9,"t0":1,"t1":2,"total":1,"ids":["b"],"new":[4611686018427387904],"computed":[4611686018427387904],"prompts":[1],"out":[0],"spec":[0],"first":[true],"resumed":[false]}'],
    ids=["huge-pid", "text-pid", "list-ts", "deep", "request-without-id", "row-without-id", "huge-counts"],
)  # fmt: skip
def test_a_damaged_ledger_record_costs_itself_only(run: Run, tmp_path: Path, line: str) -> None:
    path = served(tmp_path / "run") / "ledger" / "77.jsonl"
    path.write_text(line + "\n" + path.read_text())
    assert run("ingest", "run", "-q")[0] == 0
    with duckdb.connect("run/run.duckdb", read_only=True) as con:
        assert con.execute("SELECT kind, prefill_tokens FROM steps").fetchall() == [("prefill", 64)]
        assert con.execute("SELECT count(*) FROM step_requests").fetchall() == [(1,)]


def test_a_window_that_ends_before_it_begins_is_none(run: Run, tmp_path: Path) -> None:
    path = served(tmp_path / "run") / "manifest.json"
    manifest = json.loads(path.read_text())
    for part in (manifest["capture"], *manifest["passes"]):
        part["end_ns"] = part["start_ns"] - 1
    path.write_text(json.dumps(manifest))
    assert run("ingest", "run", "-q")[0] == 0
    with duckdb.connect("run/run.duckdb", read_only=True) as con:
        rows = con.execute(
            "SELECT window_end_ns - window_start_ns, busy_ns, idle_ns, unrecorded_ns FROM devices"
        ).fetchall()
    assert rows == [(840 * US, 840 * US, 0, 0)]


def tampered(folder: Path, *statements: str, served_too: bool = False) -> Path:
    """A database of ours after somebody's statements."""
    path = folder / "t.duckdb"
    source = served(folder / "run") if served_too else trace().write(folder / "t.json")
    ingest_once([str(source)], path, IngestOptions(finish=Composition().analysis()))
    with duckdb.connect(str(path)) as con:
        for statement in statements:
            con.execute(statement)
    return path


EDITS = {
    "null-id": "ALTER TABLE runs ALTER run_id DROP NOT NULL; UPDATE runs SET run_id = NULL",
    "type": "ALTER TABLE kernels ALTER dur_ns TYPE VARCHAR",
    "view": "CREATE TABLE r2 AS FROM runs; DROP TABLE runs; CREATE VIEW runs AS FROM r2",
    "file": "CREATE TABLE r2 AS FROM runs; DROP TABLE runs; CREATE VIEW runs AS "
    "SELECT * FROM r2 UNION ALL BY NAME SELECT content AS name FROM read_text('/etc/hostname')",
    "newer": "UPDATE runs SET schema_version = 99",
    "times": f"UPDATE kernels SET dur_ns = {2**63 - 1}; UPDATE steps SET busy_ns = {2**63 - 1}, device_end_ns = {2**63 - 1}",
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("command", [("summary",), ("report",), ("analyze",), ("export", "--prometheus")])
def test_an_edited_database_is_said_to_be_unreadable(
    run: Run, tmp_path: Path, edit: str, command: tuple[str, ...]
) -> None:
    path = tampered(tmp_path, EDITS[edit])
    before = path.read_bytes()
    code, out, err = run(command[0], path, *command[1:])
    assert (code, out, err.count("error: "), err.count("hint: ")) == (3, "", 1, 1), err
    assert ("update stepscope" in err) == (edit == "newer")
    assert path.read_bytes() == before and not (tmp_path / "report.html").exists()


def test_a_statement_of_ours_that_fits_no_table_keeps_its_traceback(tmp_path: Path) -> None:
    """Such a bug must not pass for somebody's damage."""
    with pytest.raises(duckdb.BinderException), TraceStore.open(tampered(tmp_path)) as store:
        store.query("SELECT nope FROM steps")


@pytest.mark.parametrize("how", ["cut", "random"])
def test_a_database_damaged_anywhere(run: Run, tmp_path: Path, how: str) -> None:
    """Each command either needs nothing of what is damaged, or says that it is."""
    path = tampered(tmp_path)
    raw, told = path.read_bytes(), 0
    for place in range(12_288 + 100, len(raw), 262_144):
        path.write_bytes(raw[:place] if how == "cut" else raw[:place] + b"\xa5" * 64 + raw[place + 64 :])
        for command in (("summary",), ("kernels",), ("query", "select * from steps"), ("analyze",)):
            code, _, err = run(command[0], path, *command[1:])
            assert code in (0, 3) and (code == 0 or "\nhint: " in err), err
            told += code == 3
        path.write_bytes(raw)
    assert told


def test_words_of_an_edited_database_are_spelled_out(run: Run, tmp_path: Path) -> None:
    word = "'a\x1b[31mb'"
    path = tampered(
        tmp_path, f"UPDATE kernels SET category = {word}", f"UPDATE steps SET kind = {word}, graph_mode = {word}",
        f"UPDATE gaps SET cause = {word}", f"UPDATE health SET check_id = {word}, status = {word}",
        f"UPDATE sources SET role = {word}", f"UPDATE requests SET status = {word}", f"UPDATE reuse SET cause = {word}",
        served_too=True,
    )  # fmt: skip
    shown = ""
    for command in ("summary", "steps", "phases", "kernels", "idle", "requests", "agents", "health", "info"):
        code, out, err = run(command, path)
        assert code in (0, 5) and "\x1b" not in out + err, command
        shown += out
    assert "a\\x1b[31mb" in shown


def test_a_cause_of_lost_tokens_that_is_not_known_is_shown_as_it_is(run: Run, tmp_path: Path) -> None:
    path = reading_runs.served(tmp_path)
    with duckdb.connect(str(path)) as con:
        con.execute("UPDATE reuse SET cause = 'o\x1bdd' WHERE cause IS NOT NULL")
    code, out, _ = run("agents", path)
    assert code == 0 and "  o\\x1bdd: 64 tokens" in out


@pytest.mark.parametrize(
    ("key", "value"),
    [("cached_tokens", 9 * 10**18), ("prompt_tokens", 2**63 - 1), ("output_tokens", 2**63 - 1), ("prompt_tokens", -5),
     ("sent_ns", -(2**63) + 1), ("finished_ns", 2**63 - 1), ("turn", -1)],
)  # fmt: skip
def test_a_request_of_impossible_numbers_costs_itself_only(run: Run, tmp_path: Path, key: str, value: int) -> None:
    path = served(tmp_path / "run") / "requests.jsonl"
    good = path.read_text()
    bad = json.loads(good) | {key: value, "client_request_id": "b"}
    path.write_text(json.dumps(bad, separators=(",", ":")) + "\n" + good)
    code, _, err = run("ingest", "run")
    assert code == 0 and "read requests.jsonl: 2 events; not kept: 1 impossible number" in err
    with duckdb.connect("run/run.duckdb", read_only=True) as con:
        assert con.execute("SELECT client_request_id FROM requests").fetchall() == [("a",)]
    assert run("summary", "run")[0] == run("requests", "run")[0] == 0


@pytest.mark.parametrize("name", ["", "#", "#x"])
def test_an_empty_name_is_not_this_folder(run: Run, tmp_path: Path, name: str) -> None:
    served(tmp_path)
    assert run("ingest", ".", "-q")[0] == 0 and run("summary", ".")[0] == 0
    code, out, err = run("summary", name)
    assert (code, out) == (2, "") and f"no run is named by '{name}'\nhint: " in err
    assert run("ingest", "", "-o", "x.duckdb")[0] == 2


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + "#x"])
def test_a_name_longer_than_files_have(run: Run, name: str) -> None:
    for command in (("summary", name), ("compare", name, "x.duckdb"), ("export", name, "-o", "x.json")):
        code, _, err = run(*command)
        assert code in (2, 3) and "\nhint: " in err


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "1e400"])
def test_no_option_takes_what_is_no_number(run: Run, tmp_path: Path, number: str) -> None:
    tampered(tmp_path)
    model = ("--model", "llama-3.1-8b", "--gpu", "H100")
    for command in (
        ("roofline", "t.duckdb", "--peak-flops", number), ("roofline", "t.duckdb", "--bandwidth", number),
        ("energy", "t.duckdb", "--price", number), ("energy", "t.duckdb", "--min-duration", number),
        ("energy", "t.duckdb", "--baseline-w", number), ("ingest", "t.json", "--sensor-interval", number),
        ("predict", *model, "--price", number), ("predict", *model, "--prefill-rate", number),
        ("predict", *model, "--memory-share", number), ("predict", *model, "--train-tokens", number),
        ("idle", "--simulate", "poisson", *model, "--minutes", number), ("profile", "--ready-timeout", number),
        ("profile", "--stop-timeout", number), ("workload", "chat", "--rate-scale", number),
        ("agentlog", "x", "--ttl", number), ("compare", "t.duckdb", "t.duckdb", "--gate", f"{number}%"),
    ):  # fmt: skip
        code, out, err = run(*command)
        assert (code, out, err.count("error: "), err.count("hint: ")) == (2, "", 1, 1), command


def test_digits_are_ascii(run: Run, tmp_path: Path) -> None:
    tampered(tmp_path)
    for command in (
        ("compare", "t.duckdb", "t.duckdb", "--gate", "٥%"), ("roofline", "t.duckdb", "--peak-flops", "٩٩٠T"),
        ("ingest", "t.json", "--utc-offset", "+٠٢:٠٠"),
    ):  # fmt: skip
        assert run(*command)[0] == 2, command


def test_json_has_no_number_that_is_none(run: Run, tmp_path: Path) -> None:
    path = tampered(
        tmp_path, "UPDATE devices SET peak_flops = 'inf', ridge = 'nan'", "UPDATE kernels SET flops = 'inf'"
    )
    for command in ("summary", "steps", "kernels", "roofline", "findings"):
        code, out, _ = run(command, path, "--json")
        assert code == 0 and "NaN" not in out and "Infinity" not in out
