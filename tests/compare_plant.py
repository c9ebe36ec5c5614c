"""Run databases with known truth, for comparisons: requests, tokens, a step ledger, recorded steps, kernels, gaps, reuse.

Everything is drawn from one generator, so that a seed is a run. `slow` makes all of its times longer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl

from traces.store import schema_sql

MS = 1_000_000
T0 = 1_795_981_680_000 * MS
RUN = "r"
KERNELS = (
    ("gemm_a", "gemm", "aten::mm", 0.6),
    ("flash_v2", "attention", "attn", 0.3),
    ("softmax", "sampling", "sample", 0.1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass: `sessions` of `turns` requests. `slow`: factor of every time."""

    name: str | None = "control"
    start_s: float = 0.0
    slow: float = 1.0
    ttft_ms: float = 200.0
    tpot_ms: float = 20.0
    prompt: int = 500
    output: int = 20
    cached: int = 256
    sessions: int = 12
    turns: int = 3
    spread: float = 0.1  # standard deviation of logarithms, request by request
    drafted: int = 0  # tokens drafted per decoding request and step; as many are accepted, less one


@dataclass(slots=True, kw_only=True)
class RunPlant:
    """A database in the making."""

    path: Path
    seed: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    def write(self, *passes: Pass, recorded: Pass | None = None, **extra: Any) -> Path:
        """Passes, and the recorded window of `recorded`. `extra`: as for `_record`."""
        con = duckdb.connect(str(self.path))
        con.execute(schema_sql())
        random = np.random.default_rng(self.seed)
        window: dict[str, Any] = {}
        for number, item in enumerate(passes):
            _requests(con, item, random, number)
            _ledger(con, item, random, number)
        if recorded is not None:
            window = _record(con, recorded, random, **extra)
        facts = {
            "name": "planted", "created_ns": T0, "source": "profile", "engine": "vllm", "engine_version": "0.32.0", "device_kind": "cuda",
            "model": "tiny", "dtype": "bfloat16", "clock": "epoch", "config": json.dumps(dict(self.config)), **window, **self.facts,
        }  # fmt: skip
        insert(con, "runs", pl.DataFrame([facts]))
        con.close()
        return self.path


def insert(con: duckdb.DuckDBPyConnection, table: str, data: pl.DataFrame) -> None:
    con.register("planted", data.with_columns(run_id=pl.lit(RUN)).to_arrow())
    con.execute(f"INSERT INTO {table} BY NAME SELECT * FROM planted")
    con.unregister("planted")


def _drawn(random: np.random.Generator, usual: float, spread: float, n: int) -> np.ndarray[Any, Any]:
    """Mean `usual`, whatever the spread."""
    return usual * np.exp(random.normal(-(spread**2) / 2, spread, n))


def _requests(con: duckdb.DuckDBPyConnection, item: Pass, random: np.random.Generator, number: int) -> None:
    n = item.sessions * item.turns
    ttft = (_drawn(random, item.ttft_ms * item.slow, item.spread, n) * MS).astype(np.int64)
    tpot = (_drawn(random, item.tpot_ms * item.slow, item.spread, n) * MS).astype(np.int64)
    session, turn = np.repeat(np.arange(item.sessions), item.turns), np.tile(np.arange(item.turns), item.sessions)
    arrival = T0 + int(item.start_s * 1e9) + turn * 1_000 * MS + session * 10 * MS
    first = arrival + ttft
    last = first + tpot * (item.output - 1)
    names = [f"{item.name}-{number}-{at}" for at in range(n)]
    insert(con, "requests", pl.DataFrame({
        "request_id": names, "client_request_id": names, "pass": [item.name] * n, "session_id": [f"s{at}" for at in session], "turn": turn,
        "arrival_ns": arrival, "first_token_ns": first, "last_token_ns": last, "finished_ns": last,
        "prompt_tokens": [item.prompt] * n, "cached_tokens": [item.cached] * n, "output_tokens": [item.output] * n, "status": ["ok"] * n,
    }, schema_overrides={"pass": pl.String}))  # fmt: skip
    at = np.arange(item.output)
    insert(con, "tokens", pl.DataFrame({
        "request_id": np.repeat(names, item.output), "i": np.tile(at, n), "ts_ns": (first[:, None] + tpot[:, None] * at).ravel(),
    }))  # fmt: skip


def _ledger(
    con: duckdb.DuckDBPyConnection, item: Pass, random: np.random.Generator, number: int, steps: int = 120
) -> None:
    """Decode steps of 4 requests, every tenth a prefill of one."""
    took = (_drawn(random, 10 * item.slow, item.spread, steps) * MS).astype(np.int64)
    prefill = np.arange(steps) % 10 == 0
    took[prefill] *= 3
    end = T0 + int(item.start_s * 1e9) + np.cumsum(took + MS)
    seq = np.arange(steps) + 1_000 * number
    insert(con, "ledger_steps", pl.DataFrame({
        "pid": [1] * steps, "seq": seq, "pass": [item.name] * steps, "sched_start_ns": end - took - MS, "sched_end_ns": end - took,
        "result_start_ns": end, "result_end_ns": end + 1, "total_tokens": np.where(prefill, 256, 4),
    }, schema_overrides={"pass": pl.String}))  # fmt: skip
    rows = []
    for at, is_prefill in zip(seq.tolist(), prefill.tolist(), strict=True):
        if is_prefill:
            rows.append((at, f"p{at}", 256, 0, 256, 0, 0, 1))
        else:
            rows += [
                (at, f"d{at}-{each}", 1 + item.drafted, 600, 500, 100, item.drafted, max(item.drafted, 1))
                for each in range(4)
            ]
    names = (
        "seq",
        "engine_request_id",
        "new_tokens",
        "computed_before",
        "prompt_tokens",
        "output_before",
        "spec_tokens",
        "accepted_tokens",
    )
    insert(con, "ledger_rows", pl.DataFrame(rows, schema=list(names), orient="row").with_columns(pid=pl.lit(1)))


def _record(
    con: duckdb.DuckDBPyConnection, item: Pass, random: np.random.Generator, *, steps: int = 120,
    kernels: tuple[tuple[str, str, str, float], ...] = KERNELS, batch: int = 4, accepted: bool = True, idle_ms: float = 2.0,
    graph_mode: str = "full", cause: str = "scheduler", clock_mhz: float | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A window of decode steps (every fourth a prefill) with their kernels, each after a gap. The window's facts."""
    busy = (_drawn(random, 10 * item.slow, item.spread, steps) * MS).astype(np.int64)
    gap = (_drawn(random, idle_ms, item.spread, steps) * MS).astype(np.int64)
    prefill = np.arange(steps) % 4 == 0
    origin = T0 + int(item.start_s * 1e9)
    start = origin + np.cumsum(busy + gap) - busy
    ids = np.arange(1, steps + 1)
    tokens = (1 + item.drafted) * batch
    insert(con, "steps", pl.DataFrame({
        "rank": [0] * steps, "step_id": ids, "seq": ids, "kind": np.where(prefill, "prefill", "decode"), "device_start_ns": start,
        "device_end_ns": start + busy, "busy_ns": busy, "graph_mode": [graph_mode] * steps, "prefill_reqs": prefill.astype(np.int64),
        "prefill_tokens": np.where(prefill, 256, 0), "prefill_kv_tokens": np.where(prefill, 256, 0),
        "decode_reqs": np.where(prefill, 0, batch), "decode_tokens": np.where(prefill, 0, tokens),
        "decode_kv_tokens": np.where(prefill, 0, 600 * batch), "prefill_ns": np.where(prefill, busy, 0),
        "decode_ns": np.where(prefill, 0, busy), "other_ns": [0] * steps, "trusted": [True] * steps,
        "accepted_tokens": [(1 if first else max(item.drafted, 1) * batch) if accepted else None for first in prefill],
    }, schema_overrides={"accepted_tokens": pl.Int64}))  # fmt: skip
    shares = np.array([share for *_, share in kernels])
    parts = np.floor(busy[:, None] * shares).astype(np.int64)
    names = [np.tile([kernel[at] for kernel in kernels], steps) for at in range(3)]
    insert(con, "kernels", pl.DataFrame({
        "rank": [0] * parts.size, "device": [0] * parts.size, "kernel_id": np.arange(parts.size), "kind": ["kernel"] * parts.size,
        "name": names[0], "category": names[1], "op_name": names[2], "start_ns": np.repeat(start, len(kernels)), "dur_ns": parts.ravel(),
        "busy_ns": parts.ravel(), "step_id": np.repeat(ids, len(kernels)), "valid": [True] * parts.size,
    }))  # fmt: skip
    insert(con, "gaps", pl.DataFrame({
        "rank": [0] * steps, "device": [0] * steps, "gap_id": ids, "start_ns": start - gap, "dur_ns": gap, "cause": [cause] * steps,
    }))  # fmt: skip
    end = int(start[-1] + busy[-1])
    insert(con, "devices", pl.DataFrame([{
        "rank": 0, "device": 0, "name": "H200", "vendor": "nvidia", "memory_bytes": 141 * 10**9, "window_start_ns": origin,
        "window_end_ns": end, "busy_ns": int(busy.sum()), "idle_ns": int(gap.sum()), "unrecorded_ns": 0,
    }]))  # fmt: skip
    if clock_mhz is not None:
        insert(
            con,
            "telemetry",
            pl.DataFrame({"rank": [0], "device": [0], "ts_ns": [origin + 1], "sm_clock_mhz": [clock_mhz]}),
        )
    return {"window_start_ns": origin, "window_end_ns": end}
