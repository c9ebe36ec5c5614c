"""Faults of the format, each from a literal: what is kept, what is counted, what is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kineto_oracle as oracle
import pytest

from traces.errors import UnreadableInput
from traces.readers.base import Cat, ReadOptions, ReadReport
from traces.readers.kineto_json.pipeline import read_document

# Small blocks put an edge into every token.
WAYS = [(True, 4 << 20), (True, 5), (False, 4 << 20), (False, 5)]


@pytest.fixture(params=WAYS, ids=lambda way: f"{'compiled' if way[0] else 'plain'}-{way[1]}")
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    compiled, block_bytes = request.param

    def run(content: bytes | str, **options: Any) -> tuple[list[oracle.Row], ReadReport]:
        path = tmp_path / "trace.json"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        sink = oracle.ListSink()
        report = read_document(path, 0, sink, ReadOptions(**options), compiled=compiled, block_bytes=block_bytes)
        assert sum(report.kept.values()) + sum(report.dropped.values()) == report.events
        return sink.rows(), report

    run.block_bytes = block_bytes  # type: ignore[attr-defined]
    return run


def event(**changes: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 2, "ts": 10.5, "dur": 2.25} | changes


def one(read: Any, text: str | bytes) -> oracle.Row:
    """The only row of a list with this one element."""
    text = text.encode() if isinstance(text, str) else text
    rows, report = read(b"[" + text + b"]")
    assert (len(rows), report.events, report.truncated) == (1, 1, None)
    return rows[0]


LAYOUTS = {
    "list": lambda events, meta: json.dumps(events),
    "object": lambda events, meta: json.dumps(meta | {"traceEvents": events}),
    "events_first": lambda events, meta: json.dumps({"traceEvents": events} | meta),
    "between": lambda events, meta: json.dumps({"a": [1, {"b": "]}"}], "traceEvents": events} | meta),
    "pretty": lambda events, meta: json.dumps(meta | {"traceEvents": events}, indent=4),
    "compact": lambda events, meta: json.dumps({"traceEvents": events} | meta, separators=(",", ":")),
    "byte_order_mark": lambda events, meta: "\ufeff" + json.dumps(meta | {"traceEvents": events}),
    "escaped_key": lambda events, meta: json.dumps(meta | {"traceEvents": events}).replace("ceE", "ce\\u0045"),
}  # fmt: skip


@pytest.mark.parametrize("layout", sorted(LAYOUTS))
def test_layouts(read: Any, layout: str) -> None:
    events = [event(ts=index, name=f"n{index % 3}", args={"External id": index}) for index in range(7)]
    meta = {"schemaVersion": 1, "baseTimeNanoseconds": 1790857026000000000, "trace_id": "AB"}
    rows, report = read(LAYOUTS[layout](events, meta))
    assert [row["ts"] for row in rows] == [1000 * index for index in range(7)]
    assert [row["ext"] for row in rows] == list(range(7))
    assert report.kept == {"op": 7}
    assert report.truncated is None
    if layout != "list":
        assert (report.base_ns, report.trace_id) == (1790857026000000000, "AB")
        assert report.meta["schemaVersion"] == 1


TIMES = [
    ("10.5", 10_500),
    ('"10.5"', 10_500),
    ('" 7 "', 7_000),
    ("1.5e3", 1_500_000),
    ("15E-1", 1_500),
    ("1e-9", 0),
    ("0.0005", 1),  # half of a ns: away from zero
    ("-0.0005", -1),
    ("0.00049999", 0),
    ("3.1234567", 3_123),
    ("1790857026000123.456", 1790857026000123456),  # a float64 would lose 0.25 µs
    ("9007199254740993", 9007199254740993000),  # 2^53 + 1
    ("9223372036854775.807", 2**63 - 1),
    ("9223372036854775.808", None),
    ("1234567890123456789", None),  # 19 digits of µs
    ("1e400", None),
    ("-5.5", -5_500),
    ("NaN", None),
    ("nan", None),
    ("Infinity", None),
    ("-inf", None),
    ("null", None),
    ("true", None),
    ('""', None),
    ('"soon"', None),
    ('"1\\u0030.5"', 10_500),
    ("[1]", None),
    ("1.2.3", None),
    ("1e", None),
    ("", None),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), TIMES, ids=[text or "nothing" for text, _ in TIMES])
def test_times(read: Any, text: str, expected: int | None) -> None:
    row = one(read, f'{{"ph":"X","name":"n","ts":{text},"dur":{text}}}')
    assert (row["ts"], row["dur"]) == (expected, expected)


IDS = [
    ("7", 7),
    ('"7"', 7),
    ("-1", -1),
    ("7.0", 7),
    ("7e2", 700),
    ("7.5", None),
    ('"python 3"', None),
    ("null", None),
    ("9007199254740993", 9007199254740993),
    ("9223372036854775807", 2**63 - 1),
    ("9223372036854775808", None),
    ("15514734831341844875", 15514734831341844875 - 2**64),
    ("18446744073709551616", None),
    ("-9223372036854775807", -(2**63) + 1),
    ("-9223372036854775808", None),
    ("00012", 12),
]


@pytest.mark.parametrize(("text", "expected"), IDS, ids=[text for text, _ in IDS])
def test_ids(read: Any, text: str, expected: int | None) -> None:
    args = f'{{"correlation":{text},"device":{text},"stream":{text},"External id":{text},"bytes":{text}}}'
    row = one(read, f'{{"ph":"X","pid":{text},"tid":{text},"ts":1,"args":{args}}}')
    assert {row[key] for key in ("pid", "tid", "corr", "ext", "device", "stream", "bytes")} == {expected}


NAMES = [
    (rb'"a\"b\\c\/d\n\t"', 'a"b\\c/d\n\t'),
    (rb'"\u00e9 \ud83d\ude00"', "é 😀"),
    (rb'"\ud83d lone \ude00"', "\N{REPLACEMENT CHARACTER} lone \N{REPLACEMENT CHARACTER}"),
    (rb'"\ud83d\u0041"', "\N{REPLACEMENT CHARACTER}A"),
    (rb'"C:\path\x \u12"', "C:\\path\\x \\u12"),  # backslashes that nobody escaped
    (b'"line\nfeed \x01 tab\t"', "line\nfeed \x01 tab\t"),
    (b'"caf\xe9 \xff\xe2\x82 \xf0\x9f\x98\x80"', "caf\ufffd \ufffd\ufffd 😀"),
    (b'"}, {\\"cat\\": \\"python_function\\" ]"', '}, {"cat": "python_function" ]'),
    (b'""', ""),
    (b'"' + b"void gemm<" * 1000 + b'"', "void gemm<" * 1000),
    (b'"' + b"\\\\" * 40 + b'"', "\\" * 40),
    (b"null", None),
    (b"5", None),
    (b'{"a": "b"}', None),
]


@pytest.mark.parametrize(("raw", "expected"), NAMES, ids=range(len(NAMES)))
def test_names(read: Any, raw: bytes, expected: str | None) -> None:
    assert one(read, b'{"ph":"X","cat":"kernel","ts":1,"name":' + raw + b',"dur":1}')["name"] == expected


SHAPES = [
    ('{"ph":"X","cat":null,"name":"n"}', {"cat": 0}),
    ('{"ph":"X","cat":"brand_new","name":"n"}', {"cat": 0}),
    ('{"ph":"X","c\\u0061t":"kern\\u0065l","\\u006eame":"n"}', {"cat": int(Cat.KERNEL), "name": "n"}),
    ('{"ph":"X","ts":1,"ts":2,"name":"a","name":"b"}', {"ts": 2000, "name": "b"}),
    ('{"ph":"X","args":{"device":1},"args":{"stream":2}}', {"device": None, "stream": 2}),
    ('{"ph":"X","args":{"device":1,"device":3}}', {"device": 3}),
    ('{"ph":"X","args":{"device":1},"args":"none"}', {"device": None}),
    ('{"ph":"X","args":[{"device":1}]}', {"device": None}),
    ('{"ph":"X","args":{"correlation":"12","stream":{"id":7},"device":[1]}}', {"corr": 12, "stream": None}),
    ('{"ph":"X","args":{"Inp\\u0075t Dims":[[1, 2],\n []]}}', {"shapes": [["1", "2"], []]}),
    ('{"ph":"X","args":{"Input Dims":"[1]","Input type":{"a":1}}}', {"shapes": None, "dtypes": (("a", "1"),)}),
    ('{"ph":"X","args":{"memory bandwidth (GB/s)": inf,"device":2}}', {"device": 2}),
    ('{"args":{"Collective name":"allreduce", "x": "a b"},"ph":"X"}',
     {"extra": (("Collective name", "allreduce"), ("x", "a b"))}),
    ('{"ph":"X" "name":"n",,"ts":3,}', {"name": "n", "ts": 3000}),
    ('{"ph":"X","args":{},"id":[{"a":"}"}],"ts":4}', {"ts": 4000}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), SHAPES, ids=range(len(SHAPES)))
def test_members(read: Any, text: str, expected: dict[str, Any]) -> None:
    row = one(read, text)
    assert {key: row[key] for key in expected} == expected


def test_raw_json_has_one_spelling(read: Any, tmp_path: Path) -> None:
    text = '[{"ph":"X","args":{"Input Dims":[[1, 2], ["a b"]]}},{"ph":"X","args":{"Input Dims":[\n[1,\t2],["a b"] ]}}]'
    rows, _ = read(text)
    assert rows[0]["shapes"] == rows[1]["shapes"] == [["1", "2"], ["a b"]]
    sink = oracle.ListSink()
    read_document(tmp_path / "trace.json", 0, sink, ReadOptions())
    assert sink.tables["strings"][0]["text"].to_pylist() == ['[[1,2],["a b"]]']


FATES = [
    ('{"ph":"M","name":"process_labels"}', {"metadata": 1}, {}),
    ('{"ph":"i","s":"t"}', {}, {"instant": 1}),
    ('{"ph":"s","cat":"ac2g","id":1}', {}, {"flow": 1}),
    ('{"ph":"C","args":{"v":1}}', {}, {"counter": 1}),
    ('{"ph":"N"}', {}, {"other_phase": 1}),
    ('{"ph":"XX"}', {}, {"other_phase": 1}),
    ('{"ph":88}', {}, {"no_phase": 1}),
    ("{}", {}, {"no_phase": 1}),
    ("null", {}, {"not_an_event": 1}),
    ('"X"', {}, {"not_an_event": 1}),
    ("[[1],{}]", {}, {"not_an_event": 1}),
    ('{"ph" "X"}', {}, {"malformed": 1}),
    ('{"ph":"X",5:{}}', {}, {"malformed": 1}),
    ('{"ph":"X","args":{5}}', {}, {"malformed": 1}),
    ('{"ph":"X","args":{"a":[1}}]', {}, {"malformed": 1}),
    ('{"cat":"python_function","name":"f","ph":"X","args":{"a":"}{\\""}}', {}, {"python_frame": 1}),
    ('{"cat":"python_function","ph":"X"}', {}, {"python_frame": 1}),
    ('{"name":"gpu_model_runner.py(1): execute_model","ph":"X","cat":"python_function"}', {"python": 1}, {}),
    ('{"ph":"B","ts":1,"name":"a"}', {}, {"unbalanced_begin": 1}),
    ('{"ph":"E","ts":1,"name":"a"}', {}, {"unbalanced_end": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kept", "dropped"), FATES, ids=[text[:24] for text, _, _ in FATES])
def test_what_becomes_of_an_element(read: Any, text: str, kept: dict[str, int], dropped: dict[str, int]) -> None:
    good = json.dumps(event())
    rows, report = read(f"[{good},{text},{good}]")
    assert [row["seq"] for row in rows if row["cat"] == Cat.OP] == [0, 2]
    assert report.kept == {"op": 2} | kept
    assert report.dropped == dropped
    assert report.truncated is None


PAIRS = [
    ([("B", "a", 1), ("B", "b", 2), ("E", "b", 3), ("E", "a", 5)], [("a", 1, 4), ("b", 2, 1)], 0, 0),
    ([("B", "a", 1), ("B", "b", 2), ("E", "a", 3), ("E", "b", 5)], [("a", 1, 2), ("b", 2, 3)], 0, 0),
    ([("B", "a", 1), ("B", "a", 2), ("E", None, 3), ("E", None, 5)], [("a", 1, 4), ("a", 2, 1)], 0, 0),
    ([("E", "a", 5), ("B", "a", 1)], [("a", 1, 4)], 0, 0),  # not in order of time
    ([("B", "a", 30), ("E", "a", 20)], [], 1, 1),  # ends before it begins
    ([("B", "a", 1), ("E", "b", 2)], [], 1, 1),
    ([("B", "a", None), ("E", "a", 2)], [], 1, 1),
]  # fmt: skip


@pytest.mark.parametrize(("events", "expected", "begins", "ends"), PAIRS, ids=range(len(PAIRS)))
def test_begin_end_pairs(read: Any, events: list[Any], expected: list[Any], begins: int, ends: int) -> None:
    made = [event(ph=ph, ts=ts) | ({"name": name} if name else {}) for ph, name, ts in events]
    for item, (_, name, _) in zip(made, events, strict=True):
        if name is None:
            del item["name"]
    elsewhere = event(ph="E", name="a", ts=4, tid="worker 1"), event(ph="B", name="z", ts=4, tid="worker 2")
    rows, report = read(json.dumps([*made, *elsewhere]))
    assert [(row["name"], row["ts"] // 1000, row["dur"] // 1000) for row in rows] == expected
    assert report.dropped == {"unbalanced_begin": begins + 1, "unbalanced_end": ends + 1}


def test_threads_with_names_for_ids(read: Any) -> None:
    made = [
        event(ph=ph, ts=ts, tid=tid) for ph, ts, tid in [("B", 1, "p"), ("B", 2, "q"), ("E", 3, "p"), ("E", 9, "q")]
    ]
    rows, _ = read(json.dumps(made))
    assert [(row["dur"], row["tid"]) for row in rows] == [(2000, None), (7000, None)]


TRUNCATED = [
    ('[{"ph":"X","ts":1},{"ph":"X","ts":2}', 2, "the list of events is not closed"),
    ('[{"ph":"X","ts":1},{"ph":"X","ts":2},', 2, "the list of events is not closed"),
    ('[{"ph":"X","ts":1},{"ph":"X","ts":2', 1, "the file ends inside an event (16 bytes lost)"),
    ('[{"ph":"X","ts":1},{"ph":"X","name":"a\\', 1, "the file ends inside an event (20 bytes lost)"),
    ('{"traceEvents":[{"ph":"X","ts":1}]', 1, "the file ends before its closing brace"),
    ('{"traceEvents":[{"ph":"X","ts":1}],"a":{"b', 1, "the file ends inside a top-level value"),
    ('[{"ph":"X","ts":1}] trailing', 1, "8 bytes after the end of the JSON were not read"),
]


@pytest.mark.parametrize(("text", "events", "said"), TRUNCATED, ids=range(len(TRUNCATED)))
def test_a_cut_file_keeps_its_whole_events(read: Any, text: str, events: int, said: str) -> None:
    rows, report = read(text)
    assert len(rows) == report.events == events
    assert report.truncated == said


@pytest.mark.parametrize("text", ["", "  ", "no json", "{}", '{"a":1', '{"traceEvents":null}', "\ufeff"])
def test_a_file_without_a_list_of_events_is_refused(read: Any, text: str) -> None:
    with pytest.raises(UnreadableInput):
        read(text)


def test_metadata_is_bounded_and_lenient(read: Any) -> None:
    big = "[" + ",".join(["12345678"] * 600_000) + "]" if read.block_bytes > 100 else "[" * 2000
    text = (
        '{"bandwidth": inf, "path": "C:\\dir\\x", "list": [1, 2,], "big": '
        + big
        + ("]" * 2000 if big[1] == "[" else "")
        + ', "baseTimeNanoseconds": "1790857026000000001", "distributedInfo": "{\'rank\': 3, \'world_size\': 8}"'
        ', "traceEvents": [{"ph":"M","name":"thread_name","pid":"p","tid":4,"args":{"name":"worker"}},'
        '{"ph":"M","name":"process_labels","pid":"p","args":{"labels":"GPU 0"}}]}'
    )
    _, report = read(text)
    assert report.meta["bandwidth"] is None
    assert report.meta["path"] == "C:\\dir\\x"
    assert report.meta["list"] == [1, 2]
    assert report.meta["undecoded"] == ["big"]
    assert (report.rank, report.base_ns) == (3, 1790857026000000001)
    assert report.meta["threads"] == [{"pid": "p", "tid": 4, "name": "worker"}]
    assert report.meta["processes"] == [{"pid": "p", "labels": "GPU 0"}]


@pytest.mark.parametrize(
    "info", ["\"__import__('os').getcwd()\"", '"{"', "7", "null", '{"rank": "x"}', '{"rank": true}']
)
def test_nothing_of_a_trace_is_evaluated(read: Any, info: str) -> None:
    _, report = read(f'{{"distributedInfo": {info}, "traceEvents": []}}')
    assert report.rank is None


@pytest.mark.parametrize("compiled", [True, False])
def test_an_event_without_end_does_not_grow_memory(compiled: bool, tmp_path: Path) -> None:
    giant = '{"ph":"X","name":"' + "x" * 3000 + '","args":{"a":["}"]}}'
    good = json.dumps(event())
    path = tmp_path / "trace.json"
    path.write_text(f"[{good},{giant},{good}]")
    sink = oracle.ListSink()
    report = read_document(path, 0, sink, ReadOptions(), compiled=compiled, block_bytes=100, max_event_bytes=1000)
    assert [row["seq"] for row in sink.rows()] == [0, 2]
    assert report.dropped == {"too_large": 1}
    assert report.events == 3


def test_many_names(read: Any) -> None:
    count = 20_000 if read.block_bytes > 100 else 300
    names = [f"kernel_{index}_" + "t" * (index % 90) for index in range(count)]
    rows, report = read(json.dumps([event(name=name) for name in names + names]))
    assert [row["name"] for row in rows] == names + names
    assert report.kept == {"op": 2 * count}
