"""What trace viewers ask of a Chrome trace, as a check of our own: their trace processor is no package that can be installed.

The rules are those of the trace event format and of Perfetto's reader of it: `X` slices of a thread follow each other or one
contains the other (a slice that crosses another's end is dropped there), a parent comes before its children where both begin
at once, ids are 32-bit numbers (others become 0), counters are finite numbers, and threads and processes have names.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

FACTS = {
    "process_name": "name", "process_labels": "labels", "process_sort_index": "sort_index", "thread_name": "name",
    "thread_sort_index": "sort_index",
}  # fmt: skip


@dataclass
class Checked:
    """A trace that keeps the rules. Times in ns, relative to the trace's base."""

    top: dict[str, Any]
    events: list[dict[str, Any]]
    processes: dict[int, str] = field(default_factory=dict)
    threads: dict[tuple[int, int], str] = field(default_factory=dict)

    def slices(self, process: str, thread: str) -> list[tuple[str, int, int]]:
        """(name, ts, dur) in the order of the file."""
        return [
            (event["name"], ns(event["ts"]), ns(event["dur"])) for event in self.events
            if event["ph"] == "X" and self.processes[event["pid"]] == process and self.threads[event["pid"], event["tid"]] == thread
        ]  # fmt: skip

    def counters(self, process: str) -> dict[str, list[tuple[int, float]]]:
        """(ts, value) by "name unit"."""
        found = defaultdict(list)
        for event in self.events:
            if event["ph"] == "C" and self.processes[event["pid"]] == process:
                for unit, value in event["args"].items():
                    found[f"{event['name']} {unit}"].append((ns(event["ts"]), float(value)))
        return dict(found)

    def tracks(self) -> set[tuple[str, str]]:
        """(process, thread) of every track with slices."""
        return {(self.processes[pid], name) for (pid, _), name in self.threads.items()}


def ns(us: Decimal) -> int:
    """Integer ns of µs; it is an error where they are none."""
    value = us * 1000
    assert value == value.to_integral_value(), us
    return int(value)


def check(path: Path) -> Checked:
    """Read a trace and hold it to the rules. An AssertionError names the event that breaks one."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    text = raw.decode("utf-8")
    assert not re.search(r"NaN|Infinity", re.sub(r'"(?:[^"\\]|\\.)*"', "", text)), "not JSON"
    times = re.findall(r'"(?:ts|dur)": ([^,}]+)[,}]', re.sub(r'"args": \{.*', "", text))
    assert all(re.fullmatch(r"\d+\.\d{3}", item) for item in times)
    top = json.loads(text, parse_float=Decimal)
    events = top.pop("traceEvents")
    found = Checked(top=top, events=events)
    for event in events:
        _check_event(event, found)
    for event in events:
        if event["ph"] != "M":
            assert event["pid"] in found.processes, event
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in found.threads, event
    _check_nesting(events)
    return found


def _check_event(event: dict[str, Any], found: Checked) -> None:
    assert set(event) <= {"ph", "cat", "pid", "tid", "ts", "dur", "name", "args"}, event
    assert isinstance(event["name"], str) and isinstance(event["args"], dict), event
    assert isinstance(event["pid"], int) and 0 < event["pid"] < 2**32, event
    if event["ph"] == "M":
        value = event["args"][FACTS[event["name"]]]
        if event["name"] == "process_name":
            assert event["pid"] not in found.processes and value not in found.processes.values(), event
            found.processes[event["pid"]] = value
        if event["name"] == "thread_name":
            assert (event["pid"], event["tid"]) not in found.threads, event
            found.threads[event["pid"], event["tid"]] = value
        return
    assert isinstance(event["ts"], Decimal) and event["ts"] >= 0, event
    if event["ph"] == "C":
        assert event["args"] and all(isinstance(value, int | Decimal) for value in event["args"].values()), event
        return
    assert event["ph"] == "X" and isinstance(event["dur"], Decimal) and event["dur"] >= 0, event
    assert isinstance(event["tid"], int) and 0 < event["tid"] < 2**32 and isinstance(event["cat"], str), event


def _check_nesting(events: list[dict[str, Any]]) -> None:
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((ns(event["ts"]), ns(event["dur"]), event["name"]))
    for slices in threads.values():
        ends: list[int] = []
        for start, dur, name in sorted(slices, key=lambda item: item[0]):  # a stable sort, as the reader's is
            while ends and ends[-1] <= start:
                ends.pop()
            assert not ends or start + dur <= ends[-1], (start, dur, name)
            ends.append(start + dur)
