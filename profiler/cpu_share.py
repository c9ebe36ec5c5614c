"""How much of a machine's processor time others took while a pass ran: what neither the engine nor its client asked for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

IDLE, IOWAIT, STEAL = 3, 4, 7  # fields of the line `cpu` of /proc/stat; guest time is part of user time
_UTIME, _STIME = 11, 12  # of /proc/PID/stat, counted from the state


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTimes:
    """Clock ticks up to a moment: of the engine's processes and this one, taken by anybody or by the hypervisor, and all."""

    own: int
    taken: int
    whole: int


def machine_ticks(stat: Path) -> list[int] | None:
    """Ticks since boot of all processors by use, without those of guests, 0 where an old kernel has no such field; None where
    the file does not say."""
    try:
        with stat.open("rb") as file:
            fields = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return fields + [0] * (STEAL + 1 - len(fields)) if len(fields) > IDLE else None


def cpu_times(pids: Iterable[int], root: Path = Path("/")) -> CpuTimes | None:
    """As of now; None where /proc does not say (another system)."""
    fields = machine_ticks(root / "proc/stat")
    if fields is None:
        return None
    whole = sum(fields)
    own = sum(_ticks(root, pid) for pid in {os.getpid(), *pids})
    return CpuTimes(own=own, taken=whole - fields[IDLE] - fields[IOWAIT], whole=whole)


def others(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """Share of all processors' time between two moments, 0..1; None where it is not known.

    Of processes that ended in between the time is not known and counts as others'.
    """
    if before is None or after is None or after.whole <= before.whole:
        return None
    share = ((after.taken - before.taken) - (after.own - before.own)) / (after.whole - before.whole)
    return round(min(1.0, max(0.0, share)), 4)


def _ticks(root: Path, pid: int) -> int:
    """0 for a process that is gone."""
    try:
        text = (root / f"proc/{pid}/stat").read_text()
        fields = text[text.rfind(")") + 2 :].split()  # the name before may hold anything
        return int(fields[_UTIME]) + int(fields[_STIME])
    except (OSError, ValueError, IndexError):
        return 0
