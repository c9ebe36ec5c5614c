"""What the sensors said about the load: figures of the parts `sensors` and `gpm`."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.verdict import Figure

S = 1_000_000_000
SETTLE_NS = 1_500_000_000  # averages of power and activity reach the load's level within it
Sample = dict[str, Any]


def read_samples(path: Path) -> tuple[dict[str, Any], list[Sample]]:
    """Header, and samples of device 0 by time; empty where there are none. Torn lines are left out."""
    header: dict[str, Any] = {}
    samples: list[Sample] = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return header, samples
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict):
            continue
        if record.get("kind") == "header":
            header = record
        elif "kind" not in record and record.get("device") == 0:
            samples.append(record)
    return header, sorted(samples, key=lambda sample: sample["ts_ns"])


def of_sampling(header: dict[str, Any], samples: Sequence[Sample]) -> list[Figure]:
    """Whether samples came, and how often."""
    times = [sample["ts_ns"] for sample in samples]
    if len(times) < 2:
        return [Figure(check="sensors.ran", value=float(len(times)), note="fewer than two samples")]
    between = [later - early for early, later in itertools.pairwise(times)]
    due = (times[-1] - times[0]) / S * header.get("hz", 10) + 1
    note = f"{header.get('source')}, {len(times)} samples in {(times[-1] - times[0]) / S:.1f} s"
    period = statistics.median(between) / 1e6
    return [
        Figure(check="sensors.ran", value=len(times) / due, note=note),
        Figure(check="sensors.period", value=period, note=f"n = {len(between)}, longest {max(between) / 1e6:.0f} ms"),
    ]


def of_load(header: dict[str, Any], samples: Sequence[Sample], load: dict[str, Any]) -> list[Figure]:
    """Power, energy and activity against what is known of the load."""
    start, end = load["start_ns"], load["end_ns"]
    whole_s = (end - start) / S
    first, last = start - round(load["rest_s"] * S), end + round(load["rest_s"] * S)
    seen = [sample for sample in samples if first <= sample["ts_ns"] <= last]
    during = [sample for sample in seen if start + SETTLE_NS <= sample["ts_ns"] <= end]
    rest = [sample for sample in seen if sample["ts_ns"] < start]
    facts: dict[str, Any] = next((item for item in header.get("devices", []) if item.get("device") == 0), {})
    note = f"{load['products']} products of {load['side']}³ in {whole_s:.2f} s, {load['flops'] / load['busy_s'] / 1e12:.1f} TFLOP/s"
    figures = [Figure(check="sensors.load", value=load["busy_s"] / whole_s, note=note)]
    period = facts.get("power_period_ns")
    figures.append(Figure(
        check="sensors.power_period", value=None if period is None else period / 1e6,
        note="" if period else "the reading did not change in 1.2 s before the load",
    ))  # fmt: skip
    figures += _energy(samples, seen, (start, end), facts.get("power_limit_w"))
    figures += _power(seen, rest, during, whole_s)
    figures.append(_mean("sensors.utilization", during, "sm_util", "the driver gives no utilization"))
    figures.append(_mean("sensors.resident", during, "resident", "the driver does not say"))
    return figures + _gpm(rest, during)


def _energy(
    samples: Sequence[Sample], seen: Sequence[Sample], span: tuple[int, int], limit_w: float | None
) -> list[Figure]:
    counted = [sample for sample in samples if "energy_j" in sample]
    if len(counted) < 3:
        reason = "no energy counter (NVIDIA before Volta, or no permission)"
        return [Figure(check=check, value=None, note=reason) for check in ("sensors.energy", "sensors.limit")]
    both = [sample for sample in seen if "energy_j" in sample and _power_of(sample) is not None]
    figures = []
    if len(both) > 2:
        counter = both[-1]["energy_j"] - both[0]["energy_j"]
        power = integrated(both)
        note = f"{counter:.0f} J against {power:.0f} J, n = {len(both)}"
        figures.append(Figure(check="sensors.energy", value=counter / power if power else None, note=note))
    else:
        figures.append(Figure(check="sensors.energy", value=None, note="no power beside the counter"))
    used = energy_at(counted, span[1]) - energy_at(counted, span[0])
    seconds = (span[1] - span[0]) / S
    note = f"{used:.0f} J in {seconds:.2f} s: {used / seconds:.0f} W" + (f" of {limit_w:.0f} W" if limit_w else "")
    value = used / (limit_w * seconds) if limit_w else None
    return [*figures, Figure(check="sensors.limit", value=value, note=note if limit_w else f"no power limit; {note}")]


def _power(seen: Sequence[Sample], rest: Sequence[Sample], during: Sequence[Sample], whole_s: float) -> list[Figure]:
    """Power under load against that at rest, and for how long it was above the middle of the two."""
    at_rest, under = ([power for sample in part if (power := _power_of(sample)) is not None] for part in (rest, during))
    if not at_rest or not under:
        reason = "no power reading at rest and under load"
        return [Figure(check=check, value=None, note=reason) for check in ("sensors.contrast", "sensors.length")]
    low, high = statistics.median(at_rest), statistics.median(under)
    middle = (low + high) / 2
    known = [(sample["ts_ns"], power) for sample in seen if (power := _power_of(sample)) is not None]
    above = sum(later - early for (early, power), (later, _) in itertools.pairwise(known) if power > middle)
    note = f"{high:.0f} W and {low:.0f} W, n = {len(under)} and {len(at_rest)}"
    return [
        Figure(check="sensors.contrast", value=high / low if low > 0 else None, note=note),
        Figure(check="sensors.length", value=above / S / whole_s, note=f"{above / S:.1f} s above {middle:.0f} W"),
    ]


def _gpm(rest: Sequence[Sample], during: Sequence[Sample]) -> list[Figure]:
    absent = "GPM is absent: a device before Hopper, a slice of one, or no permission"
    columns = (("gpm.sm", "sm_active"), ("gpm.tensor", "tensor_active"), ("gpm.dram", "dram_active"))
    figures = [_mean(check, during, column, absent) for check, column in columns]
    return [*figures, _mean("gpm.rest", rest, "sm_active", absent)]


def _mean(check: str, samples: Sequence[Sample], column: str, absent: str) -> Figure:
    values = [float(sample[column]) for sample in samples if sample.get(column) is not None]
    if not values:
        return Figure(check=check, value=None, note=absent)
    return Figure(check=check, value=statistics.fmean(values), note=f"n = {len(values)}")


def _power_of(sample: Sample) -> float | None:
    """What the driver measured at the moment, else its average."""
    power = sample.get("power_instant_w", sample.get("power_w"))
    return None if power is None else float(power)


def integrated(samples: Sequence[Sample]) -> float:
    """J of a power reading by the trapezoidal rule."""
    return math.fsum(
        ((_power_of(early) or 0) + (_power_of(late) or 0)) / 2 * (late["ts_ns"] - early["ts_ns"]) / S
        for early, late in itertools.pairwise(samples)
    )


def energy_at(samples: Sequence[Sample], ts_ns: int) -> float:
    """J of the counter at a time, on the line between two samples; beyond them, the nearest."""
    before = [sample for sample in samples if sample["ts_ns"] <= ts_ns]
    after = [sample for sample in samples if sample["ts_ns"] > ts_ns]
    if not before or not after:
        return float((before or after[:1])[-1]["energy_j"])
    early, late = before[-1], after[0]
    share = (ts_ns - early["ts_ns"]) / (late["ts_ns"] - early["ts_ns"])
    return float(early["energy_j"] + share * (late["energy_j"] - early["energy_j"]))
