"""The finding of execution-idle: devices that hold a program, do next to nothing, and draw power (method §8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from analyzers.energy_devices import Sensed, sensed_devices
from analyzers.energy_remedies import downclock
from analyzers.finding import Finding, Severity
from analyzers.finding_basis import Basis, finding, gain_between
from analyzers.finding_limits import LEAST_IDLE_TIME
from traces.rows import first_row

_FIX = (
    "fewer replicas when there is little to do (pack the load, scale to zero), or lower clocks while idle (nvidia-smi "
    "--lock-gpu-clocks, and memory clocks where the device has them)"
)
_EVIDENCE = (
    "SELECT rank, device, start_ns, end_ns, energy_j AS explained_j FROM execution_idle WHERE run_id = $run_id AND min_duration_s = 0 "
    "ORDER BY end_ns - start_ns DESC"
)


def of_energy(run: Basis) -> Iterator[Finding]:
    """Nothing without sensors, where they are withheld, or where the share is small.

    The gain is of the energy the sensors saw. Its interval reaches from lower clocks of the processors to those of the
    memory as well, as a study measured them on one device (analyzers/execution_idle.toml).
    """
    if not run.trusts("telemetry", "execution_idle"):
        return
    row = first_row(run.con.execute(
        "SELECT coalesce(sum(end_ns - start_ns), 0)::BIGINT, count(*), sum(energy_j), count(DISTINCT (rank, device)) FROM execution_idle "
        "WHERE run_id = ? AND min_duration_s = 0", [run.run_id],
    ))  # fmt: skip
    if row is None or not row[1]:
        return
    idle_ns, intervals, idle_j, devices = row
    sensed = sensed_devices(run.con, run.run_id)
    seen_ns = sum(device.end_ns - device.start_ns for device in sensed)
    if seen_ns <= 0 or idle_ns < LEAST_IDLE_TIME * seen_ns:
        return
    energy = run.trusts("telemetry.power_w", "telemetry.energy_j")
    whole_j = _energy_j(sensed) if energy else None
    saved = sorted(item["saved_j"] for item in downclock(sensed)) if energy else []
    gain = None
    if whole_j and saved:
        gain = gain_between(saved[0] / whole_j, sum(saved) / len(saved) / whole_j, saved[-1] / whole_j, "energy")
    yield finding(
        run, "energy.execution-idle", "devices are loaded and idle",
        f"{devices} devices do next to nothing for {idle_ns / seen_ns:.0%} of the time their sensors saw, in {intervals:,} stretches "
        "of any length, with a program loaded", _FIX, _EVIDENCE,
        gain=gain, whole_ns=idle_ns, energy_j=idle_j if energy else None, severity=None if gain else Severity.INFO,
    )  # fmt: skip


def _energy_j(sensed: Sequence[Sensed]) -> float | None:
    """Of all devices that tell it, over the time their sensors saw; None where none does."""
    return sum(device.curve.total_j for device in sensed if device.curve is not None) or None
