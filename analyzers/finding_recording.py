"""What the recorder added to the host's time, and what that leaves of the findings that rest on it.

A profiler slows the host, not the device, so idle time that the host causes is partly the profiler's. A control pass
measures how much longer a step took; then the ends of a gain move by that. Without one, what was recorded beside the
launches (stacks, shapes, memory) only says that it was slowed: how far is not known, and so neither is where a gain begins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import duckdb

from analyzers.finding import AtMost, Finding, Interval, Severity, severity_of
from analyzers.finding_basis import Basis
from traces.store import frame, named_sql

# Facts of a recording (runs.config, as the torch profiler writes them), and what each says was recorded.
_SLOWING = {
    "with_stack": "stacks",
    "record_shapes": "operator shapes",
    "profile_memory": "memory",
    "with_modules": "modules",
}


def with_cost_of_recording(run: Basis, made: Finding) -> Finding:
    """The finding, with as much of its gain as may be claimed of a host that was slowed while it was recorded."""
    longer, recorded = times_as_long(run.con, run.run_id), slowed_by(run.config)
    if longer is not None:
        return made if longer <= 1 else _without_cost(made, longer)
    if not recorded or made.gain is None:
        return made
    words = f"part of this is the profiler's: {recorded} were recorded, which slows the host, and no control pass tells by how much"
    return replace(
        made, cause=f"{made.cause}; {words}", severity=Severity.WARNING, gain=None,
        at_most=AtMost(high=made.gain.interval.high, of=made.gain.of), time_ns=made.device_ns or made.time_ns,
    )  # fmt: skip


def _without_cost(made: Finding, longer: float) -> Finding:
    """The lower end as if all that recording added had been this wait, the upper end as if none had been; between them the
    mean of both. With waits of a share s, steps without the profiler take 1/`longer`, and the rest of them as long as before."""
    if made.gain is None:
        return made
    low, value = (max(0.0, 1 - longer * (1 - share)) for share in (made.gain.interval.low, made.gain.value))
    gain = replace(
        made.gain, value=(made.gain.value + value) / 2, interval=Interval(low=low, high=made.gain.interval.high)
    )
    words = f"recording made steps {longer:.2f} times as long (control pass); the gain allows for all of that being part of this"
    return replace(
        made,
        cause=f"{made.cause}; {words}",
        gain=gain,
        severity=severity_of(gain),
        time_ns=round(made.time_ns * gain.value / made.gain.value),
    )


def slowed_by(config: Mapping[str, Any]) -> str:
    """What was recorded beside the launches, in words; empty where the recording names nothing."""
    names = [word for key, word in _SLOWING.items() if config.get(key) in (1, True, "1", "true")]
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def times_as_long(con: duckdb.DuckDBPyConnection, run_id: str) -> float | None:
    """How many times as long recorded steps took as those of the control pass; None where there is none to compare with."""
    row = frame(con.sql(named_sql("summary_overhead", "analyzers"), params={"run_id": run_id})).row(0, named=True)
    ratio = row["step_ratio"] if row["steps"] else None
    return ratio if ratio is not None and math.isfinite(ratio) and ratio > 0 else None
