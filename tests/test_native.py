"""Machine code of the parser that is kept on disk: used without the compiler, made again where it does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from trace_builder import DECODE, US, TraceBuilder

from traces.readers.kineto_json import native
from traces.readers.kineto_json.pipeline import SMALL_BYTES

ROOT = Path(__file__).resolve().parents[1]
CODE = {"one": ("symbol_one", b"\0\1\2" * 100), "two": ("symbol_two", b"")}
SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from traces.readers.kineto_json.native import functions
import numpy as np
text = np.frombuffer(b'"abc" ' + bytes(200), dtype=np.uint8)
state = np.array([1, 0, 0, 0])
at = text.ctypes.data
print(functions()["skip_value"](at, at + 6, state.ctypes.data) - at, "numba" in sys.modules)
"""


def run(**environment: str) -> str:
    command = [sys.executable, "-c", SCRIPT, str(ROOT)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment
    ).stdout.strip()


def test_code_that_was_kept_needs_no_compiler() -> None:
    native.functions()
    assert run() == "5 False"


def test_an_ingest_loads_neither_compiler_nor_frames(tmp_path: Path) -> None:
    """They take longer to load than a common trace to read, and a hundred megabytes."""
    native.functions()
    trace = TraceBuilder(rank=0).label(1_000 * US, 90 * US, DECODE)
    for number in range(20_000):  # more than is read without compiled code
        trace.launch(1_001 * US + number, number + 1, dur=1)
    trace.kernel(1_010 * US, US, 1)
    path = trace.write(tmp_path / "a.json")
    assert path.stat().st_size > SMALL_BYTES
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; "
        "from traces.ingest import IngestOptions, ingest_once; "
        f"ingest_once([{str(path)!r}], Path({str(tmp_path / 'a.duckdb')!r}), IngestOptions()); "
        "print(sorted({'numba', 'polars', 'llvmlite'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "['llvmlite']\n"


def test_what_is_packed_comes_out_again() -> None:
    assert native.unpack(native.pack(CODE)) == CODE


@pytest.mark.parametrize("where", [0, 31, 32, 40, -1])
def test_damage_is_noticed(where: int) -> None:
    data = bytearray(native.pack(CODE))
    data[where] ^= 1
    assert native.unpack(bytes(data)) is None
    assert native.unpack(bytes(data[:where])) is None


def test_nothing_is_no_code() -> None:
    assert native.unpack(b"") is None


def test_kept_code_is_looked_for_in_the_chosen_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert native._kept() is None
    native._keep(CODE)
    assert native._kept() == CODE
    assert [item.name for item in (tmp_path / "cache").iterdir()] == [native.file_name()]
    (tmp_path / "cache" / native.file_name()).write_bytes(b"torn")
    assert native._kept() is None


def test_code_that_anybody_could_have_put_there_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    native._keep(CODE)
    (tmp_path / native.file_name()).chmod(0o666)
    assert native._kept() is None


def test_no_place_to_keep_code_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    native._keep(CODE)
    assert native._kept() is None


def test_code_without_its_function_is_refused() -> None:
    native.functions()
    code = native._kept()
    assert code is not None
    with pytest.raises(ImportError, match="lacks a function"):
        native._load({name: ("nowhere", data) for name, (_, data) in code.items()})
