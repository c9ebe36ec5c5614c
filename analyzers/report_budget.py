"""Where the devices' time went, as parts that sum to the window: phases by bound, idle by cause, what is not recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from traces.store import TraceStore

BUSY_GROUPS = ("prefill", "decode", "other", "not split", "unattributed", "busy")
GROUPS = (*BUSY_GROUPS, "idle", "unrecorded", "withheld")
# What health can withhold, and what of the budget goes with it.
_BUSY = ("devices", "devices.busy_ns")
_IDLE = ("devices", "devices.idle_ns", "gaps")
_CAUSES = ("gaps.cause",)
_PHASES = ("steps", "steps.kind", "steps.prefill_ns", "steps.decode_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the window. `name`: the bound of busy time, the cause of idle time; None: not known.

    `n`: activities or idle pieces in it, None where that means nothing. `share`: of the window, exact; shares sum to 1.
    `why` is set where something is withheld.
    """

    group: str
    name: str | None
    ns: int
    n: int | None
    share: float
    why: str | None = None

    @property
    def tenths(self) -> int:
        """The share in tenths of a percent, rounded on its own as every other percentage is: parts need not sum to 1000."""
        return round(float(f"{100 * self.share:.1f}") * 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """`parts` sum to `window_ns`, the windows of all devices together."""

    window_ns: int
    devices: int
    parts: list[Part]

    def group_ns(self, *groups: str) -> int:
        """Time of some groups, ns."""
        return sum(part.ns for part in self.parts if part.group in groups)


_Raw = tuple[str, str | None, int, int | None, str | None]


def read_budget(store: TraceStore, idle: Sequence[Mapping[str, Any]], reasons: Mapping[str, str]) -> Budget | None:
    """The budget of a run; `idle` are its idle groups by cause (name, pieces, ns), `reasons` what health withholds.

    None where no device has a window, and where the tables contradict each other.
    """
    devices = store.query(
        "SELECT window_end_ns - window_start_ns AS window_ns, busy_ns, idle_ns, unrecorded_ns FROM devices "
        "WHERE run_id = ? AND window_end_ns > window_start_ns", [store.run_id],
    )  # fmt: skip
    window, busy, wait, unrecorded = (
        int(devices[name].sum() or 0) for name in ("window_ns", "busy_ns", "idle_ns", "unrecorded_ns")
    )
    if window <= 0:
        return None
    no_busy, no_idle = _reason(reasons, _BUSY), _reason(reasons, _IDLE)
    raw: list[_Raw]
    if no_busy is not None:
        raw = [
            ("withheld", "busy or idle", window - unrecorded, None, no_busy),
            ("unrecorded", None, unrecorded, None, None),
        ]
    else:
        raw = list(_busy(store, busy, reasons))
        if no_idle is not None:
            raw.append(("withheld", "idle or not recorded", window - busy, None, no_idle))
        else:
            raw += _idle(idle, wait, reasons)
            raw.append(("unrecorded", None, unrecorded, None, None))
    parts = [row for row in raw if row[2] > 0]
    if sum(row[2] for row in parts) != window:
        return None
    parts.sort(key=lambda row: (GROUPS.index(row[0]), -row[2], row[1] or ""))
    return Budget(
        window_ns=window, devices=devices.height,
        parts=[
            Part(group=group, name=name, ns=ns, n=n, share=ns / window, why=why) for group, name, ns, n, why in parts
        ],
    )  # fmt: skip


def _busy(store: TraceStore, busy: int, reasons: Mapping[str, str]) -> Iterable[_Raw]:
    """Busy time by phase and bound; what no activity accounts for keeps a part of its own."""
    rows = store.named("report_budget", "analyzers").to_dicts()
    why = _reason(reasons, _PHASES)
    merged: dict[tuple[str, str | None], list[int]] = {}
    for row in rows:
        key = ("busy" if why is not None else row["phase"], row["bound"])
        sums = merged.setdefault(key, [0, 0])
        sums[0] += row["busy_ns"]
        sums[1] += row["n"]
    for (group, bound), (ns, n) in merged.items():
        yield group, bound, ns, n, why
    rest = busy - sum(row["busy_ns"] for row in rows)
    if rest:
        yield "busy", None, rest, None, "no recorded activity accounts for it"


def _idle(groups: Sequence[Mapping[str, Any]], idle_ns: int, reasons: Mapping[str, str]) -> Iterable[_Raw]:
    why = _reason(reasons, _CAUSES)
    if why is not None:
        yield "idle", None, idle_ns, sum(row["pieces"] for row in groups), why
        return
    for row in groups:
        yield "idle", row["name"], row["ns"], row["pieces"], None
    rest = idle_ns - sum(row["ns"] for row in groups)
    if rest:
        yield "idle", None, rest, None, "no gap accounts for it"


def _reason(reasons: Mapping[str, str], names: Iterable[str]) -> str | None:
    return next((reasons[name] for name in names if name in reasons), None)
