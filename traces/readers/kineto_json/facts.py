"""What stands beside the events: rank, trace id, clock base, names of processes and threads."""

from __future__ import annotations

import ast
import json
from typing import Any

from traces.readers.base import ReadReport
from traces.readers.kineto_json.outline import Outline
from traces.readers.kineto_json.text import decode_value

MAX_LITERAL_CHARS = 1 << 20


def describe(report: ReadReport, outline: Outline, metadata_events: list[bytes]) -> None:
    """Fill `meta`, `rank`, `trace_id` and `base_ns` of the report.

    `meta` holds the file's top-level values, and `processes` and `threads` as lists of {"pid", "tid", and what M events
    say: "name", "labels", "sort_index"}; `undecoded` names top-level keys too large to keep, or no JSON.
    """
    meta = dict(outline.meta)
    info = _as_object(meta.get("distributedInfo"))
    if info is not None:
        meta["distributedInfo"] = info
        report.rank = _whole(info.get("rank"))
    if meta.get("trace_id") is not None:
        report.trace_id = str(meta["trace_id"]).encode("utf-8", "replace").decode()
    report.base_ns = outline.base_ns
    meta["processes"], meta["threads"] = _names(metadata_events)
    if outline.undecoded:
        meta["undecoded"] = outline.undecoded[:100]
    report.meta = meta


def _as_object(value: Any) -> dict[str, Any] | None:
    """`value` as an object: itself, or what its text says as JSON or as a Python literal (never evaluated)."""
    if isinstance(value, str) and len(value) <= MAX_LITERAL_CHARS:
        try:
            value = decode_value(value.encode("utf-8", "replace"))
        except ValueError:
            try:
                value = decode_value(json.dumps(ast.literal_eval(value)).encode())  # what JSON can hold
            except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
                return None
    return value if isinstance(value, dict) else None


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31 else None


def _names(metadata_events: list[bytes]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    processes: dict[str, dict[str, Any]] = {}
    threads: dict[tuple[str, str], dict[str, Any]] = {}
    for raw in metadata_events:
        try:
            event = decode_value(raw)
        except ValueError:
            continue
        scope, _, what = str(event.get("name")).partition("_")
        args = event.get("args")
        if scope not in ("process", "thread") or not what or not isinstance(args, dict):
            continue
        pid, tid = event.get("pid"), event.get("tid")
        entry = (
            processes.setdefault(str(pid), {"pid": pid})
            if scope == "process"
            else threads.setdefault((str(pid), str(tid)), {"pid": pid, "tid": tid})
        )
        value = args.get(what)
        if isinstance(value, str | int | float):
            entry[what] = value
    return list(processes.values()), list(threads.values())
