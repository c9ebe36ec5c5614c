"""Properties of the torch-profiler reader on generated documents, with block edges everywhere."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import kineto_oracle as oracle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport
from traces.readers.kineto_json.pipeline import read_document

BUDGET = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
BLOCKS = (1, 3, 17, 64, 65, 300, 1 << 16)

# Text that looks like structure, as it stands between the quotes of a JSON string.
SNIPPETS = (
    "}, {", '\\"', "\\\\", "[", "]", "{", "}", ",", ":", "\\/", '\\"cat\\": \\"python_function\\"', "\\u007d",
    "\\ud83d\\ude00",
    "\\ud800", "é", "😀", "\n", "\x01", "\\n", "execute_model", "python_function", "kernel", " ", "a" * 70, "\\u0000",
)  # fmt: skip
STRINGS = st.lists(st.sampled_from(SNIPPETS) | st.text("abc xyz0189_", max_size=9), max_size=6).map(
    lambda parts: '"' + "".join(parts) + '"'
)
CATS = st.sampled_from(
    ['"kernel"', '"cpu_op"', '"python_function"', '"pyth\\u006fn_function"', '"gpu_memcpy"', '"ac2g"', "null", "7"]
)
PHASES = st.sampled_from(['"X"'] * 8 + ['"B"', '"E"', '"\\u0058"', '"M"', '"i"', '"s"', '"C"', '"q"', '""', "null"])
DIGITS = st.text("0123456789", min_size=1, max_size=16)
NUMBERS = st.one_of(
    st.integers(-5, 40).map(str),
    st.integers(-(2**64), 2**65).map(str),
    st.builds("{}.{}".format, st.integers(0, 10**16), DIGITS),
    st.builds("{}.{}e{}".format, st.integers(-99, 99), DIGITS, st.integers(-12, 12)),
    st.builds('"{}.{}"'.format, st.integers(0, 10**13), DIGITS),
    st.sampled_from(["NaN", "-Infinity", "null", "true", '"seven"', '"1\\u0031"', '" 12 "', "[1]", '{"a": 1}']),
)
NESTED = st.recursive(
    NUMBERS | STRINGS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ", ".join(items) + "]"),
        st.lists(st.tuples(STRINGS, inner), max_size=3).map(
            lambda items: "{" + ",".join(f"{key} : {value}" for key, value in items) + "}"
        ),
    ),
    max_leaves=6,
)
SPACE = st.sampled_from(["", "", " ", "\n  ", "\t\r\n" + " " * 66])


@st.composite
def objects(draw: st.DrawFn, keys: dict[str, Any], at_most: int) -> str:
    members = draw(st.lists(st.sampled_from(sorted(keys)), max_size=at_most))
    texts = [f"{draw(SPACE)}{key}{draw(SPACE)}:{draw(SPACE)}{draw(keys[key])}{draw(SPACE)}" for key in members]
    return "{" + ",".join(texts) + "}"


ARGS = objects(
    {
        '"correlation"': NUMBERS, '"External id"': NUMBERS, '"device"': NUMBERS, '"stream"': NUMBERS,
        '"bytes"': NUMBERS, '"Input Dims"': NESTED, '"Input type"': NESTED, '"Collective name"': STRINGS,
        '"Python id"': NUMBERS, '"cat"': CATS, '"str\\u0065am"': NUMBERS, '"x}"': NESTED,
    },
    5,
)  # fmt: skip
EVENTS = objects(
    {
        '"ph"': PHASES, '"cat"': CATS, '"name"': STRINGS | NUMBERS, '"pid"': NUMBERS, '"tid"': NUMBERS,
        '"ts"': NUMBERS, '"dur"': NUMBERS, '"args"': ARGS | NESTED, '"n\\u0061me"': STRINGS, '"id"': NESTED,
    },
    9,
)  # fmt: skip
ORDINARY = st.builds(
    '{{"ph": "{}", "cat": {}, "name": {}, "pid": {}, "tid": 1, "ts": {}, "dur": 1.5, "args": {}}}'.format,
    st.sampled_from("XXXBE"), CATS, st.sampled_from(['"a"', '"b"', '"execute_model"']), st.integers(0, 1),
    st.integers(0, 9), ARGS,
)  # fmt: skip
ELEMENTS = st.one_of(EVENTS, ORDINARY, ORDINARY, NESTED)
DOCUMENTS = st.tuples(
    st.sampled_from([("[", "]"), ('{"a": ["]", {"b": 1}], "traceEvents" : [', '], "baseTimeNanoseconds": 5}')]),
    st.lists(ELEMENTS, max_size=8),
    st.sampled_from([",", ", ", ",\n  "]),
)


def read(content: bytes, *, compiled: bool, block_bytes: int, stacks: bool) -> tuple[list[oracle.Row], ReadReport]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        file.write(content)
        file.flush()
        sink = oracle.ListSink()
        report = read_document(
            Path(file.name), 0, sink, ReadOptions(stacks=stacks), compiled=compiled, block_bytes=block_bytes
        )
    assert sum(report.kept.values()) + sum(report.dropped.values()) == report.events
    report.path = Path()
    return sink.rows(), report


def outcome(report: ReadReport) -> dict[str, int]:
    by_name = report.kept | report.dropped
    rows = sum(by_name.pop(name, 0) for name in ("other", "kernel", "memcpy", "op", "python"))
    return by_name | {"rows": rows}


@given(DOCUMENTS, st.booleans(), st.booleans(), st.sampled_from(BLOCKS))
@BUDGET
def test_equals_the_naive_reader(document: Any, compiled: bool, stacks: bool, block_bytes: int) -> None:
    (head, tail), elements, separator = document
    text = head + separator.join(elements) + tail
    expected, tally = oracle.read(text, stacks=stacks)
    rows, report = read(text.encode(), compiled=compiled, block_bytes=block_bytes, stacks=stacks)
    assert rows == expected
    assert outcome(report) == tally | {"rows": len(expected)}
    assert report.events == len(elements)
    assert report.truncated is None
    assert report.base_ns == (5 if tail.endswith("}") else 0)


@given(DOCUMENTS, st.booleans(), st.sampled_from(BLOCKS), st.data())
@BUDGET
def test_any_prefix_gives_exactly_its_complete_events(
    document: Any, compiled: bool, block_bytes: int, data: st.DataObject
) -> None:
    (head, tail), elements, separator = document
    content, ends = head.encode(), []
    for index, element in enumerate(elements):
        content += (separator if index else "").encode() + element.encode()
        ends.append(len(content))
    # A bare word is complete only once something follows it.
    ends = [end + (element[0] not in '{["') for end, element in zip(ends, elements, strict=True)]
    content += tail.encode()
    cut = data.draw(st.integers(len(head), len(content) - 1))
    whole = sum(end <= cut for end in ends)
    expected, tally = oracle.read("[" + ",".join(elements[:whole]) + "]")
    rows, report = read(content[:cut], compiled=compiled, block_bytes=block_bytes, stacks=False)
    assert rows == expected
    assert outcome(report) == tally | {"rows": len(expected)}
    assert report.events == whole
    assert report.truncated


NOISE = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b'"', b"\\", b",", b":", b" ", b"\n", b"1", b'"ph":"X"', b'"name":"a",', b"\xff",
         b"nan", b'"traceEvents":[', b'{"ph":"X"},', b'"args":{', b'"cat":"python_function",', b"\\u00", b"\xef\xbb\xbf"]
    ) | st.binary(max_size=3),
    max_size=40,
).map(b"".join)  # fmt: skip


def _try(content: bytes, *, compiled: bool, block_bytes: int) -> Any:
    try:
        return read(content, compiled=compiled, block_bytes=block_bytes, stacks=False)
    except UnreadableInput as error:
        return error.message.partition(" ")[2]  # without the path


@given(st.sampled_from([b"", b"[", b'{"traceEvents":[', b'[{"ph":"X",']), NOISE, st.sampled_from(BLOCKS))
@settings(BUDGET, max_examples=250)
def test_noise_reads_the_same_wherever_it_is_cut(head: bytes, noise: bytes, block_bytes: int) -> None:
    content = head + noise
    whole = _try(content, compiled=True, block_bytes=1 << 20)
    assert _try(content, compiled=True, block_bytes=block_bytes) == whole
    assert _try(content, compiled=False, block_bytes=block_bytes) == whole
