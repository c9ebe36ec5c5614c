"""Phases told token by token from raw ledger records: the naive twin of traces/sql/link_ledger_phases.sql (method §3)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

Record = dict[str, Any]
COUNTS = (
    "kind", "prefill_reqs", "prefill_tokens", "prefill_kv_tokens", "prefill_qq", "prefill_qk", "decode_reqs",
    "decode_tokens", "decode_kv_tokens", "decode_qk", "recompute_tokens", "spec_tokens", "accepted_tokens",
)  # fmt: skip
PREFILL_SIDE = ("prefill", "recompute")
PHASES = ("recompute", "prefill", "decode", "verify")  # in the order of their positions in a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Tokens of one request, step and phase; `context_tokens` includes them."""

    seq: int
    request_id: str
    phase: str
    new_tokens: int
    context_tokens: int
    accepted_tokens: int | None


def records_of(run_dir: Path) -> list[Record]:
    """Every record of the run's ledgers."""
    return [
        json.loads(line)
        for path in sorted((run_dir / "ledger").glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]


def scheduled(records: Iterable[Record]) -> Iterator[Record]:
    """One record per scheduled request, with the step's `seq` and `t0`, `acc` (None: no result) and `high_water`."""
    results = {r["seq"]: dict(zip(r["ids"], r["acc"], strict=True)) for r in records if r["kind"] == "result"}
    mark: dict[str, int] = defaultdict(int)
    for step in sorted((r for r in records if r["kind"] == "step"), key=lambda r: int(r["seq"])):
        lists = ("ids", "new", "computed", "prompts", "out", "spec", "first", "resumed")
        for values in zip(*(step[name] for name in lists), strict=True):
            row = dict(zip(lists, values, strict=True)) | {"seq": step["seq"], "t0": step["t0"]}
            request = row["ids"]
            row["acc"] = results[step["seq"]].get(request, 0) if step["seq"] in results else None
            row["high_water"] = mark[request]
            yield row
            rejected = max(0, row["spec"] - max(0, (1 if row["acc"] is None else row["acc"]) - 1))
            mark[request] = max(mark[request], row["computed"] + row["new"] - rejected)


def phase_rows(records: Iterable[Record]) -> list[Row]:
    """What step_requests has to hold."""
    found = []
    for row in scheduled(list(records)):
        counts: dict[str, int] = defaultdict(int)
        for position in range(row["computed"], row["computed"] + row["new"]):
            counts[_phase(position, row)] += 1
        reached = row["computed"]
        for phase in (phase for phase in PHASES if counts[phase]):
            reached += counts[phase]
            last = reached == row["computed"] + row["new"]
            found.append(
                Row(
                    seq=row["seq"], request_id=row["ids"], phase=phase, new_tokens=counts[phase],
                    context_tokens=reached, accepted_tokens=row["acc"] if last else 0,
                )
            )  # fmt: skip
    return found


def _phase(position: int, row: Record) -> str:
    if position < row["high_water"]:
        return "recompute"
    if position < row["prompts"]:
        return "prefill"
    return "verify" if row["spec"] else "decode"


def step_counts(records: Iterable[Record]) -> dict[int, dict[str, Any]]:
    """What the counts of `steps` have to be, by seq; a request has one q and one k per side of a step."""
    records = list(records)
    drafted: dict[int, int] = defaultdict(int)
    for row in scheduled(records):
        drafted[row["seq"]] += row["spec"]
    by_step: dict[int, list[Row]] = defaultdict(list)
    for phase_row in phase_rows(records):
        by_step[phase_row.seq].append(phase_row)
    return {seq: _counts(rows) | {"spec_tokens": drafted[seq]} for seq, rows in by_step.items()}


def _counts(rows: list[Row]) -> dict[str, Any]:
    side = {
        name: [row for row in rows if (row.phase in PREFILL_SIDE) == (name == "prefill")]
        for name in ("prefill", "decode")
    }
    counts: dict[str, Any] = {}
    for name, part in side.items():
        q: dict[str, int] = defaultdict(int)
        k: dict[str, int] = defaultdict(int)
        for row in part:
            q[row.request_id] += row.new_tokens
            k[row.request_id] = max(k[row.request_id], row.context_tokens)
        counts |= {
            f"{name}_reqs": len(q), f"{name}_tokens": sum(q.values()), f"{name}_kv_tokens": sum(k.values()),
            f"{name}_qq": sum(value * value for value in q.values()),
            f"{name}_qk": sum(value * k[request] for request, value in q.items()),
        }  # fmt: skip
    del counts["decode_qq"]  # no column of steps
    both = bool(side["prefill"]) and bool(side["decode"])
    accepted = [row.accepted_tokens for row in rows]
    return counts | {
        "kind": "mixed" if both else "prefill" if side["prefill"] else "decode",
        "recompute_tokens": sum(row.new_tokens for row in rows if row.phase == "recompute"),
        "accepted_tokens": None if None in accepted else sum(value or 0 for value in accepted),
    }


def stored_rows(con: duckdb.DuckDBPyConnection) -> list[Row]:
    """step_requests as the oracle tells them."""
    rows = con.execute(
        "SELECT s.ledger_seq, r.request_id, r.phase, r.new_tokens, r.context_tokens, r.accepted_tokens "
        "FROM step_requests AS r JOIN steps AS s USING (step_id)"
    ).fetchall()
    names = ("seq", "request_id", "phase", "new_tokens", "context_tokens", "accepted_tokens")
    return [Row(**dict(zip(names, row, strict=True))) for row in rows]


def stored_counts(con: duckdb.DuckDBPyConnection) -> dict[int, dict[str, Any]]:
    """The counts of ledger steps as the oracle tells them."""
    sql = f"SELECT ledger_seq, {', '.join(COUNTS)} FROM steps WHERE source = 'ledger'"
    return {seq: dict(zip(COUNTS, counts, strict=True)) for seq, *counts in con.execute(sql).fetchall()}


def in_order(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.seq, row.request_id, row.context_tokens))
