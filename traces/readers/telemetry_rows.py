"""What the readers of sensor logs share: blocks of lines, plausible values, rows of staging `telemetry` and `sensors`."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
import pyarrow as pa
import zstandard

from traces.clock import MOST_NS
from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.staging import LOG_TABLES

BLOCK_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20
MOST_WATTS = 100_000.0  # a misread register shows millions
MOST_SHARE = 1.05  # of a share measured over times that differ a little
MOST_DEVICE = 4096
MOST_NOTES = 20
SHARES = (
    "sm_util", "mem_util", "sm_active", "dram_active", "tensor_active", "fp16_active", "fp32_active", "fp64_active",
    "cpu_util",
)  # fmt: skip
RATES = (
    "pcie_bytes_s", "pcie_tx_bytes_s", "pcie_rx_bytes_s", "nvlink_bytes_s", "nvlink_tx_bytes_s", "nvlink_rx_bytes_s",
)  # fmt: skip
# bits of nvmlDeviceGetCurrentClocksEventReasons, as profiler/sensors names them
THROTTLE_REASONS: tuple[tuple[int, str], ...] = (
    (0x1, "gpu_idle"), (0x2, "application_clocks"), (0x4, "sw_power_cap"), (0x8, "hw_slowdown"), (0x10, "sync_boost"),
    (0x20, "sw_thermal"), (0x40, "hw_thermal"), (0x80, "hw_power_brake"), (0x100, "display_clocks"),
)  # fmt: skip
_POLARS: dict[pa.DataType, pl.DataType] = {
    pa.int64(): pl.Int64(), pa.string(): pl.String(), pa.float64(): pl.Float64(), pa.bool_(): pl.Boolean(),
}  # fmt: skip
COLUMNS: dict[str, pl.DataType] = {
    field.name: _POLARS[field.type] for field in LOG_TABLES["telemetry"] if field.name != "src"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorRow:
    """What a log says of a device beside its samples."""

    device: int
    source: str
    name: str | None = None
    uuid: str | None = None
    power_period_ns: int | None = None
    power_limit_w: float | None = None


class Blocks:
    """Blocks of whole lines of a file, gzip, zstd or plain; the hash and size of the file as it lies on disk.

    Iterating raises UnreadableInput where the file cannot be opened; a damaged end is told by `truncated`.
    """

    def __init__(self, path: Path, options: ReadOptions, block_bytes: int = BLOCK_BYTES) -> None:
        self._path, self._options, self._block_bytes = path, options, block_bytes
        self._digest = hashlib.sha256()
        self.bytes_read = 0
        self.overlong = 0  # lines left out
        self.truncated: str | None = None

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        overlong = False
        for data in self._decompressed():
            rest += data
            cut = rest.rfind(b"\n") + 1
            block, rest = rest[:cut], rest[cut:]
            if overlong and block:  # its beginning was given up
                block, overlong = block[block.find(b"\n") + 1 :], False
            if len(rest) > MAX_LINE_BYTES:
                self.overlong += 0 if overlong else 1
                rest, overlong = b"", True
            if block:
                yield block
        if rest and not overlong:
            yield rest

    def finish(self, report: ReadReport) -> None:
        """Write what is known of the file into its report."""
        report.sha256, report.bytes_read = self._digest.hexdigest(), self.bytes_read
        report.truncated = report.truncated or self.truncated
        drop(report, "line too long", self.overlong)

    def _decompressed(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                raw = _Hashed(file, self._digest)
                stream = _stream(file.peek(4), raw)
                while data := self._next(stream):
                    yield data
                    self.bytes_read = raw.bytes_read
                    if self._options.progress is not None:
                        self._options.progress(raw.bytes_read, 0)
                while raw.read(self._block_bytes):  # behind damage: the hash is that of the whole file
                    pass
                self.bytes_read = raw.bytes_read
        except OSError as error:
            raise UnreadableInput(f"cannot read {self._path}: {error.strerror}", hint="check the path") from error

    def _next(self, stream: Any) -> bytes:
        try:
            data: bytes = stream.read1(self._block_bytes)
        except EOFError:
            self.truncated = "the compressed data ends too early"
        except (zlib.error, gzip.BadGzipFile, zstandard.ZstdError):
            self.truncated = "the compressed data is damaged"
        else:
            return data
        return b""


class _Hashed:
    """What is read through it goes into a hash, too."""

    def __init__(self, file: BinaryIO, digest: hashlib._Hash) -> None:
        self._file, self._digest = file, digest
        self.bytes_read = 0

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(size)
        self._digest.update(data)
        self.bytes_read += len(data)
        return data

    read1 = read


def _stream(head: bytes, raw: _Hashed) -> Any:
    if head.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[call-overload]  # it only reads
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)  # type: ignore[arg-type]  # likewise
    return raw


def lines_of(block: bytes) -> pl.DataFrame:
    """One column `line`: the block's lines, without blanks around them and without empty ones."""
    if not block.strip():
        return pl.DataFrame(schema={"line": pl.String})
    frame = pl.read_csv(
        block, has_header=False, separator="\x1e", quote_char=None, infer_schema=False, encoding="utf8-lossy",
        truncate_ragged_lines=True, new_columns=["line"], schema={"line": pl.String},
    )  # fmt: skip
    return frame.select(pl.col("line").str.strip_chars()).filter(pl.col("line").str.len_bytes() > 0)


def append_samples(sink: Sink, rows: pl.DataFrame, src: int, report: ReadReport) -> None:
    """Append samples; `rows` has columns of staging `telemetry`, the others become NULL. Counts what is left out."""
    frame = rows.select(
        pl.col(name).cast(kind, strict=False) if name in rows.columns else pl.lit(None, dtype=kind).alias(name)
        for name, kind in COLUMNS.items()
    )
    timed = frame.filter(pl.col("ts_ns").is_between(1, MOST_NS))
    drop(report, "no time", frame.height - timed.height)
    known = timed.filter(pl.col("device").is_between(0, MOST_DEVICE))
    drop(report, "no device", timed.height - known.height)
    data = known.with_columns(_plausible(known)).select(pl.lit(src, dtype=pl.UInt32).alias("src"), pl.all())
    if data.height:
        sink.append("telemetry", data.to_arrow().cast(LOG_TABLES["telemetry"]))
    report.kept["telemetry"] = report.kept.get("telemetry", 0) + data.height
    report.events = report.kept["telemetry"] + sum(report.dropped.values())


def append_sensors(sink: Sink, sensors: Mapping[tuple[int, str], SensorRow], src: int) -> None:
    """Append one row per device and source."""
    rows = [[src, *(getattr(item, name) for name in SensorRow.__slots__)] for item in sensors.values()]
    if rows:
        columns = dict(zip(("src", *SensorRow.__slots__), zip(*rows, strict=True), strict=True))
        sink.append("sensors", pa.table(columns, schema=LOG_TABLES["sensors"]))


def drop(report: ReadReport, reason: str, count: int) -> None:
    """Count what was left out."""
    if count:
        report.dropped[reason] = report.dropped.get(reason, 0) + count


def note(report: ReadReport, text: str) -> None:
    """What a person has to know about the log's times or series; health says it."""
    notes = report.meta.setdefault("notes", [])
    if text not in notes and len(notes) < MOST_NOTES:
        notes.append(text)


def throttle_names(mask: pl.Expr) -> pl.Expr:
    """Names of the bits of an integer column, comma-separated; NULL where it is."""
    names = [
        pl.when((mask & bit) > 0).then(pl.lit(name)).otherwise(None)
        for bit, name in THROTTLE_REASONS
    ]  # fmt: skip
    return pl.when(mask.is_not_null()).then(pl.concat_str(names, separator=",", ignore_nulls=True))


def _plausible(frame: pl.DataFrame) -> list[pl.Expr]:
    """Values that no sensor can mean become NULL: not finite, negative, far outside their scale."""
    limits = dict.fromkeys(("power_w", "power_instant_w"), MOST_WATTS) | dict.fromkeys(SHARES, MOST_SHARE)
    fixed: list[pl.Expr] = []
    for name, kind in frame.schema.items():
        if kind == pl.Float64:
            value = pl.col(name)
            low = -300.0 if name == "temperature_c" else 0.0
            sound = value.is_finite() & (value >= low) & (value <= limits.get(name, 1e18))
            kept = value.clip(upper_bound=1.0) if name in SHARES else value
            fixed.append(pl.when(sound).then(kept).alias(name))
    used = pl.col("memory_used_bytes")
    fixed.append(pl.when(used >= 0).then(used).alias("memory_used_bytes"))
    return fixed
