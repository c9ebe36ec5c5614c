"""Logs of `nvidia-smi --query-gpu=… --format=csv` (with or without units) → staging `telemetry` and `sensors`.

The header names the columns, so it has to be there, once or as often as the command was started. nvidia-smi prints the
local time of its machine without saying which: it is taken as UTC unless the ingest was told (`--utc-offset`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from traces.clock import MOST_NS, NS_PER_US
from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.telemetry_rows import (
    MOST_DEVICE,
    Blocks,
    SensorRow,
    append_samples,
    append_sensors,
    drop,
    lines_of,
    note,
    throttle_names,
)  # fmt: skip

_MIB = float(1 << 20)
# query → (column, unit → factor); the unit stands behind the value, or without units in the header
_POWER = {"W": 1.0, "mW": 1e-3, "kW": 1e3}
_SHARE = {"%": 0.01}
_CLOCK = {"MHz": 1.0}
QUERIES: dict[str, tuple[str, dict[str, float]]] = {
    "power.draw": ("power_w", _POWER),
    "power.draw.average": ("power_average_w", _POWER),
    "power.draw.instant": ("power_instant_w", _POWER),
    "power.limit": ("limit_w", _POWER),
    "enforced.power.limit": ("enforced_limit_w", _POWER),
    "total_energy_consumption": ("energy_j", {"mJ": 1e-3, "J": 1.0}),
    "utilization.gpu": ("sm_util", _SHARE),
    "utilization.memory": ("mem_util", _SHARE),
    "clocks.sm": ("sm_clock_mhz", _CLOCK),
    "clocks.current.sm": ("sm_clock_mhz", _CLOCK),
    "clocks.mem": ("mem_clock_mhz", _CLOCK),
    "clocks.current.memory": ("mem_clock_mhz", _CLOCK),
    "memory.used": ("memory_used_bytes", {"MiB": _MIB, "GiB": _MIB * 1024, "KiB": 1024.0}),
    "temperature.gpu": ("temperature_c", {"C": 1.0}),
}
_NO_UNIT = {"energy_j": 1e-3, "sm_util": 0.01, "mem_util": 0.01, "memory_used_bytes": _MIB}  # else 1
KEYS = {
    "timestamp": "timestamp", "index": "index", "uuid": "uuid", "gpu_uuid": "uuid", "pci.bus_id": "pci",
    "gpu_bus_id": "pci", "name": "name", "gpu_name": "name",
}  # fmt: skip
_REASONS = {
    "gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80,
}  # fmt: skip
_REASON = re.compile(r"clocks_(?:throttle|event)_reasons\.(\w+)")
_HEADERLESS = re.compile(r"(?:\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d+|GPU-[0-9a-f]{8}-)")
_WITH_UNITS = re.compile(r"(?:^|,)\s*[0-9.]+ (?:W|MHz|MiB|%)\s*(?:,|$)")
_TIME_FORMATS = ("%Y/%m/%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")
UTC_NOTE = "its times have no time zone and were taken as UTC: --utc-offset says otherwise"
_NUMBER = r"^([+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z%]*)$"


@dataclass(slots=True, kw_only=True)
class _Log:
    """State of one file: its columns, and the devices seen so far."""

    header: str = ""
    columns: list[str] = field(default_factory=list)  # queries, without units
    units: list[str] = field(default_factory=list)  # of the header
    ordinals: dict[str, int] = field(default_factory=dict)  # by uuid or bus id, where there is no index
    sensors: dict[tuple[int, str], SensorRow] = field(default_factory=dict)

    @property
    def key(self) -> str | None:
        """The column that tells devices apart."""
        return next((name for name in ("index", "uuid", "pci") if name in self.columns), None)


class SmiReader:
    """Columns of text, a block of lines at a time."""

    name = "nvidia-smi"

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the first line names queries, or a `.csv` looks like such a log without its header."""
        first = head.lstrip(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0][:4096].decode(errors="replace").strip()
        if _is_header(first):
            return True
        return ".csv" in path.suffixes and _looks_headerless(first)

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Raises UnreadableInput where the header, its time, or what tells several devices apart is missing."""
        report = ReadReport(path=path, format=self.name, kept={"telemetry": 0})
        log = _Log()
        blocks = Blocks(path, options)
        for block in blocks:
            lines = lines_of(block.removeprefix(b"\xef\xbb\xbf"))
            if not log.header and lines.height:
                _take_header(log, lines["line"][0], path)
            data = lines.filter(pl.col("line") != log.header)
            rows = _rows(log, data, report, options.utc_offset_ns or 0)
            _refuse_unknown_devices(log, rows, path)
            append_samples(sink, rows, src, report)
        append_sensors(sink, log.sensors, src)
        if options.utc_offset_ns is None:
            note(report, UTC_NOTE)
        blocks.finish(report)
        return report


def local_ns(text: pl.Expr, offset_ns: int) -> pl.Expr:
    """ns since the epoch of local times that are ahead of UTC by `offset_ns`; NULL where it is no time."""
    parsed = pl.coalesce(text.str.to_datetime(form, strict=False, time_unit="us") for form in _TIME_FORMATS)
    micros = parsed.dt.epoch("us")  # of any year; as ns only the near ones fit
    return pl.when(micros.is_between(0, MOST_NS // NS_PER_US)).then(micros * NS_PER_US) - offset_ns


def _names(line: str) -> tuple[list[str], list[str]]:
    """Queries of a header and their units, '' where it gives none."""
    parts = [re.fullmatch(r"\s*([^\[\]]*?)\s*(?:\[([^\[\]]*)\])?\s*", item) for item in line.split(",")]
    found = [(match.group(1), match.group(2) or "") if match else ("", "") for match in parts]
    return [KEYS.get(name, name) for name, _ in found], [unit for _, unit in found]


def _is_known(name: str) -> bool:
    return name in QUERIES or name in KEYS.values() or _REASON.fullmatch(name) is not None


def _is_header(line: str) -> bool:
    names, _ = _names(line)
    known = sum(name not in KEYS.values() and _is_known(name) for name in names)
    return known > 0 and (known > 1 or bool(set(names) & set(KEYS.values())) or len(names) == 1)


def _looks_headerless(line: str) -> bool:
    return "," in line and (_HEADERLESS.search(line) is not None or _WITH_UNITS.search(line) is not None)


def _take_header(log: _Log, line: str, path: Path) -> None:
    if not _is_header(line):
        raise UnreadableInput(
            f"{path} has no header line, so its columns have no names",
            hint="record it with --format=csv (no `noheader`), or put the query's names in a first line",
        )
    log.header = line
    log.columns, log.units = _names(line)
    if "timestamp" not in log.columns:
        raise UnreadableInput(
            f"{path} has no column `timestamp`, so its samples have no times",
            hint="record it with --query-gpu=timestamp,index,power.draw,…",
        )


def _rows(log: _Log, lines: pl.DataFrame, report: ReadReport, offset_ns: int) -> pl.DataFrame:
    width = len(log.columns)
    parts = lines.select(part=pl.col("line").str.split(","))
    whole = parts.filter(pl.col("part").list.len() == width)
    drop(report, "line with another number of fields", parts.height - whole.height)
    place_of = {name: f"{place}" for place, name in reversed(list(enumerate(log.columns))) if _is_known(name)}
    raw = whole.select(
        pl.col("part").list.get(int(place)).str.strip_chars().alias(place) for place in place_of.values()
    )
    columns = {"ts_ns": local_ns(pl.col(place_of["timestamp"]), offset_ns), "source": pl.lit("nvidia-smi")}
    for name, place in place_of.items():
        if name in QUERIES:
            column, factors = QUERIES[name]
            columns[column] = _quantity(column, pl.col(place), factors, log.units[int(place)])
    columns["throttle"] = _throttle(place_of)
    found = raw.select(value.alias(name) for name, value in columns.items())
    found = found.with_columns(device=_devices(log, raw, place_of))
    _learn(log, found, raw, place_of)
    if "power_average_w" in found.columns:
        power = [name for name in ("power_average_w", "power_w") if name in found.columns]
        found = found.with_columns(power_w=pl.coalesce(power))
    return found


def _quantity(column: str, text: pl.Expr, factors: dict[str, float], header_unit: str) -> pl.Expr:
    """The number, scaled by its own unit, else the header's; NULL for [N/A], ERR! and units that are not known."""
    value = text.str.extract(_NUMBER, 1).cast(pl.Float64, strict=False)
    unit = text.str.extract(_NUMBER, 2)
    bare = factors.get(header_unit, _NO_UNIT.get(column, 1.0) if not header_unit else None)
    known = pl.when(unit == "").then(pl.lit(bare, dtype=pl.Float64))
    for name, factor in factors.items():
        known = known.when(unit == name).then(pl.lit(factor))  # type: ignore[assignment]
    return value * known


def _throttle(place_of: dict[str, str]) -> pl.Expr:
    """From the mask where it was queried, else from the single reasons."""
    reasons = {match.group(1): place for name, place in place_of.items() if (match := _REASON.fullmatch(name))}
    if "active" in reasons:
        digits = pl.col(reasons["active"]).str.to_lowercase().str.extract(r"^0x([0-9a-f]{1,16})$", 1)
        return throttle_names(digits.str.to_integer(base=16, strict=False, dtype=pl.Int64))
    flags = [
        pl.when(pl.col(place) == "Active").then(bit).when(pl.col(place) == "Not Active").then(0)
        for name, place in reasons.items()
        if (bit := _REASONS.get(name)) is not None
    ]
    mask = pl.sum_horizontal(flags, ignore_nulls=True) if flags else pl.lit(None, dtype=pl.Int64)
    some = pl.any_horizontal(flag.is_not_null() for flag in flags) if flags else pl.lit(value=False)
    return throttle_names(pl.when(some).then(mask.cast(pl.Int64)))


def _devices(log: _Log, raw: pl.DataFrame, place_of: dict[str, str]) -> pl.Series:
    """Ordinals: the index, else the order in which uuids or bus ids appear, else 0."""
    if log.key is None:
        return pl.Series("device", [0] * raw.height, dtype=pl.Int64)
    texts = raw[place_of[log.key]]
    if log.key == "index":
        return texts.cast(pl.Int64, strict=False).alias("device")
    for text in texts.unique(maintain_order=True):
        if text and text not in log.ordinals and not text.startswith("[") and len(log.ordinals) <= MOST_DEVICE:
            log.ordinals[text] = len(log.ordinals)
    return texts.replace_strict(log.ordinals, default=None, return_dtype=pl.Int64).alias("device")


def _learn(log: _Log, found: pl.DataFrame, raw: pl.DataFrame, place_of: dict[str, str]) -> None:
    """Names, uuids and limits of devices not seen before."""
    text = {name: raw[place_of[name]].alias(name) for name in ("uuid", "name") if name in place_of}
    limits = [name for name in ("enforced_limit_w", "limit_w") if name in found.columns]
    firsts = found.with_columns(**text).unique("device", keep="first", maintain_order=True)
    for row in firsts.iter_rows(named=True):
        device = row["device"]
        if device is not None and 0 <= device <= MOST_DEVICE and (device, "nvidia-smi") not in log.sensors:
            log.sensors[device, "nvidia-smi"] = SensorRow(
                device=device, source="nvidia-smi", name=row.get("name"), uuid=row.get("uuid"),
                power_limit_w=next((row[name] for name in limits if row[name] is not None), None),
            )  # fmt: skip


def _refuse_unknown_devices(log: _Log, rows: pl.DataFrame, path: Path) -> None:
    if log.key is None and _looks_like_several(rows["ts_ns"].drop_nulls()):
        raise UnreadableInput(
            f"{path} has several lines for one time and no column that tells the GPUs apart",
            hint="record it with --query-gpu=timestamp,index,…",
        )


def _looks_like_several(times: pl.Series) -> bool:
    """GPUs are asked one right after the other: many lines then follow much sooner than the next round."""
    gaps = times.sort().diff().drop_nulls()
    if not gaps.len():
        return False
    usual = gaps.quantile(0.9) or 0.0
    soon = int((gaps < max(usual / 10, 1)).sum())
    return soon > gaps.len() // 4
