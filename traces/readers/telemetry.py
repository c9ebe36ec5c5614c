"""`telemetry.jsonl` of our own sampler → staging tables `telemetry` and `sensors`.

One JSON object a line (profiler/sensors/sampler.py): a header that names the devices, samples, and lines of another
`kind` that say what happened to a series. A crash costs at most a torn last line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.telemetry_rows import (
    COLUMNS,
    MOST_DEVICE,
    Blocks,
    SensorRow,
    append_samples,
    append_sensors,
    drop,
    lines_of,
    note,
)  # fmt: skip

_MARK = b'{"stepscope_telemetry":'
FORMAT_VERSION = 1
_SAMPLE = {name: kind for name, kind in COLUMNS.items() if name not in ("source", "cpu_busy_s", "cpu_total_s")}
SOURCES = ("nvml", "rapl", "cpu")


class TelemetryReader:
    """Samples by the column; the few other lines one by one."""

    name = "telemetry"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the first line is a header of our sampler."""
        return head.startswith(_MARK)

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Raises UnreadableInput where the file cannot be opened, or is of another version."""
        report = ReadReport(path=path, format=self.name, kept={"telemetry": 0})
        sensors: dict[tuple[int, str], SensorRow] = {}
        self._source = "nvml"
        blocks = Blocks(path, options)
        for block in blocks:
            lines = lines_of(block)
            marked = pl.col("line").str.contains('"kind":', literal=True)
            for line in lines.filter(marked)["line"]:
                self._record(line, sensors, report)
            self._samples(lines.filter(~marked), src, sink, report)
        append_sensors(sink, sensors, src)
        blocks.finish(report)
        return report

    def _record(self, line: str, sensors: dict[tuple[int, str], SensorRow], report: ReadReport) -> None:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            drop(report, "no record", 1)
            return
        kind = record.get("kind")
        if kind == "header":
            self._header(record, sensors, report)
        elif kind in ("gone", "reset"):
            note(report, f"device {str(record.get('device'))[:8]}: {str(record.get('text'))[:200]}")
        elif kind == "end" and isinstance(record.get("cpu_s"), int | float):
            report.meta["sampler_cpu_s"] = record["cpu_s"]

    def _header(self, record: dict[str, Any], sensors: dict[tuple[int, str], SensorRow], report: ReadReport) -> None:
        if record.get("stepscope_telemetry") != FORMAT_VERSION:
            raise UnreadableInput(
                f"{report.path} is telemetry of another version of stepscope", hint="use the version that wrote it"
            )
        source = record.get("source")
        self._source = source if source in SOURCES else "nvml"
        listed = record.get("devices")
        for item in listed if isinstance(listed, list) else []:
            device = item.get("device") if isinstance(item, dict) else None
            if not isinstance(device, int) or isinstance(device, bool) or not 0 <= device <= MOST_DEVICE:
                continue
            sensors[device, self._source] = SensorRow(
                device=device, source=self._source, name=_text(item.get("name")), uuid=_text(item.get("uuid")),
                power_period_ns=_whole(item.get("power_period_ns")), power_limit_w=_number(item.get("power_limit_w")),
            )  # fmt: skip

    def _samples(self, lines: pl.DataFrame, src: int, sink: Sink, report: ReadReport) -> None:
        if lines.is_empty():
            return
        decoded = _decode(lines["line"])
        drop(report, "no record", lines.height - decoded.height)
        append_samples(sink, decoded.with_columns(source=pl.lit(self._source)), src, report)


def _decode(lines: pl.Series) -> pl.DataFrame:
    """Records of the lines; one by one where they do not decode together, as after a crash."""
    text = "\n".join(lines)
    try:
        return pl.read_ndjson(text.encode(), schema=_SAMPLE)
    except pl.exceptions.PolarsError:
        kept = [record for line in lines if (record := _record(line)) is not None]
        return pl.DataFrame(kept, schema=_SAMPLE, orient="row")


def _record(line: str) -> list[Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return [_fit(value.get(name), kind) for name, kind in _SAMPLE.items()]


def _fit(value: Any, kind: pl.DataType) -> Any:
    if kind == pl.String:
        return value if isinstance(value, str) else None
    if kind == pl.Boolean:
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if kind == pl.Int64:
        return value if isinstance(value, int) and abs(value) < 2**63 else None
    return _number(value)


def _text(value: Any) -> str | None:
    return value[:200] if isinstance(value, str) else None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62 else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        return None
    return float(value)
