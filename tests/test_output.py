"""Where commands write: never over a run database, through what is no file, whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from shell import stepscope
from test_commands import small_trace

import analyzers.export
import analyzers.report.perfetto
from cli import Composition
from traces.ingest import IngestOptions, ingest_once

WRITERS: dict[str, tuple[str, ...]] = {
    "report": ("report", "t.duckdb"),
    "export": ("export", "t.duckdb"),
    "compare": ("compare", "t.duckdb", "t.duckdb"),
}


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """t.duckdb in the current folder."""
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "t.duckdb"
    ingest_once([str(small_trace(tmp_path / "t.json"))], target, IngestOptions(finish=Composition().analysis()))
    (tmp_path / "t.json").unlink()
    return target


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("way", ["itself", "link", "hard link", "run directory"])
def test_a_run_database_is_never_replaced(writer: str, way: str, database: Path, tmp_path: Path) -> None:
    out = {"itself": "t.duckdb", "link": "page.html", "hard link": "hard.html", "run directory": "run/run.duckdb"}[way]
    if way == "link":
        Path(out).symlink_to("t.duckdb")
    elif way != "itself":
        Path(out).parent.mkdir(exist_ok=True)
        Path(out).hardlink_to("t.duckdb")
    before = database.read_bytes(), names(tmp_path)
    done = stepscope(*WRITERS[writer], "-o", out)
    assert (done.code, done.out) == (2, "")
    assert f"error: {out} is a run database: nothing was written\nhint: give another file name" in done.err
    assert (database.read_bytes(), names(tmp_path)) == before


def test_tables_never_replace_a_run_database(database: Path, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "kernels.parquet").hardlink_to(database)
    done = stepscope("export", "t.duckdb", "--parquet", "tables")
    assert done.code == 2 and "tables/kernels.parquet is a run database" in done.err and "\nhint: " in done.err
    assert names(tmp_path / "tables") == ["kernels.parquet"]


@pytest.mark.parametrize("way", ["itself", "link", "folder"])
def test_an_ingest_does_not_replace_what_it_reads(way: str, tmp_path: Path) -> None:
    trace = small_trace(tmp_path / "in.json")
    (tmp_path / "link").symlink_to("in.json")
    content = trace.read_bytes()
    source, out = {"itself": ("in.json", "in.json"), "link": ("in.json", "link"), "folder": (".", "in.json")}[way]
    done = stepscope("ingest", source, "-o", out)
    assert (done.code, trace.read_bytes()) == (2, content)
    assert "is one of the files to read: nothing was written\nhint: " in done.err


def test_an_ingest_into_a_link_fills_what_it_points_at(tmp_path: Path) -> None:
    small_trace(tmp_path / "in.json")
    (tmp_path / "link.duckdb").symlink_to("real.duckdb")
    assert stepscope("ingest", "in.json", "-o", "link.duckdb", "-q").code == 0
    assert (tmp_path / "link.duckdb").is_symlink() and (tmp_path / "real.duckdb").is_file()
    assert stepscope("summary", "link.duckdb").code == 0


def test_an_ingest_into_what_is_no_file(tmp_path: Path) -> None:
    small_trace(tmp_path / "in.json")
    os.mkfifo("pipe")
    for out in ("pipe", "/dev/null"):
        done = stepscope("ingest", "in.json", "-o", out)
        assert done.code == 2 and f"{out} is no regular file\nhint: " in done.err


@pytest.mark.parametrize("writer", WRITERS)
def test_a_pipe_and_a_link_are_written_through(writer: str, tmp_path: Path) -> None:
    os.mkfifo("pipe")
    (tmp_path / "dangling").symlink_to("made")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append(Path("pipe").read_bytes()))
    reader.start()
    assert stepscope(*WRITERS[writer], "-o", "pipe").code == 0
    reader.join(timeout=60)
    assert stepscope(*WRITERS[writer], "-o", "dangling").code == 0
    assert Path("pipe").is_fifo() and Path("dangling").is_symlink()
    assert len(found[0]) > 500 and len((tmp_path / "made").read_bytes()) > 500
    assert stepscope(*WRITERS[writer], "-o", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("writer", WRITERS)
def test_a_missing_folder_is_made(writer: str, tmp_path: Path) -> None:
    assert stepscope(*WRITERS[writer], "-o", "a/b/c.out").code == 0
    assert names(tmp_path / "a" / "b") == ["c.out"]
    (tmp_path / "file").touch()
    done = stepscope(*WRITERS[writer], "-o", "file/x.out")
    assert done.code == 2 and "error: cannot write file/x.out: Not a directory\nhint: " in done.err


def test_tables_beside_a_folder_called_tables(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    assert stepscope("export", "t.duckdb", "--parquet", ".").code == 0
    assert (tmp_path / "kernels.parquet").is_file() and (tmp_path / "tables").is_dir()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_tables_are_replaced_all_or_none(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "runs.parquet").write_text("before")
    blocked = folder / "sources.parquet"
    blocked.mkdir() if kind == "folder" else blocked.symlink_to("elsewhere")
    done = stepscope("export", "t.duckdb", "--parquet", "out")
    assert done.code == 2 and "error: out/sources.parquet is " in done.err and "\nhint: " in done.err
    assert names(folder) == ["runs.parquet", "sources.parquet"]
    assert (folder / "runs.parquet").read_text() == "before"


def test_tables_come_back_where_one_cannot_be_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "runs.parquet").write_text("before")
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if self.name == "sources.parquet":
            raise OSError(5, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    done = stepscope("export", "t.duckdb", "--parquet", "out")
    assert done.code == 2 and "cannot write out: Input/output error" in done.err
    assert names(folder) == ["runs.parquet"] and (folder / "runs.parquet").read_text() == "before"


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
@pytest.mark.parametrize("what", ["-o", "--parquet"])
def test_a_signal_leaves_nothing_half_made(
    what: str, number: signal.Signals, code: int, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(*_values: object, **_more: object) -> int:
        os.kill(os.getpid(), number)
        return 0

    monkeypatch.setattr(analyzers.report.perfetto.TraceWriter, "write", end)
    monkeypatch.setattr(analyzers.export, "_write_table", end)
    done = stepscope("export", "t.duckdb", what, "new/deep/out")
    assert done.code == code and done.err.endswith(f"error: {word}\n")
    assert names(tmp_path) == ["t.duckdb"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.fixture
def shell(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Runs a line of bash in which `stepscope` is ours: exit code, stderr."""
    folder = Path(sys.executable).parent

    def run(line: str, **more: str) -> tuple[int, str]:
        environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", **more}
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, env=environment)
        return done.returncode, done.stderr

    return run


FULL = (
    "summary t.duckdb", "summary t.duckdb --json", "kernels t.duckdb --csv", "compare t.duckdb t.duckdb",
    "export t.duckdb --prometheus", "explain idle", "query t.duckdb 'select 1'", "--help",
)  # fmt: skip


@pytest.mark.parametrize("command", FULL)
def test_standard_output_that_cannot_be_written(command: str, shell: Callable[[str], tuple[int, str]]) -> None:
    said = "error: cannot write the output: No space left on device\nhint: free space, or send it elsewhere\n"
    code, err = shell(f"stepscope {command} > /dev/full")
    assert code == 2 and err.endswith(said) and "Traceback" not in err
    code, err = shell(f"stepscope {command} >&-")
    assert code == 0 and "Traceback" not in err


def test_closed_and_full_error_streams(shell: Callable[[str], tuple[int, str]]) -> None:
    assert shell("stepscope summary nosuch 2>/dev/full")[0] == 3
    assert shell("stepscope summary nosuch <&- >&- 2>&-")[0] == 3
    assert shell("stepscope summary t.duckdb <&- >&- 2>&-")[0] == 0


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_an_encoding_that_lacks_our_characters(encoding: str, shell: Callable[..., tuple[int, str]]) -> None:
    for command in (
        "summary t.duckdb",
        "query t.duckdb \"select '…'\"",
        "query t.duckdb \"select '…'\" --csv",
        "explain",
    ):
        code, err = shell(f"stepscope {command} > out.txt", PYTHONIOENCODING=encoding)
        assert code == 0 and "Traceback" not in err
