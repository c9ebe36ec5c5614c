"""The readers of what the client and the server's /metrics left: exact, and forgiving of torn and hostile files."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai_server import openai_server, well_behaved

from profiler.client import run_plan
from profiler.requestlog import RequestLog, RequestRecord
from profiler.workloads.plan import build_plan
from traces.clock import MOST_NS
from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport
from traces.readers.metrics import MetricsReader
from traces.readers.requests import RequestsReader
from traces.readers.staging import LOG_TABLES

BASE_NS = 1_795_981_680_719_750_231


class Tables:
    """A sink that keeps what it is given."""

    def __init__(self) -> None:
        self.chunks: dict[str, list[pa.Table]] = {}

    def append(self, table: str, data: pa.Table) -> None:
        assert data.schema.equals(LOG_TABLES[table])
        self.chunks.setdefault(table, []).append(data)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for chunk in self.chunks.get(table, []) for row in chunk.to_pylist()]


def record(number: int = 0, **given: Any) -> RequestRecord:
    tokens = given.get("token_ns", [BASE_NS + 10, BASE_NS + 20])
    values: dict[str, Any] = {
        "client_request_id": f"control-x-r{number:05d}", "pass_name": "control", "index": number, "session_id": "s",
        "parent_session_id": None, "turn": number, "planned_ns": None, "sent_ns": BASE_NS, "late_ns": 3,
        "first_token_ns": tokens[0] if tokens else None, "last_token_ns": tokens[-1] if tokens else None,
        "finished_ns": BASE_NS + 30, "prompt_tokens": 7, "cached_tokens": 0, "output_tokens": len(tokens),
        "status": "ok", "error": None, "http_status": 200, "finish_reason": "length", "tool_ns": 4, "think_ns": 5,
        "token_source": "ids", "token_ns": tokens,
    }  # fmt: skip
    return RequestRecord(**values | given)


def read(path: Path, src: int = 3) -> tuple[ReadReport, Tables]:
    tables = Tables()
    return RequestsReader().read(path, src, tables, ReadOptions()), tables


def write(path: Path, *lines: bytes) -> Path:
    path.write_bytes(b"".join(lines))
    return path


def test_every_column_arrives(tmp_path: Path) -> None:
    first = record(planned_ns=BASE_NS - 1, parent_session_id="p")
    second = record(1, status="error", error='HTTP 500: "x"\n', token_ns=[], cached_tokens=None, output_tokens=None)
    with RequestLog(tmp_path / "r") as log:
        log.append(first)
        log.append(second)
    report, tables = read(tmp_path / "r")
    common = {"src": 3, "pass": "control", "session_id": "s", "sent_ns": BASE_NS, "tool_ns": 4, "think_ns": 5}
    common |= {"finished_ns": BASE_NS + 30, "prompt_tokens": 7}
    assert tables.rows("requests") == [
        common | {
            "client_request_id": "control-x-r00000", "parent_session_id": "p", "turn": 0, "planned_ns": BASE_NS - 1,
            "first_token_ns": BASE_NS + 10, "last_token_ns": BASE_NS + 20, "cached_tokens": 0, "output_tokens": 2,
            "status": "ok", "error": None,
        },
        common | {
            "client_request_id": "control-x-r00001", "parent_session_id": None, "turn": 1, "planned_ns": None,
            "first_token_ns": None, "last_token_ns": None, "cached_tokens": None, "output_tokens": None,
            "status": "error", "error": 'HTTP 500: "x"\n',
        },
    ]  # fmt: skip
    assert tables.rows("tokens") == [
        {"src": 3, "client_request_id": "control-x-r00000", "i": 0, "ts_ns": BASE_NS + 10},
        {"src": 3, "client_request_id": "control-x-r00000", "i": 1, "ts_ns": BASE_NS + 20},
    ]
    assert report.kept == {"requests": 2, "tokens": 2} and report.events == 2
    assert report.truncated is None and report.dropped == {}
    assert report.bytes_read == (tmp_path / "r").stat().st_size and len(report.sha256 or "") == 64


def test_what_the_client_writes_is_what_the_reader_reads(tmp_path: Path) -> None:
    out = tmp_path / "requests.jsonl"
    plan = build_plan("agent:sessions=2,turns=2,output=5,tool_wait=0,stagger=0", 0, max_context_tokens=8000)

    async def main() -> int:
        async with openai_server(well_behaved(cached=16)) as server:
            result = await run_plan(
                plan, base_url=server.base_url, model="m", pass_name="profiled", cache_salt=None, out_path=out,
                stop=asyncio.Event(),
            )  # fmt: skip
            return result.output_tokens

    output_tokens = asyncio.run(main())
    assert RequestsReader().sniff(out, out.read_bytes()[:4096])
    report, tables = read(out)
    requests = tables.rows("requests")
    assert report.kept == {"requests": 4, "tokens": 20} and output_tokens == 20
    assert sum(row["output_tokens"] for row in requests) == 20
    assert {(row["pass"], row["status"], row["cached_tokens"]) for row in requests} == {("profiled", "ok", 16)}
    for row in requests:
        times = [
            token["ts_ns"] for token in tables.rows("tokens") if token["client_request_id"] == row["client_request_id"]
        ]
        assert (times[0], times[-1], len(times)) == (row["first_token_ns"], row["last_token_ns"], row["output_tokens"])


def test_a_torn_last_line_is_left_out_and_reported(tmp_path: Path) -> None:
    line = record(1).line()
    report, tables = read(write(tmp_path / "r", record().line(), line[:-40]))
    assert [row["turn"] for row in tables.rows("requests")] == [0]
    assert report.truncated == f"the last line is cut off after {len(line) - 40} bytes"
    assert report.dropped == {"torn line": 1} and report.events == 2


def test_a_whole_last_line_without_its_line_end_is_kept(tmp_path: Path) -> None:
    report, tables = read(write(tmp_path / "r", record().line(), record(1).line().rstrip()))
    assert [row["turn"] for row in tables.rows("requests")] == [0, 1] and report.truncated is None


@pytest.mark.parametrize(
    "hostile",
    [
        b"nonsense",
        b"[1,2]",
        b"{}",
        b'{"stepscope_request":2,"client_request_id":"x","status":"ok"}',
        b'{"stepscope_request":1,"status":"ok"}',
        b'{"stepscope_request":1,"client_request_id":null,"status":"ok"}',
        b'{"stepscope_request":1,"client_request_id":"x"}',
        b'{"stepscope_request":1,"client_request_id":"x","status":"ok","turn":"3"}',
        b'{"stepscope_request":1,"client_request_id":"x","status":"ok","turn":9223372036854775808}',
        b'{"stepscope_request":1,"client_request_id":"x","status":"ok","turn":true}',
        b'{"stepscope_request":1,"client_request_id":"x","status":"ok","turn":1.5}',
        b'{"stepscope_request":1,"client_request_id":"x","status":"ok","token_ns":[1,null]}',
        b'{"stepscope_request":1,"client_request_id":"x","status":"ok","token_ns":[1,"2"]}',
        b'{"stepscope_request":1,"client_request_id":"x","status":"ok","token_ns":5}',
        b'{"stepscope_request":1,"client_request_id":"\xff","status":"ok"}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_record_is_counted_and_costs_no_other(hostile: bytes, tmp_path: Path) -> None:
    report, tables = read(write(tmp_path / "r", record().line(), hostile + b"\n", record(1).line()))
    assert [row["turn"] for row in tables.rows("requests")] == [0, 1]
    assert report.dropped == {"no record": 1} and len(tables.rows("tokens")) == 4


@pytest.mark.parametrize(
    "impossible",
    [{"prompt_tokens": -5}, {"cached_tokens": 9 * 10**18}, {"output_tokens": 2**31 + 1}, {"planned_ns": -1},
     {"finished_ns": MOST_NS + 1}, {"token_ns": [1, -1]}, {"token_ns": [1, 2**63 - 1]}, {"turn": -1}, {"tool_ns": 2**63 - 1}],
)  # fmt: skip
def test_a_record_of_impossible_numbers_is_counted_and_costs_no_other(
    impossible: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path / "r", record(0).line(), record(1, **impossible).line(), record(2).line())
    report, tables = read(path)
    assert report.dropped == {"impossible number": 1} and report.events == 3
    assert len(tables.rows("requests")) == 2
    assert {row["client_request_id"] for row in tables.rows("tokens")} <= {
        row["client_request_id"] for row in tables.rows("requests")
    }


@pytest.mark.parametrize("block_bytes", [1, 50, 400, 5000])
def test_the_size_of_the_blocks_changes_nothing(block_bytes: int, tmp_path: Path) -> None:
    lines = [record(number, token_ns=[BASE_NS + number] * number).line() for number in range(8)]
    lines[3] = b"nonsense\n\n"
    path = write(tmp_path / "r", *lines, lines[0][:-9])
    whole, expected = read(path)
    tables = Tables()
    report = RequestsReader(block_bytes).read(path, 3, tables, ReadOptions())
    assert report == whole and report.events == 9 and report.kept == {"requests": 7, "tokens": 25}
    assert report.dropped == {"no record": 1, "torn line": 1} and report.truncated is not None
    assert tables.rows("requests") == expected.rows("requests") and tables.rows("tokens") == expected.rows("tokens")
    assert len(tables.chunks["requests"]) > 1 or block_bytes == 5000


def test_a_line_too_long_for_a_record_is_given_up_without_holding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traces.readers.requests.MAX_LINE_BYTES", 1000)
    long = b'{"stepscope_request":1,"status":"ok","client_request_id":"' + b"x" * 5000 + b'"}\n'
    path = write(tmp_path / "r", record().line(), long, record(1).line(), long.rstrip())
    tables = Tables()
    report = RequestsReader(block_bytes=300).read(path, 3, tables, ReadOptions())
    assert [row["turn"] for row in tables.rows("requests")] == [0, 1]
    assert report.dropped == {"no record": 2} and report.events == 4


def test_missing_and_unknown_keys_are_no_fault(tmp_path: Path) -> None:
    line = b'{"stepscope_request":1,"client_request_id":"x","status":"aborted","later":{"x":[NaN]}}\n'
    _, tables = read(write(tmp_path / "r", line, record().line()))
    sparse, full = tables.rows("requests")
    assert {key for key, value in sparse.items() if value is not None} == {"src", "client_request_id", "status"}
    assert full["prompt_tokens"] == 7


@pytest.mark.parametrize("neighbour", [b"", b"nonsense\n"])
def test_a_text_column_takes_any_value_on_both_paths(neighbour: bytes, tmp_path: Path) -> None:
    line = b'{"stepscope_request":1,"client_request_id":7,"status":"ok","session_id":[1],"error":true}\n'
    _, tables = read(write(tmp_path / "r", line, neighbour))
    (row,) = tables.rows("requests")
    assert (row["client_request_id"], row["session_id"], row["error"]) == ("7", "[1]", "true")


def test_empty_missing_and_foreign_files(tmp_path: Path) -> None:
    report, tables = read(write(tmp_path / "requests.jsonl"))
    assert report.kept == {"requests": 0, "tokens": 0} and tables.rows("requests") == []
    with pytest.raises(UnreadableInput, match="cannot read"):
        read(tmp_path / "none")
    with pytest.raises(UnreadableInput, match="no line of"):
        read(write(tmp_path / "other", b'{"a":1}\n{"b":2}\n'))
    with pytest.raises(UnreadableInput, match="no line of"):
        read(write(tmp_path / "torn", record().line()[:50]))


def test_chunk_timed_requests_are_said(tmp_path: Path) -> None:
    report, _ = read(write(tmp_path / "r", record(token_source="chunks").line(), record(1).line()))
    assert report.meta == {"chunk_timed_requests": 1}


@pytest.mark.parametrize(
    ("name", "head", "ours"),
    [
        ("requests.jsonl", b"", True),
        ("requests-control.jsonl", b"\n", True),
        ("events.jsonl", b"", False),
        ("any.txt", record().line()[:30], True),
        ("requests.jsonl", b'{"traceEvents": [', False),
    ],
)
def test_sniff_requests(name: str, head: bytes, ours: bool) -> None:
    assert RequestsReader().sniff(Path(name), head) is ours


_texts = st.text(max_size=12) | st.just('"\\\n\u2028\ud83d')
_times = st.integers(0, MOST_NS)


@settings(max_examples=60, deadline=None)
@given(
    drawn=st.lists(
        st.tuples(_texts, st.none() | _texts, st.lists(_times, max_size=5), st.none() | st.integers(0, MOST_NS)),
        min_size=1,
        max_size=6,
    ),
    cut=st.floats(0, 1),
)
def test_any_prefix_reads_to_exactly_its_whole_lines(
    drawn: list[tuple[str, str | None, list[int], int | None]], cut: float
) -> None:
    records = [
        record(number, session_id=session, error=error, token_ns=tokens, planned_ns=planned)
        for number, (session, error, tokens, planned) in enumerate(drawn)
        if not any(0xD800 <= ord(letter) < 0xE000 for letter in session + (error or ""))  # no text of ours has these
    ]
    raw = b"".join(item.line() for item in records)
    part = raw[: round(cut * len(raw))]
    ends = list(itertools.accumulate(len(item.line()) for item in records))
    whole = [item for item, end in zip(records, ends, strict=True) if end - 1 <= len(part)]  # the line end may lack
    with tempfile.TemporaryDirectory() as directory:
        path = write(Path(directory) / "r", part)
        if not whole and part:
            with pytest.raises(UnreadableInput):
                read(path)
            return
        _, tables = read(path)
    assert [(row["session_id"], row["error"], row["planned_ns"]) for row in tables.rows("requests")] == [
        (item.session_id, item.error, item.planned_ns) for item in whole
    ]
    assert [(row["client_request_id"], row["i"], row["ts_ns"]) for row in tables.rows("tokens")] == [
        (item.client_request_id, i, ts) for item in whole for i, ts in enumerate(item.token_ns)
    ]


SCRAPE = """\
# stepscope scraped_ns=1795981680719750231
# HELP vllm:num_requests_running Number of requests
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:e2e_bucket{le="+Inf",model_name="a\\"b\\\\c\\nd"} 1e3

plain 7
own_time{} -0.5 1795981680123
nan NaN
inf{a="x",} +Inf
with_exemplar_total 3 # {trace_id="x"} 0.5
# EOF
"""


def read_metrics(path: Path) -> tuple[ReadReport, list[dict[str, Any]]]:
    tables = Tables()
    report = MetricsReader().read(path, 1, tables, ReadOptions())
    return report, tables.rows("metrics")


def test_prometheus_text(tmp_path: Path) -> None:
    report, rows = read_metrics(write(tmp_path / "m.prom", SCRAPE.encode()))
    scraped = 1795981680719750231
    assert [tuple(row.values()) for row in rows] == [
        (1, scraped, "vllm:num_requests_running", '{"engine": "0", "model_name": "m"}', 2.0),
        (1, scraped, "vllm:e2e_bucket", json.dumps({"le": "+Inf", "model_name": 'a"b\\c\nd'}), 1000.0),
        (1, scraped, "plain", "{}", 7.0),
        (1, 1795981680123_000_000, "own_time", "{}", -0.5),
        (1, scraped, "nan", "{}", None),
        (1, scraped, "inf", '{"a": "x"}', None),
        (1, scraped, "with_exemplar_total", "{}", 3.0),
    ]
    assert report.kept == {"metrics": 7} and report.dropped == {}
    assert MetricsReader().sniff(tmp_path / "m.prom", SCRAPE.encode())


def test_several_scrapes_in_one_file_and_none_at_the_head(tmp_path: Path) -> None:
    text = b"x 0\n# stepscope scraped_ns=5\nx 1\n# stepscope scraped_ns=9\nx 2\n# stepscope scraped_ns=soon\nx 3\n"
    report, rows = read_metrics(write(tmp_path / "m", text))
    assert [(row["ts_ns"], row["value"]) for row in rows] == [(None, 0.0), (5, 1.0), (9, 2.0), (None, 3.0)]
    assert report.dropped == {"scrape time that is no number": 1}


@pytest.mark.parametrize(
    "line",
    [
        b"7seven 1", b"name", b"name one", b"name 1 2 3", b'name{a="x" 1', b'name{a="x}', b"name{a=x} 1",
        b'name{a="x",a="y"} 1', b'name{"a"} 1', b"name 1.2.3", b"name 0x10", b"name 1_000", b"{} 1", b'n{a="\\"} 1',
        b"\xff\xfe 1", b"name{,} 1", b"name1", b'name{a="x"}{b="y"} 1',
    ],
)  # fmt: skip
def test_hostile_metric_lines_are_skipped_and_counted(line: bytes, tmp_path: Path) -> None:
    report, rows = read_metrics(write(tmp_path / "m", b"before 1\n", line, b"\nafter 2\n"))
    assert [row["name"] for row in rows] == ["before", "after"] and report.dropped == {"no sample": 1}


def test_files_that_are_no_metrics(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="no line of"):
        read_metrics(write(tmp_path / "m", b"<html>\n"))
    with pytest.raises(UnreadableInput, match="cannot read"):
        read_metrics(tmp_path / "none")
    report, rows = read_metrics(write(tmp_path / "empty.prom"))
    assert rows == [] and report.kept == {"metrics": 0}


def test_long_hostile_labels_take_no_time(tmp_path: Path) -> None:
    line = b'name{a="' + b"\\\\" * 200_000 + b'\\"\n'
    report, _ = read_metrics(write(tmp_path / "m", b"x 1\n", line))
    assert report.dropped == {"no sample": 1}


def test_label_values_round_trip(tmp_path: Path) -> None:
    @settings(max_examples=50, deadline=None)
    @given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
    def check(value: str) -> None:
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        _, rows = read_metrics(write(tmp_path / "m", f'name{{k="{escaped}"}} 1\n'.encode()))
        assert json.loads(rows[0]["labels"]) == {"k": value}

    check()
