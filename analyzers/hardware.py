"""Which device a recording or a user means, and the peaks its analysis is measured against.

A device is found by the name its driver gives, or by memory and units where there is no name; it is never guessed.
Peaks come from the user, else from a measurement of this machine, else from the datasheet, and say which.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb

from analyzers.costs.roof import Peaks
from analyzers.datasheet import Device, canonical_dtype, catalogue, flops_of, peaks_of, plain_name
from traces.calibration import Calibration, binding_of, matching, read_calibrations
from traces.errors import UsageProblem
from traces.rows import first_row
from traces.store import named_sql

__all__ = [
    "NO_OVERRIDE", "Calibration", "Device", "PeakOverride", "Peaks", "calibration_of", "canonical_dtype", "catalogue",
    "fill_devices", "find_device", "flops_of", "main_dtype", "named_device", "parse_rate", "peak_override", "peaks_of",
    "smallest",
]  # fmt: skip

_LEAST_RATE = 1e6  # per second; a bare "990" is a forgotten unit
_MOST_RATE = 1e24  # a million of the fastest machines there are; beyond, quotients leave the range of numbers
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_RATE = re.compile(
    r"\s*(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([kmgtpe]?)(i?)\s*(flops?|flop/s|ops?|b/s|bytes/s|bps|b)?\s*",
    re.I | re.ASCII,
)
# Operand types in the names of matrix kernels: CUTLASS and cuBLAS spell them out, nvjet (t: bfloat16, h: half, q: 8
# bits) and rocBLAS (B, H, F8 behind the index letters) abbreviate. Narrow ones first: outputs are often wider.
_KERNEL_DTYPES: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), dtype)
    for pattern, dtype in (
        (r"e4m3|e5m2|(?i:fp8|float8)|nvjet_(?:sm\d+_)?q|_F8[A-Z0-9]*S?_", "fp8"),
        (r"(?i:int8|s8s8|i8816|i16832)|_I8I?I?_", "int8"),
        (r"(?i:bf16|bfloat16)|nvjet_(?:sm\d+_)?t[a-z]t|_BBS_|_BSS_", "bf16"),
        (r"(?i:hgemm|half|fp16|f16f16|h16816|h1688|_f16)|nvjet_(?:sm\d+_)?h[a-z]h|_HHS_|_HSS_", "fp16"),
        (r"(?i:tf32)", "tf32"),
        (r"(?i:sgemm)|_SB_", "fp32"),
    )
)


def find_device(
    name: str | None, memory_bytes: int | None = None, units: int | None = None, vendor: str | None = None
) -> Device | None:
    """The device of a recording: by the driver's name, or by memory and number of units where there is no name.

    None where nothing or more than one fits, and where name and numbers disagree (a partition of a device is not the
    device).
    """
    if name:
        key = plain_name(name)
        found = [item for item in catalogue() if key in {plain_name(each) for each in item.driver_names}]
        found = [item for item in found if units is None or item.counts(units)]
        found = [item for item in found if memory_bytes is None or item.holds(memory_bytes)]
    elif memory_bytes is not None and units is not None:
        found = [item for item in catalogue() if item.units == units and item.holds(memory_bytes)]
        found = [item for item in found if vendor is None or item.vendor == vendor.lower()]
    else:
        found = []
    return found[0] if len(found) == 1 else None


def named_device(name: str) -> Device:
    """The device that a user means by `--gpu NAME`. Raises UsageProblem for an unknown name and for one of several."""
    key = plain_name(name)
    for item in catalogue():
        if key in {plain_name(each) for each in (item.name, *item.aliases, *item.driver_names)}:
            return item
    meant = [item.name for item in catalogue() if key and plain_name(item.name).startswith(key)]
    if len(meant) == 1:
        return next(item for item in catalogue() if item.name == meant[0])
    if meant:
        raise UsageProblem(f"GPU {name} may be one of several", hint=f"say which: {', '.join(meant)}")
    near = difflib.get_close_matches(key, [plain_name(item.name) for item in catalogue()], n=4, cutoff=0.5)
    close = [item.name for item in catalogue() if plain_name(item.name) in near]
    known = ", ".join(item.name for item in catalogue())
    raise UsageProblem(
        f"unknown GPU {name}; known: {known}",
        hint=(f"did you mean {' or '.join(close)}? " if close else "") + "Or give --peak-flops and --bandwidth",
    )


def parse_rate(text: str, option: str) -> float:
    """'990T', '990 TFLOP/s', '3.35TB/s', '3350e9' as operations or bytes per second. Raises UsageProblem."""
    match = _RATE.fullmatch(text)
    if match is None:
        example = "3.35TB/s" if option.endswith("bandwidth") else "990T"
        raise UsageProblem(f"{option} {text} is not a rate", hint=f"give a number with a unit, such as {example}")
    number, prefix, binary, _ = match.groups()
    power = "kmgtpe".find(prefix.lower()) + 1 if prefix else 0
    rate = float(number) * (1024.0**power if binary else _UNITS[prefix.lower()])
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise UsageProblem(
            f"{option} {text} is no rate of a device", hint="give it with its unit, such as 990T or 3.35TB/s"
        )
    return rate


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakOverride:
    """What a user said about the hardware: a device of the catalogue, rates in FLOP/s and bytes/s."""

    device: Device | None = None
    peak_flops: float | None = None
    bandwidth: float | None = None


NO_OVERRIDE = PeakOverride()


def peak_override(gpu: str | None = None, peak_flops: str | None = None, bandwidth: str | None = None) -> PeakOverride:
    """From the options --gpu, --peak-flops and --bandwidth. Raises UsageProblem for what they do not name."""
    return PeakOverride(
        device=None if gpu is None else named_device(gpu),
        peak_flops=None if peak_flops is None else parse_rate(peak_flops, "--peak-flops"),
        bandwidth=None if bandwidth is None else parse_rate(bandwidth, "--bandwidth"),
    )


def fill_devices(con: duckdb.DuckDBPyConnection, run_id: str, override: PeakOverride = NO_OVERRIDE) -> None:
    """Write peak_flops, peak_bandwidth, peak_source and ridge of the run's devices; NULL where nothing is known.

    Name, vendor and memory are completed where the recording lists its devices but numbers them differently.
    """
    config = _run_config(con, run_id)
    dtype = main_dtype(con, run_id)
    entries = _calibrations(config)
    rows = con.execute(named_sql("hardware_devices", "analyzers"), {"run_id": run_id}).fetchall()
    for rank, number, *known in rows:
        facts = _facts(config, number)
        name, vendor, memory = known[0] or str(facts.get("name") or "") or None, known[1], known[2]
        memory = memory if memory is not None else _integer(facts.get("totalGlobalMem"))
        units = _integer(facts.get("numSms")) or _integer(facts.get("multiProcessorCount"))
        device = None if vendor == "cpu" else find_device(name, memory, units, vendor)
        measured = matching(entries, device_name=name, bind=_binding(config) if vendor == "cpu" else None)
        flops, bandwidth, source = _peaks(override, measured, device, dtype)
        values: dict[str, Any] = {"peak_flops": flops, "peak_bandwidth": bandwidth, "peak_source": source}
        values |= {"name": name or (device and device.driver_names[0]), "vendor": vendor or (device and device.vendor)}
        values |= {"memory_bytes": memory, "run_id": run_id, "rank": rank, "device": number}
        con.execute(named_sql("hardware_fill", "analyzers"), values)


def main_dtype(con: duckdb.DuckDBPyConnection, run_id: str) -> str | None:
    """What most of a run computes in, as `canonical_dtype` names it: as the run says, else by device time of its matrix
    products (operand types, else kernel names), else as the model's configuration says; None where nothing does."""
    row = first_row(con.execute(
        "SELECT dtype, config ->> '$.model_config.dtype', config ->> '$.model_config.torch_dtype' FROM runs "
        "WHERE run_id = ?", [run_id],
    )) or (None, None, None)  # fmt: skip
    stated = canonical_dtype(row[0])
    if stated is not None:
        return stated
    seen: dict[str, int] = {}
    for op_dtypes, name, busy_ns in con.execute(
        named_sql("hardware_dtypes", "analyzers"), {"run_id": run_id}
    ).fetchall():
        dtype = _operand_dtype(op_dtypes) if op_dtypes is not None else _named_dtype(name)
        if dtype is not None:
            seen[dtype] = seen.get(dtype, 0) + busy_ns
    if seen:
        return max(seen, key=lambda dtype: seen[dtype])
    return canonical_dtype(row[1]) or canonical_dtype(row[2])


def calibration_of(con: duckdb.DuckDBPyConnection, run_id: str) -> Calibration | None:
    """The measurement that the run's first device is judged by; None where there is none."""
    config = _run_config(con, run_id)
    row = first_row(
        con.execute("SELECT name, vendor FROM devices WHERE run_id = ? ORDER BY rank, device LIMIT 1", [run_id])
    )
    if row is None:
        return None
    return matching(_calibrations(config), device_name=row[0], bind=_binding(config) if row[1] == "cpu" else None)


def smallest(measured: Calibration | None) -> tuple[float | None, float | None]:
    """ns of the smallest piece of work that was measured, bytes of the smallest working set; None: there is none."""
    if measured is None:
        return None, None
    return measured.launch_ns, min((rate.working_set_bytes for rate in measured.memory), default=None)


def _peaks(
    override: PeakOverride, measured: Calibration | None, device: Device | None, dtype: str | None
) -> tuple[float | None, float | None, str | None]:
    """FLOP/s, bytes/s and where they come from; a user's rate wins, a user's device replaces the recording's."""
    flops = measured.peak_flops(dtype) if measured and dtype else None
    bandwidth = measured.peak_bandwidth if measured else None
    source = "calibrated" if flops is not None or bandwidth is not None else None
    device = override.device or device
    if override.device is not None or source is None:
        flops = None if device is None else flops_of(device, dtype)
        bandwidth = None if device is None else device.bandwidth
        source = None if device is None else "datasheet"
    if override.peak_flops is not None or override.bandwidth is not None:
        source = "user"
    return override.peak_flops or flops, override.bandwidth or bandwidth, source


def _run_config(con: duckdb.DuckDBPyConnection, run_id: str) -> dict[str, Any]:
    row = first_row(con.execute("SELECT config, source FROM runs WHERE run_id = ?", [run_id]))
    config = json.loads(row[0]) if row and row[0] else {}
    return {**(config if isinstance(config, dict) else {}), "_source": row[1] if row else None}


def _calibrations(config: Mapping[str, Any]) -> tuple[Calibration, ...]:
    """What the run itself carries, else what this machine has. Nothing says that a foreign recording was made here."""
    carried = config.get("calibration")
    if isinstance(carried, dict):
        try:
            return (Calibration.from_dict(carried),)
        except (KeyError, TypeError, ValueError):
            return ()
    return read_calibrations() if config.get("_source") in ("profile", "attach") else ()


def _binding(config: Mapping[str, Any]) -> str:
    environment = config.get("engine_env")
    return binding_of(environment if isinstance(environment, dict) else {})


def _facts(config: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """Properties of device `number` as the recording lists them. Where it is not listed (HIP numbers activities
    differently), those of any, if all are alike."""
    listed = config.get("deviceProperties")
    entries = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    for item in entries:
        if item.get("id") == number:
            return item
    alike = {json.dumps({key: value for key, value in item.items() if key != "id"}, sort_keys=True) for item in entries}
    return entries[0] if len(alike) == 1 else {}


def _operand_dtype(op_dtypes: str) -> str | None:
    """The first operand's type; a bias that comes before it has the same."""
    kinds = json.loads(op_dtypes)
    return next((dtype for dtype in map(canonical_dtype, _texts(kinds)) if dtype is not None), None)


def _named_dtype(name: str | None) -> str | None:
    return next((dtype for pattern, dtype in _KERNEL_DTYPES if name and pattern.search(name)), None)


def _texts(kinds: object) -> Iterable[str]:
    return (kind for kind in kinds if isinstance(kind, str)) if isinstance(kinds, list) else ()


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**63 else None
