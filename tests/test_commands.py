"""Every reading command: stdout, stderr and exit code, as a shell sees them."""

from __future__ import annotations

import csv
import io
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from trace_builder import DECODE, MIXED, MS, PREFILL, US, RunBuilder, TraceBuilder

import cli

ROOT = Path(__file__).resolve().parents[1]
ESCAPE = "\x1b[31mred\x07\x1b]0;title\x07"
READING = ("summary", "steps", "phases", "kernels", "requests", "health", "info")


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command line in this process, in an empty folder; a traceback is a failure of the test."""
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(item) for item in arguments])
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return Done(int(stopped.value.code or 0), found.out, found.err)

    return invoke


def small_trace(path: Path, *, kernel: str = "gemm", label: str = DECODE, **top: object) -> Path:
    trace = TraceBuilder(rank=0, **top)
    for step in range(3):
        at = 100 * US * (step + 1)
        trace.label(at, 50 * US, (label, PREFILL, MIXED)[step])
        trace.launched(at + US, at + 10 * US, 20 * US, step + 1, name=kernel)
    return trace.write(path)


def broken_graphs(path: Path) -> Path:
    """Most graph launches have no kernels: idle time cannot be told."""
    trace = TraceBuilder(rank=0)
    for step in range(6):
        at = MS * (step + 1)
        trace.label(at, 500 * US, DECODE).graph_launch(at + US, step + 1)
        if step in (0, 5):
            trace.kernel(at + 10 * US, 20 * US, step + 1)
    return trace.write(path)


def served_run(folder: Path) -> Path:
    run = RunBuilder()
    run.request("a", 0, [2 * MS, 3 * MS, 4 * MS], prompt=64)
    for seq in range(3):
        row = {
            "id": "cmpl-a-0-00c0ffee",
            "new": 1 if seq else 64,
            "computed": 63 + seq if seq else 0,
            "prompt": 64,
            "out": seq,
        }
        run.step((seq + 1) * MS, 900 * US, [row])
    return run.write(folder)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with ledger and requests, ingested by the console script."""
    folder = served_run(tmp_path_factory.mktemp("served") / "run")
    script = Path(sys.executable).with_name("stepscope")
    done = subprocess.run([script, "ingest", folder], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{folder / 'run.duckdb'}#abc123\n"), done.stderr
    assert done.stderr.splitlines()[-1].startswith("done in ")
    return folder / "run.duckdb"


def test_ingest_says_what_it_read_and_where_it_is(run: Run, tmp_path: Path) -> None:
    small_trace(tmp_path / "t.json")
    done = run("ingest", "t.json")
    assert done.code == 0
    assert done.out.startswith("t.duckdb#run-")
    assert done.err.splitlines()[0] == "read t.json: 9 events"
    again = run("ingest", "t.json")
    assert (again.code, again.out) == (0, done.out)
    assert again.err.startswith("already ingested: these files are run run-")
    quiet = run("ingest", "t.json", "-q", "-o", "other.duckdb")
    assert (quiet.code, quiet.err) == (0, "")


def test_ingest_names_the_run(run: Run, tmp_path: Path) -> None:
    for paths, target in (
        ((small_trace(tmp_path / "t.json"),), "a.duckdb"),
        ((served_run(tmp_path / "run"),), "b.duckdb"),
    ):
        assert run("ingest", *paths, "--name", "mine", "-o", target).code == 0
        assert json.loads(run("query", target, "select name from runs", "--json").out) == [{"name": "mine"}]


def test_ingest_says_what_it_left_out(run: Run, tmp_path: Path) -> None:
    small_trace(tmp_path / "dir" / "rank0.json")
    (tmp_path / "dir" / "rank1.json").write_bytes(b"")
    done = run("ingest", "dir")
    assert done.code == 0
    assert "left out rank1.json: is empty" in done.err
    text = (tmp_path / "dir" / "rank0.json").read_text()
    (tmp_path / "torn.json").write_text(text[: len(text) - 40])
    done = run("ingest", "torn.json")
    assert done.code == 0
    assert "warning: torn.json: " in done.err


def test_strict_turns_a_withheld_number_into_exit_5(run: Run, tmp_path: Path) -> None:
    broken_graphs(tmp_path / "t.json")
    done = run("ingest", "t.json", "--strict", "-q")
    assert done.code == 5
    assert done.out.startswith("t.duckdb#run-")  # the database stays
    assert done.err.splitlines()[0].startswith("error: withheld by ")
    assert done.err.splitlines()[1] == "hint: stepscope health t.duckdb"
    told = run("summary", "t.duckdb")
    assert told.code == 0
    assert "withheld" in told.out
    data = json.loads(run("summary", "t.duckdb", "--json").out)
    assert data["devices"][0]["idle_ns"] is None
    assert data["withheld"]["devices.idle_ns"]
    small_trace(tmp_path / "good.json")
    assert run("ingest", "good.json", "--strict", "-q").code == 0


UNREADABLE = {
    "missing": (lambda path: None, 3, "does not exist"),
    "empty": (lambda path: path.write_bytes(b""), 3, "is empty"),
    "text": (lambda path: path.write_text("hello\n"), 3, "has no format that stepscope reads"),
    "torn-gzip": (lambda path: path.write_bytes(b"\x1f\x8b\x08\x00"), 3, ""),
    "no-events": (lambda path: path.write_text('{"traceEvents": []}'), 5, "without a single usable event"),
    "folder": (lambda path: path.mkdir(), 3, "no recording in"),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_ingest_of_what_cannot_be_read(case: str, run: Run, tmp_path: Path) -> None:
    make, code, words = UNREADABLE[case]
    make(tmp_path / "t.json")
    done = run("ingest", "t.json", "-o", "out.duckdb")
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("error: ")
    assert words in done.err
    assert "\nhint: " in done.err
    assert not (tmp_path / "out.duckdb").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    "arguments",
    [(), ("ingest",), ("ingest", "--nope", "x"), ("nope",), ("query", "x.duckdb"), ("steps", "x", "--kind", "nope"),
     ("ingest", "t.json", "-o", ".")],
)  # fmt: skip
def test_usage_is_exit_2(arguments: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    small_trace(tmp_path / "t.json")
    done = run(*arguments)
    assert done.code == 2
    if arguments:
        assert done.out == ""
        assert done.err.startswith("error: ")


@pytest.mark.parametrize("command", READING)
def test_reading_commands(command: str, run: Run, database: Path) -> None:
    for name in (database, database.parent, f"{database}#abc123"):
        done = run(command, name)
        assert (done.code, done.err) == (0, ""), done.err
        assert done.out.strip()
    data = json.loads(run(command, database, "--json").out)
    assert data


@pytest.mark.parametrize("command", [*READING, "analyze", "query"])
def test_commands_on_what_is_no_run(command: str, run: Run, database: Path, tmp_path: Path) -> None:
    more = ("select 1",) if command == "query" else ()
    (tmp_path / "text.duckdb").write_text("hello")
    for name, code in (("missing.duckdb", 3), ("text.duckdb", 3), (tmp_path, 3), (f"{database}#nope", 2)):
        done = run(command, name, *more)
        assert (done.code, done.out) == (code, "")
        assert done.err.startswith("error: ")
        assert "\nhint: " in done.err
    assert "known: abc123" in done.err


def test_csv_and_json_hold_the_same_rows(run: Run, database: Path) -> None:
    for command, more in (("steps", ()), ("kernels", ("--by", "category")), ("query", ("select * from steps",))):
        table = list(csv.DictReader(io.StringIO(run(command, database, *more, "--csv").out)))
        data = json.loads(run(command, database, *more, "--json").out)
        assert len(table) == len(data) > 0
        assert list(table[0]) == list(data[0])


def test_analyze_again_changes_nothing(run: Run, database: Path) -> None:
    question = (database, "select * exclude (run_id) from steps order by step_id", "--json")
    before = run("query", *question).out
    done = run("analyze", database)
    assert (done.code, done.out, done.err) == (0, "", f"analyzed {database}#abc123\n")
    assert run("query", *question).out == before


def test_a_run_of_several_is_picked_by_its_id(run: Run, tmp_path: Path) -> None:
    small_trace(tmp_path / "t.json")
    run("ingest", served_run(tmp_path / "run"), "-o", "all.duckdb", "-q")
    newest = run("ingest", "t.json", "-o", "all.duckdb", "-q").out.strip()
    for name, expected in (
        ("all.duckdb", newest.split("#")[1]),
        ("all.duckdb#abc123", "abc123"),
        (newest, newest.split("#")[1]),
    ):
        rows = json.loads(run("query", name, "select run_id from runs where run_id = $run_id", "--json").out)
        assert rows == [{"run_id": expected}]
    assert "* abc123" in run("info", "all.duckdb#abc123").out


@pytest.mark.parametrize(
    "sql",
    ["select nope from steps", "selec 1", "", "select * from read_text('/etc/hostname')", "drop table runs",
     "select cast(name as integer) from kernels", "select $other", "select 1/0 as x; select error('stop')"],
)  # fmt: skip
def test_a_query_that_fails_says_why(sql: str, run: Run, database: Path) -> None:
    done = run("query", database, sql, "--json")
    assert (done.code, done.out) == (2, ""), done.out
    assert done.err.startswith("error: ")
    assert "hint: " in done.err


def test_a_query_without_rows_and_odd_values(run: Run, database: Path) -> None:
    assert json.loads(run("query", database, "select * from steps where false", "--json").out) == []
    assert run("query", database, "select 1 as a where false", "--csv").out == "a\n"
    odd = "select 'nan'::double as a, 170141183460469231731687303715884105727::hugeint as b, [1, null] as c, "
    odd += "{'k': 1.5} as d, null as e, '\"' as f"
    (row,) = json.loads(run("query", database, odd, "--json").out)
    assert row == {
        "a": None,
        "b": 170141183460469231731687303715884105727,
        "c": [1, None],
        "d": {"k": 1.5},
        "e": None,
        "f": '"',
    }


@pytest.mark.parametrize("command", READING)
def test_names_from_a_recording_cannot_steer_a_terminal(command: str, run: Run, tmp_path: Path) -> None:
    """Control characters in kernel names, labels, file names, versions and the names of a manifest."""
    small_trace(
        tmp_path / f"{ESCAPE.replace('/', '')}.json", kernel=ESCAPE, label=f"unknown {ESCAPE}", vllm_version=ESCAPE
    )
    done = run("ingest", ".", "-o", "t.duckdb")
    assert done.code == 0
    assert "\x1b" not in done.err and "\x07" not in done.err
    folder = served_run(tmp_path / "run")
    manifest = json.loads((folder / "manifest.json").read_text())
    for key in ("run_id", "name", "engine_version", "model", "device_name", "dtype"):
        manifest[key] = f"{key}{ESCAPE}"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    done = run("ingest", folder)
    assert "\x1b" not in done.out + done.err
    for target in ("t.duckdb", folder):
        done = run(command, target)
        assert done.code == (5 if command == "requests" and target == "t.duckdb" else 0)  # a trace names no requests
        assert not set(done.out + done.err) & {"\x1b", "\x07"}
    table = run("query", "t.duckdb", "select name from kernels")
    assert "\\x1b[31mred\\x07" in table.out and "\x1b" not in table.out
    assert json.loads(run("query", "t.duckdb", "select distinct name from kernels", "--json").out) == [{"name": ESCAPE}]
    assert "\x1b" not in run("query", "t.duckdb", f"select {ESCAPE}").err
    assert "\x1b" not in run("summary", f"t.duckdb#{ESCAPE}").err


def test_help_of_every_command(run: Run) -> None:
    listed = run("--help").out
    for name, (_, _, text) in cli.COMMANDS.items():
        assert f"  {name} " in listed
        assert text in " ".join(listed.split())
        done = run(name, "--help")
        assert done.code == 0
        assert done.out.startswith(f"Usage: stepscope {name} ")


def test_help_is_quick() -> None:
    """Under 0.2 s of CPU time, the interpreter's start included: what a command needs is imported in the command."""
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'from cli import main; main()', '--help'], check=True, stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)\n"
    )
    seconds = [
        float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        for _ in range(7)
    ]
    assert statistics.median(seconds) < 0.2, seconds


def test_help_imports_no_package_of_ours_and_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    print(' '.join(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    loaded = set(done.stderr.split())
    assert not loaded & {"duckdb", "polars", "pyarrow", "numpy", "numba", "plotly", "aiohttp", "analyzers", "profiler"}


def test_a_reader_that_goes_away_is_no_error(database: Path) -> None:
    script = Path(sys.executable).with_name("stepscope")
    with subprocess.Popen(
        [script, "query", database, "select range from range(500000)", "--csv"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(timeout=60)
    assert (process.returncode, errors) == (0, b"")
