"""Prometheus text of the DCGM exporter and the node exporter → staging `telemetry` and `sensors`.

The time of a sample is its own (ms), else that of the line `# stepscope scraped_ns=…` before it (readers/metrics.py),
else the file's modification time, which health says: one scrape per file then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from traces.errors import UnreadableInput
from traces.readers.base import ReadOptions, ReadReport, Sink
from traces.readers.metrics import SCRAPED, parse_sample
from traces.readers.telemetry_rows import (
    MOST_DEVICE,
    Blocks,
    SensorRow,
    append_samples,
    append_sensors,
    drop,
    note,
    throttle_names,
)  # fmt: skip

_MIB = float(1 << 20)
GPU_METRICS: dict[str, tuple[str, float]] = {
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", 1.0),
    "DCGM_FI_DEV_POWER_USAGE_INSTANT": ("power_instant_w", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),  # mJ
    "DCGM_FI_DEV_GPU_UTIL": ("sm_util", 0.01),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("mem_util", 0.01),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_mhz", 1.0),
    "DCGM_FI_DEV_MEM_CLOCK": ("mem_clock_mhz", 1.0),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", _MIB),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", 1.0),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("throttle_mask", 1.0),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttle_mask", 1.0),
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": ("limit_w", 1.0),
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": ("limit_w", 1.0),
    "DCGM_FI_PROF_SM_ACTIVE": ("sm_active", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("dram_active", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": ("tensor_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP16_ACTIVE": ("fp16_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP32_ACTIVE": ("fp32_active", 1.0),
    "DCGM_FI_PROF_PIPE_FP64_ACTIVE": ("fp64_active", 1.0),
    "DCGM_FI_PROF_PCIE_TX_BYTES": ("pcie_tx_bytes_s", 1.0),  # a rate, whatever its TYPE line says
    "DCGM_FI_PROF_PCIE_RX_BYTES": ("pcie_rx_bytes_s", 1.0),
    "DCGM_FI_PROF_NVLINK_TX_BYTES": ("nvlink_tx_bytes_s", 1.0),
    "DCGM_FI_PROF_NVLINK_RX_BYTES": ("nvlink_rx_bytes_s", 1.0),
}
NODE_METRICS = ("node_cpu_seconds_total", "node_rapl_package_joules_total", "node_rapl_dram_joules_total")
_NOT_BUSY = ("idle", "iowait", "steal")
_IN_OTHERS = ("guest", "guest_nice")  # modes that are part of user and nice
_MARK = re.compile(rb"^(?:DCGM_FI_(?:DEV|PROF)_|node_cpu_seconds_total|node_rapl_)", re.MULTILINE)
FILE_TIME = "a scrape without a time of its own was put at the file's modification time"


@dataclass(slots=True, kw_only=True)
class _Scrapes:
    """Rows by (time, device), and by time for the machine's CPUs."""

    gpu: dict[tuple[int, int], dict[str, float | None]] = field(default_factory=dict)
    node: dict[int, dict[str, float]] = field(default_factory=dict)
    sensors: dict[tuple[int, str], SensorRow] = field(default_factory=dict)


class PrometheusReader:
    """Samples by the line; a scrape has a few dozen that count."""

    name = "prometheus"

    def sniff(self, path: Path, head: bytes) -> bool:  # noqa: ARG002
        """Whether the head holds a sample of an exporter of sensors."""
        return _MARK.search(head) is not None

    def read(self, path: Path, src: int, sink: Sink, options: ReadOptions) -> ReadReport:
        """Raises UnreadableInput where the file cannot be opened, or none of its samples can be read."""
        report = ReadReport(path=path, format=self.name, kept={"telemetry": 0})
        found = _Scrapes()
        blocks = Blocks(path, options)
        file_ns: int | None = None
        scraped_ns: int | None = None
        for line in _lines(blocks):
            if line.startswith("#"):
                stated = line.removeprefix(SCRAPED).strip() if line.startswith(SCRAPED) else ""
                scraped_ns = int(stated) if re.fullmatch(r"[0-9]{1,18}", stated) else scraped_ns
                continue
            if not line.startswith(("DCGM_FI_", *NODE_METRICS)):
                continue
            sample = parse_sample(line, scraped_ns)
            if sample is None:
                drop(report, "no sample", 1)
                continue
            name, labels, value, ts_ns = sample
            if ts_ns is None:
                ts_ns = file_ns = file_ns or path.stat().st_mtime_ns
            _take(found, name, json.loads(labels), value, ts_ns, report)
        if not found.gpu and not found.node:
            raise UnreadableInput(f"no line of {path} is a sample of a sensor", hint="give what an exporter answers")
        if file_ns is not None:
            note(report, FILE_TIME)
        append_samples(sink, _gpu_frame(found), src, report)
        append_samples(sink, _node_frame(found), src, report)
        append_sensors(sink, found.sensors, src)
        blocks.finish(report)
        return report


def _lines(blocks: Blocks) -> Iterator[str]:
    for block in blocks:
        for line in block.decode(errors="replace").split("\n"):
            stripped = line.strip()
            if stripped:
                yield stripped


def _take(
    found: _Scrapes, name: str, labels: dict[str, str], value: float | None, ts_ns: int, report: ReadReport
) -> None:
    if name in GPU_METRICS:
        device = labels.get("gpu") or labels.get("gpu_id") or ""
        if not (device.isascii() and device.isdigit() and int(device) <= MOST_DEVICE):
            drop(report, "no device", 1)
            return
        column, factor = GPU_METRICS[name]
        if labels.get("GPU_I_ID") and name.startswith("DCGM_FI_PROF_"):
            drop(report, "activity of a slice of a GPU", 1)  # parts do not add up to the device's
            return
        row = found.gpu.setdefault((ts_ns, int(device)), {})
        if row.get(column) is None:
            row[column] = None if value is None else value * factor
        key = int(device), "prometheus"
        known = found.sensors.get(key)
        if known is None or (known.power_limit_w is None and column == "limit_w"):
            found.sensors[key] = SensorRow(
                device=int(device), source="prometheus", name=labels.get("modelName") or None,
                uuid=labels.get("UUID") or None, power_limit_w=value if column == "limit_w" else None,
            )  # fmt: skip
    elif name in NODE_METRICS and value is not None:
        _take_node(found.node.setdefault(ts_ns, {}), name, labels.get("mode", ""), value)


def _take_node(row: dict[str, float], name: str, mode: str, value: float) -> None:
    if name != "node_cpu_seconds_total":
        row["energy_j"] = row.get("energy_j", 0.0) + value
    elif mode not in _IN_OTHERS:
        row["cpu_total_s"] = row.get("cpu_total_s", 0.0) + value
        row["cpu_busy_s"] = row.get("cpu_busy_s", 0.0) + (0.0 if mode in _NOT_BUSY else value)


def _gpu_frame(found: _Scrapes) -> pl.DataFrame:
    names = sorted({column for column, _ in GPU_METRICS.values()})
    rows = [(ts_ns, device, *(row.get(name) for name in names)) for (ts_ns, device), row in found.gpu.items()]
    schema = {"ts_ns": pl.Int64, "device": pl.Int64, **dict.fromkeys(names, pl.Float64)}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    mask = pl.col("throttle_mask").cast(pl.Int64, strict=False)
    return frame.with_columns(source=pl.lit("prometheus"), throttle=throttle_names(mask))


def _node_frame(found: _Scrapes) -> pl.DataFrame:
    """Device 0: all CPUs. RAPL where the exporter has it."""
    names = ("energy_j", "cpu_busy_s", "cpu_total_s")
    rows = [(ts_ns, *(row.get(name) for name in names)) for ts_ns, row in found.node.items()]
    frame = pl.DataFrame(rows, schema={"ts_ns": pl.Int64, **dict.fromkeys(names, pl.Float64)}, orient="row")
    source = "rapl" if frame["energy_j"].count() else "cpu"
    if frame.height:
        found.sensors[0, source] = SensorRow(device=0, source=source)
    return frame.with_columns(device=pl.lit(0, dtype=pl.Int64), source=pl.lit(source))
