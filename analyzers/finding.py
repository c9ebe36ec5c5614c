"""What an analyzer found that is worth a person's time: cause, cost, predicted gain, the rows that show it, and a proof."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import duckdb

# A finding is shown from this predicted gain on (share of what the gain is of). Below it nobody's time is worth it.
LEAST_GAIN = 0.01
WARNING_GAIN, CRITICAL_GAIN = 0.02, 0.20
# What a gain may be a share of. 'step_time': of the engine's steps (`prove` measures that); 'busy': of the devices' busy
# time; 'window': of the recorded window; 'energy': of the joules measured; 'token_intervals': of the time between tokens of
# requests that decode, in the steps the finding is about.
GAIN_OF = ("step_time", "busy", "window", "energy", "token_intervals")


class Severity(StrEnum):
    """How bad; by the predicted gain unless a maker knows better."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Ends of an interval, shares of 1."""

    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def has_zero(self) -> bool:
        """Whether nothing at all lies inside."""
        return self.low <= 0 <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What goes away with the cause: a share of what `of` names (see GAIN_OF), 0..1."""

    value: float
    interval: Interval
    of: str = "step_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class AtMost:
    """All that is known of a gain is what it cannot exceed: a share `high` of what `of` names. Where the gain begins is not
    known, and unknown is not 0, so there is no interval either."""

    high: float
    of: str = "step_time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How a run is repeated without the cause. `workload`: the changed workload, None: the run's own.

    `engine_args` are set (K=V or K), after those named in `without` (K) were taken out of the run's own.
    """

    workload: str | None = None
    engine_args: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As the table holds it."""
        return {"workload": self.workload, "engine_args": list(self.engine_args), "without": list(self.without)}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Proof:
        """Of decoded JSON. Raises ValueError where it is none: a database may come from anywhere."""
        workload, added, removed = raw.get("workload"), raw.get("engine_args", []), raw.get("without", [])
        texts = (
            isinstance(added, list) and isinstance(removed, list) and all(isinstance(v, str) for v in added + removed)
        )
        if not texts or not (workload is None or isinstance(workload, str)):
            raise ValueError("not a proof")
        return cls(workload=workload, engine_args=tuple(added), without=tuple(removed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause. Unknown is None.

    `finding_id` is stable: the same cause in another run has the same one (lower case, dots, dashes). `device_ns` and
    `energy_j` are what it explains where the recording measured that, `share` is device_ns as a share of the devices'
    window, and `time_ns` ranks it: device_ns, else an estimate. `gain` is None for what is only said (INFO), and where no more is
    known than `at_most`. `evidence` is SQL with `$run_id` for the run, which returns rows; where the finding explains device time
    or energy, these have a column `explained_ns` or `explained_j` that sums to it. `fix` says in words what to do, flags of
    vLLM and SGLang included. `proof` is None where no run of ours can show it.
    """

    finding_id: str
    severity: Severity
    title: str
    cause: str
    device_ns: int | None
    energy_j: float | None
    share: float | None
    time_ns: int
    gain: Gain | None
    evidence: str
    fix: str
    proof: Proof | None = None
    at_most: AtMost | None = None

    @property
    def only_said(self) -> bool:
        """Whether nothing at all is known of a gain."""
        return self.gain is None and self.at_most is None

    @property
    def shown(self) -> bool:
        """Whether it is worth showing: information, a gain of which the interval leaves zero out, or one that may be large."""
        if self.gain is None:
            return self.severity is Severity.INFO or (self.at_most is not None and self.at_most.high >= LEAST_GAIN)
        return not self.gain.interval.has_zero and self.gain.value >= LEAST_GAIN

    def row(self, run_id: str, rank: int) -> tuple[Any, ...]:
        """Values of table `findings`, in the order of FINDING_COLUMNS."""
        numbers: tuple[Any, ...] = (None, None, None, None)
        if self.gain is not None:
            numbers = (self.gain.value, self.gain.interval.low, self.gain.interval.high, self.gain.of)
        elif self.at_most is not None:
            numbers = (None, None, self.at_most.high, self.at_most.of)
        quoted = run_id.replace("'", "''")  # kept as a statement that runs as it stands
        return (
            run_id, self.finding_id, rank, str(self.severity), self.title, self.cause, self.device_ns, self.energy_j,
            self.share, self.time_ns, *numbers, self.evidence.replace("$run_id", f"'{quoted}'"), self.fix,
            None if self.proof is None else json.dumps(self.proof.to_dict()),
        )  # fmt: skip


FINDING_COLUMNS = (
    "run_id", "finding_id", "place", "severity", "title", "cause", "device_ns", "energy_j", "share", "time_ns",
    "predicted_gain", "gain_low", "gain_high", "gain_of", "evidence", "fix", "proof",
)  # fmt: skip


class Maker(Protocol):
    """A module `analyzers/finding_*.py`'s function: the findings of one kind in a run that has been analyzed."""

    def __call__(self, con: duckdb.DuckDBPyConnection, run_id: str) -> Iterable[Finding]: ...


def severity_of(gain: Gain) -> Severity:
    """By the predicted gain."""
    if gain.value >= CRITICAL_GAIN:
        return Severity.CRITICAL
    return Severity.WARNING if gain.value >= WARNING_GAIN else Severity.INFO


def device_window_ns(con: duckdb.DuckDBPyConnection, run_id: str) -> int | None:
    """What `share` is a share of: the devices' windows, summed; None where none is known."""
    rows = con.execute(
        "SELECT sum(window_end_ns - window_start_ns)::BIGINT FROM devices WHERE run_id = ?", [run_id]
    ).fetchall()
    return rows[0][0] or None
