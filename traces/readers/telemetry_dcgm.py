"""Text of `dcgmi dmon -e …` → staging `telemetry` and `sensors`.

A header line with the short names of the fields comes again and again; below it one line per GPU and sample. dmon
prints no times. Where something put a time before each line (`| ts '%Y-%m-%dT%H:%M:%.S'`, or seconds since the epoch)
it is used; else samples are laid out at the interval of the recording (`--sensor-interval`, dmon's own default is 1 s),
the last one at the file's modification time, and health says so.
"""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from traces.clock import NS_PER_S
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
from traces.readers.telemetry_smi import UTC_NOTE, local_ns

_MIB = float(1 << 20)
# short name → (column, factor)
FIELDS: dict[str, tuple[str, float]] = {
    "POWER": ("power_w", 1.0),
    "POWR": ("power_w", 1.0),
    "PWINS": ("power_instant_w", 1.0),
    "POWERINST": ("power_instant_w", 1.0),
    "TOTEC": ("energy_j", 1e-3),  # mJ
    "GPUTL": ("sm_util", 0.01),
    "MCUTL": ("mem_util", 0.01),
    "SMACT": ("sm_active", 1.0),
    "DRAMA": ("dram_active", 1.0),
    "TENSO": ("tensor_active", 1.0),
    "FP16A": ("fp16_active", 1.0),
    "FP32A": ("fp32_active", 1.0),
    "FP64A": ("fp64_active", 1.0),
    "PCITX": ("pcie_tx_bytes_s", 1.0),
    "PCIRX": ("pcie_rx_bytes_s", 1.0),
    "NVLTX": ("nvlink_tx_bytes_s", 1.0),
    "NVLRX": ("nvlink_rx_bytes_s", 1.0),
    "SMCLK": ("sm_clock_mhz", 1.0),
    "MMCLK": ("mem_clock_mhz", 1.0),
    "FBUSD": ("memory_used_bytes", _MIB),
    "TMPTR": ("temperature_c", 1.0),
    "GPUT": ("temperature_c", 1.0),
    "DVCCTR": ("throttle_mask", 1.0),
}
_LIMIT = "PMLMT"
_HEADER = re.compile(r"^(?P<time>.*?)#\s*Entity\s+(?P<names>\S.*)$")
_ROW = r"^(?:(?P<time>\S.*?)\s+)?GPU\s+(?P<device>[0-9]{1,4})\s+(?P<rest>\S.*)$"
DEFAULT_INTERVAL_NS = NS_PER_S
ASSUMED = (
    "its lines have no times: {n} samples were laid out {s:g} s apart, the last one at the file's modification time"
)


class DcgmReader:
    """Columns of text, one block of lines under one header at a time."""

    name = "dcgm"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether one of the first lines is a header of dmon with a name we know."""
        for line in head[:8192].decode(errors="replace").split("\n")[:20]:
            match = _HEADER.match(line.strip())
            if match is not None:
                return True
        return False

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Raises UnreadableInput where the file cannot be opened, or no field of it is known."""
        report = ReadReport(path=path, format=self.name, kept={"telemetry": 0})
        names: list[str] = []
        known: set[str] = set()
        frames: list[pl.DataFrame] = []
        blocks = Blocks(path, options)
        for block in blocks:
            for header, lines in _under_headers(lines_of(block)):
                names = header or names
                known |= set(names)
                if names:
                    frames.append(_rows(names, lines, report, options.utc_offset_ns or 0))
        blocks.finish(report)
        if not known & set(FIELDS):
            raise UnreadableInput(
                f"{path} has no field that stepscope reads: {', '.join(sorted(known))[:200]}",
                hint="record it with dcgmi dmon -e 155,156,203,1002,1004,1005",
            )
        rows = (
            pl.concat(frames, how="diagonal")
            if frames
            else pl.DataFrame(schema={"device": pl.Int64, "ts_ns": pl.Int64})
        )
        rows = _timed(rows, path, report, options)
        append_samples(sink, rows, src, report)
        append_sensors(sink, _sensors(rows), src)
        return report


def _under_headers(lines: pl.DataFrame) -> list[tuple[list[str], pl.DataFrame]]:
    """(names of a header, lines below it); the first piece has no names, its header came earlier."""
    marked = lines.with_columns(head=pl.col("line").str.contains(_HEADER.pattern))
    numbered = marked.with_columns(piece=pl.col("head").cum_sum())
    pieces: list[tuple[list[str], pl.DataFrame]] = []
    headers = marked.filter("head")["line"].to_list()
    # dmon repeats its header unchanged: pieces with the same names are one
    distinct = {text: _names(text) for text in set(headers)}
    if len({tuple(item) for item in distinct.values()}) <= 1:
        return [(next(iter(distinct.values()), []), marked.filter(~pl.col("head")))]
    for number in range(len(headers) + 1):
        below = numbered.filter((pl.col("piece") == number) & ~pl.col("head"))
        pieces.append((distinct[headers[number - 1]] if number else [], below))
    return pieces


def _names(line: str) -> list[str]:
    match = _HEADER.match(line)
    return match.group("names").upper().split() if match else []


def _rows(names: list[str], lines: pl.DataFrame, report: ReadReport, offset_ns: int) -> pl.DataFrame:
    """One row per line of a GPU; ts_ns is NULL where nothing stands before it."""
    group = pl.col("line").str.extract_groups(_ROW)
    rows = lines.select(group.alias("g")).unnest("g")
    entities = rows.filter(pl.col("device").is_not_null())
    others = lines.filter(
        pl.col("line").str.contains(r"^(?:\S.*?\s+)?(?:GPU-I|GPU-CI|Switch|Link|CPU|Core)\s*:?\s*[0-9/]+")
    )
    drop(report, "entity that is no GPU", others.height)
    parts = entities.with_columns(part=pl.col("rest").str.replace_all(r"\s+", " ").str.split(" "))
    whole = parts.filter(pl.col("part").list.len() == len(names))
    drop(report, "line with another number of fields", parts.height - whole.height)
    columns: dict[str, pl.Expr] = {"device": pl.col("device").cast(pl.Int64), "ts_ns": _time(offset_ns)}
    for place, name in enumerate(names):
        value = pl.col("part").list.get(place).cast(pl.Float64, strict=False)  # N/A becomes NULL
        if name in FIELDS:
            column, factor = FIELDS[name]
            columns[column] = value * factor
        elif name == _LIMIT:
            columns["limit_w"] = value
    return whole.select(
        pl.col("time").is_not_null().alias("has_time"),
        (~pl.col("time").str.contains(r"^[0-9]{9,10}(?:\.|$)|Z$")).fill_null(value=False).alias("is_local"),
        *(item.alias(name) for name, item in columns.items()),
    )


def _time(offset_ns: int) -> pl.Expr:
    text = pl.col("time")
    seconds = text.str.extract(r"^([0-9]{9,10})(?:\.[0-9]+)?$", 1).cast(pl.Int64, strict=False)
    part = text.str.extract(r"^[0-9]{9,10}\.([0-9]{1,9})", 1).str.pad_end(9, "0").cast(pl.Int64, strict=False)
    return pl.coalesce(
        seconds * NS_PER_S + part.fill_null(0),
        pl.when(text.str.ends_with("Z")).then(local_ns(text.str.strip_suffix("Z"), 0)),
        local_ns(text, offset_ns),
    )


def _timed(rows: pl.DataFrame, path: Path, report: ReadReport, options: ReadOptions) -> pl.DataFrame:
    if rows.is_empty():
        return rows.with_columns(source=pl.lit("dcgm"))
    if "throttle_mask" in rows.columns:
        rows = rows.with_columns(throttle=throttle_names(pl.col("throttle_mask").cast(pl.Int64, strict=False)))
    if rows["has_time"].any():
        if options.utc_offset_ns is None and rows["is_local"].any():
            note(report, UTC_NOTE)
        return rows.with_columns(source=pl.lit("dcgm"))
    interval_ns = options.sensor_interval_ns or DEFAULT_INTERVAL_NS
    number = pl.int_range(pl.len()).over("device")  # the n-th line of each GPU is the n-th sample
    end_ns = path.stat().st_mtime_ns
    rows = rows.with_columns(number=number)
    last = int(rows["number"].max() or 0)  # type: ignore[arg-type]
    note(report, ASSUMED.format(n=last + 1, s=interval_ns / NS_PER_S))
    return rows.with_columns(ts_ns=end_ns - (last - pl.col("number")) * interval_ns, source=pl.lit("dcgm"))


def _sensors(rows: pl.DataFrame) -> dict[tuple[int, str], SensorRow]:
    limit = pl.col("limit_w").max() if "limit_w" in rows.columns else pl.lit(None, dtype=pl.Float64)
    devices = rows.filter(pl.col("device").is_between(0, MOST_DEVICE)).group_by("device").agg(limit_w=limit)
    return {
        (device, "dcgm"): SensorRow(device=device, source="dcgm", power_limit_w=limit_w)
        for device, limit_w in devices.sort("device").iter_rows()
    }  # fmt: skip
