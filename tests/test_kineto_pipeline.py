"""From bytes to sink: compression, pipes, hashes, progress, errors on the way, and the compiled code's cache."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import kineto_oracle as oracle
import pyarrow as pa
import pytest
import zstandard

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport
from traces.readers.kineto import KinetoReader
from traces.readers.kineto_json import rows
from traces.readers.kineto_json.decimals import time_ns, whole_number
from traces.readers.kineto_json.pipeline import read_document

ROOT = Path(__file__).resolve().parents[1]
EVENTS = [
    {"ph": "X", "cat": "kernel", "name": f"k{index % 50}", "ts": index, "dur": 0.5, "args": {"stream": index % 3}}
    for index in range(3000)
]
TEXT = json.dumps({"traceEvents": EVENTS, "baseTimeNanoseconds": 9}).encode()


def _load(path: Path, **options: Any) -> tuple[list[oracle.Row], ReadReport]:
    sink = oracle.ListSink()
    report = read_document(path, 0, sink, ReadOptions(), **options)
    return sink.rows(), report


def _members(parts: int) -> bytes:
    step = len(TEXT) // parts + 1
    return b"".join(gzip.compress(TEXT[at : at + step]) for at in range(0, len(TEXT), step))


def _frames(parts: int) -> bytes:
    step = len(TEXT) // parts + 1
    return b"".join(zstandard.compress(TEXT[at : at + step]) for at in range(0, len(TEXT), step))


WRAPPED = {
    "plain.json": TEXT,
    "plain-named.json.gz": TEXT,
    "one-member.json": gzip.compress(TEXT),
    "five-members.json.gz": _members(5),
    "padded.json.gz": gzip.compress(TEXT) + b"\0" * 600,
    "one-frame.json.zst": zstandard.compress(TEXT),
    "frames-named.json.gz": _frames(4),
    "unsized-frame.zst": zstandard.ZstdCompressor().compressobj().compress(TEXT),
}
_frame = zstandard.ZstdCompressor().compressobj()
WRAPPED["unsized-frame.zst"] = _frame.compress(TEXT) + _frame.flush()


@pytest.mark.parametrize("name", sorted(WRAPPED))
def test_compression_is_told_by_content(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(WRAPPED[name])
    got, report = _load(path, block_bytes=5000)
    assert got == oracle.read(TEXT.decode())[0]
    assert report.sha256 == hashlib.sha256(WRAPPED[name]).hexdigest()
    assert (report.bytes_read, report.truncated, report.base_ns) == (len(WRAPPED[name]), None, 9)


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress, lambda text: _members(3)])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.9999])
def test_cut_compression_keeps_what_was_written(pack: Any, share: float, tmp_path: Path) -> None:
    content = pack(TEXT)
    path = tmp_path / "cut.json.gz"
    path.write_bytes(content[: int(len(content) * share)])
    if pack is zstandard.compress and share < 0.5:  # zstd gives a block back only when it is whole
        with pytest.raises(UnreadableInput, match="holds no list"):
            _load(path)
        return
    got, report = _load(path)
    assert report.truncated
    assert pack is zstandard.compress or "ends early" in report.truncated
    assert got == oracle.read(TEXT.decode())[0][: len(got)]
    assert len(got) >= int(3000 * share * 0.4)


def test_corrupt_compression_keeps_what_came_before(tmp_path: Path) -> None:
    texts = [json.dumps(EVENTS[:1500])[:-1].encode(), (", " + json.dumps(EVENTS[1500:])[1:]).encode()]
    second = bytearray(gzip.compress(texts[1]))
    second[len(second) // 2] ^= 0xFF
    path = tmp_path / "corrupt.json.gz"
    path.write_bytes(gzip.compress(texts[0]) + bytes(second))
    got, report = _load(path)
    assert len(got) >= 1500
    assert report.truncated
    assert report.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_bytes_behind_the_gzip_data_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tail.json.gz"
    path.write_bytes(gzip.compress(TEXT) + b"garbage")
    got, report = _load(path)
    assert len(got) == 3000
    assert report.truncated == "bytes after the end of the gzip data were not read"


@pytest.mark.parametrize("pack", [gzip.compress, zstandard.compress], ids=["gzip", "zstd"])
def test_data_that_shrank_a_thousandfold_stay_bounded(pack: Any, tmp_path: Path) -> None:
    path = tmp_path / "bomb.json"
    path.write_bytes(pack(b'[{"ph":"X","ts":1}' + b" " * 120_000_000 + b"]"))
    tracemalloc.start()
    got, report = _load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(got), report.truncated) == (1, None)
    assert peak < 80_000_000


@pytest.mark.parametrize("content", [TEXT, gzip.compress(TEXT)], ids=["plain", "gzip"])
def test_a_pipe_is_read_as_it_is_written(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as pipe:
            for at in range(0, len(content), 7001):
                pipe.write(content[at : at + 7001])

    writer = threading.Thread(target=write)
    writer.start()
    got, report = _load(path)
    writer.join()
    assert len(got) == 3000
    assert report.sha256 == hashlib.sha256(content).hexdigest()


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.json", tmp_path):
        with pytest.raises(UnreadableInput) as caught:
            _load(path)
        assert caught.value.hint
    (tmp_path / "no.json.gz").write_bytes(b"\x1f\x8bthis is no gzip")
    with pytest.raises(UnreadableInput, match=r"corrupt|holds no"):
        _load(tmp_path / "no.json.gz")


class _FailingSink:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def append(self, table: str, data: pa.Table) -> None:
        raise self.error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("x")])
def test_an_error_of_the_sink_ends_the_reading(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    before = threading.active_count()
    with pytest.raises(type(error)):
        read_document(path, 0, _FailingSink(error), ReadOptions(), block_bytes=2000)
    assert threading.active_count() == before


def test_an_interrupt_leaves_no_thread(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    before = threading.active_count()

    def interrupt(_bytes: int, _events: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_document(path, 0, oracle.ListSink(), ReadOptions(progress=interrupt), block_bytes=2000)
    assert threading.active_count() == before


def test_progress_ends_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    seen: list[tuple[int, int]] = []
    read_document(path, 0, oracle.ListSink(), ReadOptions(progress=lambda *now: seen.append(now)))
    assert seen[-1] == (len(TEXT), 3000)
    assert seen == sorted(seen)


def test_batches_and_tables_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More rows than a batch, more strings than the first table and text buffer, one longer than the buffer."""
    monkeypatch.setattr(rows, "BATCH_ROWS", 1000)
    names = [f"name {index} " + "x" * (index % 120) for index in range(17_000)]
    names[9000] = "y" * 1_500_000
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": name, "ts": index} for index, name in enumerate(names)]))
    for compiled in (True, False):
        got, report = _load(path, compiled=compiled)
        assert [row["name"] for row in got] == names
        assert report.kept == {"other": 17_000}


def test_numbers_of_both_parsers_agree(tmp_path: Path) -> None:
    texts = ["0", "-0", "+5", ".5", "5.", ".", "1e5", "1e-5", "1e+2", "1e00005", "1e000005", "1_2", "0x10", "--1"]
    texts += ["9" * count for count in range(15, 45)] + ["0" * 50 + "7", "7." + "0" * 60, "0.0" + "9" * 60]
    path = tmp_path / "numbers.json"
    path.write_text("[" + ",".join(f'{{"ph":"X","ts":{text},"pid":"{text}"}}' for text in texts) + "]")
    got, _ = _load(path, compiled=True)
    assert [row["ts"] for row in got] == [_known(time_ns(text.encode())) for text in texts]
    assert [row["pid"] for row in got] == [_known(whole_number(text.encode())) for text in texts]
    assert got == _load(path, compiled=False)[0]


def _known(value: int) -> int | None:
    return None if value == rows.NULL else value


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[1] + "/tests")
import kineto_oracle as oracle
from traces.readers.base import ReadOptions
from traces.readers.kineto_json.pipeline import read_document
sink = oracle.ListSink()
read_document(Path(sys.argv[2]), 0, sink, ReadOptions(), compiled=True)
print(len(sink.rows()), "numba" in sys.modules)
"""


def _run_apart(root: Path, path: Path, **environment: str) -> str:
    command = [sys.executable, "-c", SCRIPT, str(root), str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment, cwd=path.parent
    )
    return done.stdout.strip()


def test_compiled_code_can_be_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TEXT)
    assert _run_apart(ROOT, path, STEPSCOPE_NO_JIT="1") == "3000 False"


def test_sniffing(tmp_path: Path) -> None:
    reader = KinetoReader()
    path = tmp_path / "x.json"
    assert reader.sniff(path, TEXT[:200])
    assert reader.sniff(path, b'\xef\xbb\xbf [ {"name": "a", "ph": "X"')
    assert reader.sniff(path, b'\n {\n "schemaVersion": 1,')
    assert reader.sniff(tmp_path / "rank0.pt.trace.json.gz", b'{"metadata": {')
    assert not reader.sniff(path, b'{"a": 1}')
    assert not reader.sniff(path, b"[1, 2]")
    assert not reader.sniff(path, b"SQLite format 3\0")
