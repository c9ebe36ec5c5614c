"""Which files an ingest reads, what each is for, and which reader takes it."""

from __future__ import annotations

import gzip
import os
import sqlite3
from pathlib import Path

import pytest
import zstandard

from traces.errors import UnreadableInput, UsageProblem
from traces.inputs import InputFile, expand_inputs, rank_of_name
from traces.sniff import HEAD_BYTES, open_head, pick_reader, reader_named

DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="sample recordings are not here")

TRACE = b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "k", "cat": "kernel", "ts": 1, "dur": 1}]}'
CAPTURE = TRACE.replace(b'"k"', b'"capture_32_FULL"')


def put(path: Path, content: bytes = TRACE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def roles(files: list[InputFile]) -> list[tuple[str, str]]:
    return [(item.path.name, item.role) for item in files]


def test_head_of_every_packing(tmp_path: Path) -> None:
    two_members = gzip.compress(TRACE[:30]) + gzip.compress(TRACE[30:])
    frames = zstandard.ZstdCompressor().compress(TRACE)
    assert open_head(put(tmp_path / "a.json")) == TRACE
    assert open_head(put(tmp_path / "a.json.gz", gzip.compress(TRACE))) == TRACE
    assert open_head(put(tmp_path / "plain.json.gz")) == TRACE  # judged by its bytes, not by its name
    assert open_head(put(tmp_path / "zipped.json", gzip.compress(TRACE))) == TRACE
    assert open_head(put(tmp_path / "a.json.zst", frames)) == TRACE
    assert open_head(put(tmp_path / "two.gz", two_members)) == TRACE[:30]  # one member is enough to tell
    assert open_head(put(tmp_path / "torn.gz", gzip.compress(os.urandom(4000))[:2000])) != b""
    assert open_head(put(tmp_path / "broken.gz", b"\x1f\x8b" + b"\xff" * 50)) == b""
    assert open_head(put(tmp_path / "broken.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 50)) == b""


def test_head_of_a_bomb_is_small(tmp_path: Path) -> None:
    zeros = bytes(30_000_000)
    assert len(open_head(put(tmp_path / "a.gz", gzip.compress(zeros)))) == HEAD_BYTES
    assert len(open_head(put(tmp_path / "a.zst", zstandard.ZstdCompressor().compress(zeros)))) == HEAD_BYTES


def test_paths_that_cannot_be_opened(tmp_path: Path) -> None:
    pipe, loop, dangling = tmp_path / "pipe.json", tmp_path / "loop.json", tmp_path / "dangling.json"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    dangling.symlink_to(tmp_path / "nowhere")
    for path, words in (
        (tmp_path / "gone.json", "does not exist"),
        (tmp_path, "is a directory"),
        (put(tmp_path / "empty.json", b""), "is empty"),
        (pipe, "is a pipe"),
        (loop, "cannot be reached"),
        (dangling, "is a link to nothing"),
        (tmp_path / ("n" * 300), "cannot be reached"),
        (Path("/dev/null"), "is no regular file"),
    ):
        with pytest.raises(UnreadableInput, match=words) as caught:
            open_head(path)
        assert caught.value.hint and caught.value.exit_code == 3
        with pytest.raises(UnreadableInput, match=words):
            pick_reader(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_file_without_permission(tmp_path: Path) -> None:
    path = put(tmp_path / "a.json")
    path.chmod(0)
    with pytest.raises(UnreadableInput, match="may not be read"):
        open_head(path)


def test_pick_reader_by_content(tmp_path: Path) -> None:
    assert pick_reader(put(tmp_path / "a.json")).name == "kineto"
    assert pick_reader(put(tmp_path / "a.json.gz", gzip.compress(TRACE))).name == "kineto"
    assert pick_reader(put(tmp_path / "list.json", b'[{"ph": "X", "name": "k", "ts": 1, "dur": 1}]')).name == "kineto"
    database = tmp_path / "renamed.bin"
    connection = sqlite3.connect(database)
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    assert pick_reader(database).name == "nsys"
    assert pick_reader(put(tmp_path / "a.nsys-rep", b"\x00")).name == "nsys"
    with pytest.raises(UnreadableInput, match="has no format that stepscope reads") as caught:
        pick_reader(put(tmp_path / "a.txt", b"once upon a time"))
    assert "torch-profiler JSON" in caught.value.hint
    with pytest.raises(UnreadableInput, match="cannot be decompressed"):
        pick_reader(put(tmp_path / "broken.gz", b"\x1f\x8b" + b"\xff" * 50))
    with pytest.raises(UsageProblem, match="unknown reader pcap; known: nsys, "):
        reader_named("pcap")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank0.1773709742341309550.pt.trace.json.gz", 0),
        ("graph_capture_rank_3.1773709742341309550.pt.trace.json.gz", 3),
        ("bs_32_rank12.json.gz", 12),
        ("1795965119.9996974-TP-5.trace.json.gz", 5),
        ("1782799835.6885648-TP-2-DECODE.trace.json.gz", 2),
        ("id-TP-1-DP-3-PP-0-EP-1-EXTEND.trace.json.gz", 1),
        ("dp0_pp0_tp1_dcp0_ep1_rank1.1773.pt.trace.json.gz", 1),
        ("dp0_pp0_tp7.json", 7),
        ("id-DP-2.trace.json.gz", 2),
        ("RANK-4.json", 4),
        ("trace.json", None),
        ("allreduce_tp4.json", None),  # a size, not a rank
        ("frankrank.json", None),
        ("prank0.json", None),
        ("rank123456789.json", None),
    ],
)
def test_rank_of_name(name: str, rank: int | None) -> None:
    assert rank_of_name(name) == rank


def test_roles_in_a_directory(tmp_path: Path) -> None:
    put(tmp_path / "rank0.1.pt.trace.json.gz", gzip.compress(TRACE))
    put(tmp_path / "rank1.1.pt.trace.json.gz", gzip.compress(TRACE))
    put(tmp_path / "host_1.async_llm.1.pt.trace.json.gz", gzip.compress(TRACE))
    put(tmp_path / "capture/bs_32_rank0.json", TRACE)
    put(tmp_path / "capture/graph_capture_rank_0.1.pt.trace.json", TRACE)
    put(tmp_path / "captured.json", CAPTURE)
    put(tmp_path / "telemetry.jsonl", b'{"ts_ns": 1}')
    put(tmp_path / "model/config.json", b'{"hidden_size": 8}')
    put(tmp_path / "notes.json", b'{"a": 1}')
    put(tmp_path / "notes.txt", b"text")
    put(tmp_path / ".hidden/rank9.json")
    files = expand_inputs([str(tmp_path)])
    assert sorted(roles(files)) == [
        ("bs_32_rank0.json", "capture"),
        ("captured.json", "capture"),
        ("graph_capture_rank_0.1.pt.trace.json", "capture"),
        ("host_1.async_llm.1.pt.trace.json.gz", "frontend"),
        ("rank0.1.pt.trace.json.gz", "trace"),
        ("rank1.1.pt.trace.json.gz", "trace"),
        ("telemetry.jsonl", "telemetry"),
    ]
    assert {item.path.name: item.rank for item in files if item.role == "trace"} == {
        "rank0.1.pt.trace.json.gz": 0, "rank1.1.pt.trace.json.gz": 1,
    }  # fmt: skip
    assert expand_inputs([str(tmp_path)]) == files  # stable order


def test_replicas_that_count_from_zero_are_numbered_through(tmp_path: Path) -> None:
    for name in (
        "dp0_pp0_tp0_dcp0_ep0_rank0.1.json",
        "dp0_pp0_tp1_dcp0_ep1_rank1.1.json",
        "dp1_pp0_tp0_dcp0_ep0_rank0.1.json",
    ):
        put(tmp_path / name)
    assert [(item.path.name[:3], item.rank) for item in expand_inputs([str(tmp_path)])] == [
        ("dp0", 0),
        ("dp0", 1),
        ("dp1", 2),
    ]


def test_stages_of_one_rank_share_it(tmp_path: Path) -> None:
    put(tmp_path / "id-TP-1-DECODE.trace.json")
    put(tmp_path / "id-TP-1-EXTEND.trace.json")
    files = expand_inputs([str(tmp_path)])
    assert [(item.rank, item.stage) for item in files] == [(1, "DECODE"), (1, "EXTEND")]


def test_run_directory(tmp_path: Path) -> None:
    put(tmp_path / "run/manifest.json", b"{}")
    put(tmp_path / "run/trace/rank0.json")
    put(tmp_path / "run/model/tokenizer_config_extra.json")
    assert roles(expand_inputs([str(tmp_path / "run")])) == [("manifest.json", "manifest"), ("rank0.json", "trace")]
    put(tmp_path / "other/manifest.json", b"{}")
    with pytest.raises(UsageProblem, match="holds 2 run directories") as caught:
        expand_inputs([str(tmp_path)])
    assert caught.value.exit_code == 2


def test_each_file_once(tmp_path: Path) -> None:
    put(tmp_path / "a.json")
    (tmp_path / "link.json").symlink_to(tmp_path / "a.json")
    inside = tmp_path / "sub"
    inside.mkdir()
    (inside / "up").symlink_to(tmp_path)  # a loop of directories
    found = expand_inputs([str(tmp_path / "a.json"), str(tmp_path), str(tmp_path / "*.json"), str(inside)])
    assert roles(found) == [("a.json", "trace")]


def test_globs(tmp_path: Path) -> None:
    for name in ("x1.json", "x2.json", "y.json", "deep/x3.json"):
        put(tmp_path / name)
    assert roles(expand_inputs([str(tmp_path / "x*.json")])) == [("x1.json", "trace"), ("x2.json", "trace")]
    assert len(expand_inputs([str(tmp_path / "**" / "x*.json")])) == 3
    odd = put(tmp_path / "trace[0].json")
    assert [item.path for item in expand_inputs([str(odd)])] == [odd]  # a file whose name looks like a pattern
    with pytest.raises(UnreadableInput, match="matches no file"):
        expand_inputs([str(tmp_path / "z*.json")])


def test_unreadable_files_beside_a_readable_one_are_listed(tmp_path: Path) -> None:
    put(tmp_path / "rank0.json")
    put(tmp_path / "rank1.json", b"")
    put(tmp_path / "rank2.json.gz", b"\x1f\x8b" + b"\xff" * 50)
    os.mkfifo(tmp_path / "rank3.json")
    (tmp_path / "rank4.json").symlink_to(tmp_path / "rank4.json")
    problems = {item.path.name: item.problem for item in expand_inputs([str(tmp_path)])}
    assert problems["rank0.json"] is None
    assert "is empty" in (problems["rank1.json"] or "")
    assert problems["rank2.json.gz"] == "cannot be decompressed"
    assert problems["rank3.json"] == "is a pipe"
    assert "cannot be reached" in (problems["rank4.json"] or "")


def test_nothing_readable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="does not exist"):
        expand_inputs([str(tmp_path / "gone.json")])
    with pytest.raises(UnreadableInput, match="no recording in") as caught:
        expand_inputs([str(tmp_path)])
    assert ".json.gz" in caught.value.hint
    empty = put(tmp_path / "rank0.json", b"")
    with pytest.raises(UnreadableInput, match="is empty"):
        expand_inputs([str(empty)])
    put(tmp_path / "rank1.json", b"")
    with pytest.raises(UnreadableInput, match=r"\(and 1 more files\)"):
        expand_inputs([str(tmp_path)])
    with pytest.raises(UnreadableInput, match="is a run database already"):
        expand_inputs([str(put(tmp_path / "run.duckdb", b"DUCK"))])
    with pytest.raises(UnreadableInput, match="has no format"):
        expand_inputs([str(put(tmp_path / "story.txt", b"once upon a time"))])
    put(tmp_path / "half/manifest.json", b"{}")
    with pytest.raises(UnreadableInput, match="no recording in"):
        expand_inputs([str(tmp_path / "half")])


def test_report_beside_its_export_is_left_out(tmp_path: Path) -> None:
    put(tmp_path / "a.nsys-rep", b"\x00")
    put(tmp_path / "b.nsys-rep", b"\x00")
    put(tmp_path / "a.sqlite", b"SQLite format 3\x00")
    assert [item.path.name for item in expand_inputs([str(tmp_path)])] == ["a.sqlite", "b.nsys-rep"]


@needs_data
def test_samples() -> None:
    found = {
        str(item.path.relative_to(DATA / "gpu-traces")): item for item in expand_inputs([str(DATA / "gpu-traces")])
    }
    captures = [name for name, item in found.items() if item.role == "capture"]
    assert len(captures) == 3 and all("/capture/" in name for name in captures)
    assert sum(item.role == "trace" for item in found.values()) == 7 and len(found) == 10
    assert found["b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz"].stage == "DECODE"


@needs_data
def test_captures_are_told_by_their_content_too(tmp_path: Path) -> None:
    for number, source in enumerate(sorted((DATA / "gpu-traces").glob("*/capture/*.json.gz"))):
        put(tmp_path / f"renamed{number}.json.gz", source.read_bytes())
    found = expand_inputs([str(tmp_path)])
    assert [item.role for item in found] == ["capture"] * 3
