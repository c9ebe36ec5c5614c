"""Naive twin of the torch-profiler reader: the whole document through `json.loads`, one Python object per event.

Slow and short on purpose. It understands valid JSON only (control characters in strings included).
"""

from __future__ import annotations

import gzip
import json
import re
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from traces.readers.base import CATEGORY_TEXT, PYTHON_FRAMES_KEPT

INSTANT, FLOW = set("iIR"), set("stf")
COLUMNS = (
    "seq", "cat", "name", "pid", "tid", "ts", "dur", "corr", "ext", "device", "stream", "shapes", "dtypes", "bytes",
    "extra",
)  # fmt: skip
JSON_COLUMNS = ("shapes", "dtypes", "extra")
Row = dict[str, Any]


class Bare(str):
    """A number or literal as it is written."""

    __slots__ = ()


class Pairs(tuple):
    """An object as its (key, value) pairs, so that doubled keys stay visible."""

    __slots__ = ()


def load_json(text: str) -> Any:
    """JSON with numbers as text and objects as pairs."""
    return json.loads(
        text, strict=False, parse_int=Bare, parse_float=Bare, parse_constant=Bare, object_pairs_hook=Pairs
    )


def file_text(path: Path) -> str:
    """The decompressed text of a trace."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    elif raw[:4] == b"\x28\xb5\x2f\xfd":
        raw = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True).read()
    return raw.decode("utf-8", "replace").removeprefix("\ufeff")


def read(text: str, *, stacks: bool = False) -> tuple[list[Row], dict[str, int]]:
    """(rows ordered by seq, what became of the events by name of the report) of a whole document."""
    document = load_json(text)
    events = dict(document)["traceEvents"] if isinstance(document, Pairs) else document
    tally: dict[str, int] = {}
    rows: list[Row] = []
    opened: dict[Any, list[Row]] = {}
    ends: dict[Any, list[tuple[int | None, str | None]]] = {}
    for seq, event in enumerate(events):
        fate = _fate(event, stacks)
        if fate not in "XBE":
            tally[fate] = tally.get(fate, 0) + 1
            continue
        row = _row(seq, dict(event))
        thread = tuple(row[key] if row[key] is not None else _text(dict(event).get(key)) for key in ("pid", "tid"))
        if fate == "X":
            rows.append(row)
        elif fate == "B":
            rows += _begin(row, opened.setdefault(thread, []), ends.setdefault(thread, []), tally)
        else:
            rows += _end(row, opened.setdefault(thread, []), ends.setdefault(thread, []), tally)
    tally |= {"unbalanced_begin": sum(map(len, opened.values())), "unbalanced_end": sum(map(len, ends.values()))}
    return sorted(rows, key=lambda row: row["seq"]), {key: count for key, count in tally.items() if count}


def _fate(event: Any, stacks: bool) -> str:
    if not isinstance(event, Pairs):
        return "not_an_event"
    cat = name = None
    for key, value in event:
        cat, name = (value, name) if key == "cat" else (cat, value) if key == "name" else (cat, name)
        named = _text(name)
        is_frame = key in ("cat", "name") and _text(cat) == "python_function" and not stacks and named is not None
        if is_frame and not any(kept in named for kept in PYTHON_FRAMES_KEPT):
            return "python_frame"
    if _text(cat) == "python_function" and not stacks and _text(name) is None:
        return "python_frame"
    phase = _text(dict(event).get("ph"))
    if not phase:
        return "no_phase"
    known = {"X": "X", "B": "B", "E": "E", "M": "metadata", "C": "counter"}
    return "instant" if phase in INSTANT else "flow" if phase in FLOW else known.get(phase, "other_phase")


def _row(seq: int, event: dict[str, Any]) -> Row:
    args = dict(event["args"]) if isinstance(event.get("args"), Pairs) else {}
    return {
        "seq": seq,
        "cat": int(CATEGORY_TEXT.get(_text(event.get("cat")) or "", 0)),
        "name": _text(event.get("name")),
        "pid": whole(event.get("pid")),
        "tid": whole(event.get("tid")),
        "ts": nanoseconds(event.get("ts")),
        "dur": nanoseconds(event.get("dur")),
        "corr": whole(args.get("correlation")),
        "ext": whole(args.get("External id")),
        "device": whole(args.get("device")),
        "stream": whole(args.get("stream")),
        "shapes": _nested(args.get("Input Dims")),
        "dtypes": _nested(args.get("Input type")),
        "bytes": whole(args.get("bytes")),
        "extra": event["args"] if "Collective name" in args else None,
    }


def _begin(row: Row, opened: list[Row], ends: list[tuple[int | None, str | None]], tally: dict[str, int]) -> list[Row]:
    for index in reversed(range(len(ends))):
        ts, name = ends[index]
        if row["ts"] is not None and ts is not None and ts >= row["ts"] and name in (None, row["name"]):
            del ends[index]
            tally["end"] = tally.get("end", 0) + 1
            return [row | {"dur": ts - row["ts"]}]
    opened.append(row)
    return []


def _end(row: Row, opened: list[Row], ends: list[tuple[int | None, str | None]], tally: dict[str, int]) -> list[Row]:
    for index in reversed(range(len(opened))):
        begin = opened[index]
        timely = row["ts"] is not None and begin["ts"] is not None and row["ts"] >= begin["ts"]
        if timely and row["name"] in (None, begin["name"]):
            del opened[index]
            tally["end"] = tally.get("end", 0) + 1
            return [begin | {"dur": row["ts"] - begin["ts"]}]
    ends.append((row["ts"], row["name"]))
    return []


def _text(value: Any) -> str | None:
    if not isinstance(value, str) or isinstance(value, Bare):
        return None
    return re.sub("[\ud800-\udfff]", "\N{REPLACEMENT CHARACTER}", value)


def _nested(value: Any) -> Any:
    return value if isinstance(value, list | Pairs) else None


def _decimal(value: Any) -> Decimal | None:
    if not isinstance(value, str):
        return None
    text = value.strip(" \t\r\n")
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text):
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def nanoseconds(value: Any) -> int | None:
    """µs to ns, rounded half away from zero."""
    number = _decimal(value)
    if number is None or abs(number) > 10**20:
        return None
    result = int((number * 1000).to_integral_value(ROUND_HALF_UP))
    return result if abs(result) < 2**63 else None


def whole(value: Any) -> int | None:
    """An id; unsigned ones wrap."""
    number = _decimal(value)
    if number is None or abs(number) > 10**21 or number != number.to_integral_value():
        return None
    result = int(number)
    if not -(2**63) < result < 2**64 or result == 2**63:
        return None
    return result if result < 2**63 else result - 2**64


class ListSink:
    """Keeps what a reader delivers and gives it back as rows like the oracle's."""

    def __init__(self) -> None:
        self.tables: dict[str, list[pa.Table]] = {"events": [], "strings": []}

    def append(self, table: str, data: pa.Table) -> None:
        """See traces.readers.base.Sink."""
        data.validate(full=True)
        self.tables[table].append(data)

    def rows(self) -> list[Row]:
        """Rows ordered by seq, with texts for ids and JSON values for raw JSON."""
        if not self.tables["events"]:
            return []
        texts: dict[int, str] = {}
        for table in self.tables["strings"]:
            texts.update(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))
        assert len(set(texts.values())) == len(texts) and 0 not in texts
        rows = pa.concat_tables(self.tables["events"]).to_pylist()
        for row in rows:
            del row["src"]
            row["name"] = texts[row["name"]] if row["name"] else None
            for column in JSON_COLUMNS:
                row[column] = None if row[column] is None else load_json(texts[row[column]])
        return sorted(rows, key=lambda row: row["seq"])
