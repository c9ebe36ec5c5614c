"""A run database with planted sensors, kernels and requests, from literals. Times in seconds from `T0`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from traces.store import schema_sql

S = 1_000_000_000
T0 = 1_795_981_680 * S
RUN = "r"
LOW = {"sm_active": 0.01, "tensor_active": 0.0, "dram_active": 0.0, "pcie_tx_bytes_s": 1e6, "pcie_rx_bytes_s": 1e6}


def ns(seconds: float) -> int:
    return T0 + round(seconds * S)


class Plant:
    """Rows of a run, as a capture and a sampler would have left them."""

    def __init__(self, path: Path | None = None, **config: Any) -> None:
        self.con = duckdb.connect(str(path) if path else ":memory:")
        self.con.execute(schema_sql())
        self.row("runs", name="planted", created_ns=T0, source="profile", device_kind="cuda", clock="epoch")
        self.kernels = 0

    def row(self, table: str, **values: Any) -> Plant:
        values = {"run_id": RUN, **values}
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        self.con.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", list(values.values()))
        return self

    def samples(self, rows: Iterable[dict[str, Any]], *, rank: int | None = 0, device: int | None = 0) -> Plant:
        """Rows of telemetry: `t` in seconds (or ts_ns) and columns."""
        known = [{"ts_ns": row["ts_ns"] if "ts_ns" in row else ns(row["t"]), **row} for row in rows]
        data = pl.DataFrame(known, infer_schema_length=None).drop("t", strict=False)
        data = data.with_columns(
            run_id=pl.lit(RUN), rank=pl.lit(rank, dtype=pl.Int32), device=pl.lit(device, dtype=pl.Int32)
        )
        return self.bulk("telemetry", data)

    def bulk(self, table: str, data: pl.DataFrame) -> Plant:
        self.con.register("planted", data.to_arrow())
        self.con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM planted")
        self.con.unregister("planted")
        return self

    def clear(self) -> Plant:
        """As it was in the beginning."""
        for table in ("telemetry", "devices", "kernels", "gaps"):
            self.con.execute(f"DELETE FROM {table}")
        self.kernels = 0
        return self

    def sampled(
        self, until: float, values: Callable[[float], dict[str, Any]], *, hz: float = 10, rank: int | None = 0,
        device: int | None = 0,
    ) -> Plant:  # fmt: skip
        """Samples from 0 to `until` at `hz`, with the values of their time."""
        times = [i / hz for i in range(round(until * hz) + 1)]
        return self.samples([{"t": t, **values(t)} for t in times], rank=rank, device=device)

    def window(self, start: float, end: float, *, rank: int = 0, device: int = 0, **values: Any) -> Plant:
        given = {"window_start_ns": ns(start), "window_end_ns": ns(end), "unrecorded_ns": 0, **values}
        return self.row("devices", rank=rank, device=device, **given)

    def kernel(
        self, start: float, end: float, step: int | None = None, *, rank: int = 0, device: int = 0,
        prefill: float | None = 0.0, busy: float | None = None,
    ) -> Plant:  # fmt: skip
        """An activity; `prefill` is the share of its busy time that is prefill's, the rest is decode's; None: not split."""
        own = round((end - start if busy is None else busy) * S)
        part = None if prefill is None else round(prefill * own)
        self.kernels += 1
        return self.row(
            "kernels", rank=rank, device=device, kernel_id=self.kernels, kind="kernel", name="k", start_ns=ns(start),
            dur_ns=ns(end) - ns(start), busy_ns=own, step_id=step, prefill_ns=part,
            decode_ns=None if part is None else own - part, valid=True,
        )  # fmt: skip

    def step(self, number: int, kind: str, start: float, end: float, *, rank: int = 0, **values: Any) -> Plant:
        given = {"busy_ns": ns(end) - ns(start), **values}
        return self.row(
            "steps", rank=rank, step_id=number, seq=number, kind=kind, device_start_ns=ns(start),
            device_end_ns=ns(end), **given,
        )  # fmt: skip

    def share(self, step: int, request: str, device_s: float | None, *, phase: str = "decode", rank: int = 0) -> Plant:
        own = None if device_s is None else round(device_s * S)
        return self.row("step_requests", rank=rank, step_id=step, request_id=request, phase=phase, device_ns=own)

    def request(self, name: str, start: float, end: float, **values: Any) -> Plant:
        return self.row("requests", request_id=name, arrival_ns=ns(start), finished_ns=ns(end), **values)

    def gap(self, start: float, end: float, cause: str | None, *, rank: int = 0, device: int = 0) -> Plant:
        self.kernels += 1
        return self.row(
            "gaps", rank=rank, device=device, gap_id=self.kernels, start_ns=ns(start), dur_ns=ns(end) - ns(start),
            cause=cause,
        )  # fmt: skip

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        return self.con.execute(sql).fetchall()


def counter(power: Callable[[float], float], t: float, *, step: float = 0.1) -> float:
    """Joules up to `t` of a device whose power holds from one multiple of `step` to the next."""
    return sum(power(i * step) * step for i in range(round(t / step)))
