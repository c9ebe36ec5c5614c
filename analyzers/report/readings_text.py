"""Terminal tables of `steps`, `phases`, `kernels` and `health`."""

from __future__ import annotations

from typing import Any

import polars as pl

from analyzers.report.text import count, duration, percent, shown, table
from traces.labels import CAVEATS


def steps_lines(rows: pl.DataFrame, limit: int) -> list[str]:
    """A line per step, at most `limit`."""
    header = ["step", "kind", "start", "device", "busy", "prefill", "interval", "decode", "pre tok", "dec tok", "graph"]
    shown = rows.head(limit).to_dicts()
    several = rows["rank"].n_unique() > 1
    cells = [
        [
            f"{row['rank']}:{row['seq']}" if several else str(row["seq"]), row["kind"], duration(row["start_ns"]),
            duration(row["device_ns"]), duration(row["busy_ns"]), duration(row["prefill_ns"]), _interval(row),
            duration(row["decode_ns"]), count(row["prefill_tokens"]), count(row["decode_tokens"]), row["graph_mode"] or "–",
        ]
        for row in shown
    ]  # fmt: skip
    lines = table(header, cells, left=2, indent="", drop=("interval", "start"))
    if rows.height > limit:
        lines.append(f"({rows.height - limit:,} more; --limit, --json or --csv give them)")
    return lines


def _interval(row: dict[str, Any]) -> str:
    """The interval of prefill_ns where the step was split."""
    if row["kind"] != "mixed" or row["split_low_ns"] is None or row["split_high_ns"] is None:
        return ""
    return f"{row['split_low_ns'] / 1e6:.2f}–{row['split_high_ns'] / 1e6:.2f}"


def phases_lines(data: dict[str, Any]) -> list[str]:
    """Phases over the run, by step kind, and what prefill does to decoding."""
    busy = sum(row["busy_ns"] or 0 for row in data["totals"])
    lines = ["device time by phase", *table(
        ["phase", "busy", "share", "tokens", "tok/s of device", "tok/s of window"],
        [[row["phase"], duration(row["busy_ns"]), percent(row["busy_ns"] / busy if busy else None), count(row["tokens"]),
          count(row["tokens_per_device_s"]), count(row["tokens_per_window_s"])] for row in data["totals"]],
    ), "", "by step kind", *table(
        ["kind", "steps", "busy", "prefill", "(interval)", "decode", "per prefill tok", "per decode tok", "interference"],
        [[row["kind"], count(row["steps"]), duration(row["busy_ns"]), duration(row["prefill_ns"]), _range(row),
          duration(row["decode_ns"]), duration(row["prefill_ns_per_token"] or None), duration(row["decode_ns_per_token"] or None),
          duration(row["interference_ns"]) if row["kind"] == "mixed" else ""] for row in data["kinds"]],
    )]  # fmt: skip
    if data["itl"]:
        lines += ["", "time between two results of a decoding request, in the engine", *table(
            ["pass", "prefill in the step", "p50", "p90", "p99", "n"],
            [[row["pass"] or "all", "yes" if row["with_prefill"] else "no", duration(row["p50_ns"]), duration(row["p90_ns"]),
              duration(row["p99_ns"]), count(row["n"])] for row in data["itl"]], left=2,
        )]  # fmt: skip
    for row in data["caveats"]:
        lines.append(f"note: {row['steps']:,} steps: {CAVEATS.get(row['caveat'], row['caveat'])}")
    return lines


def _range(row: dict[str, Any]) -> str:
    if row["kind"] != "mixed" or row["split_low_ns"] is None or row["prefill_ns"] is None:
        return ""
    return f"({duration(row['split_low_ns'])}–{duration(row['split_high_ns'])})"


def kernels_lines(rows: pl.DataFrame, by: str, limit: int) -> list[str]:
    """A line per group, at most `limit`."""
    several = by in ("name", "op")  # groups that have a category of their own to show
    cells = [
        [
            shown(row["name"], 58) if row["name"] is not None else "(no name)", *([row["category"] or ""] if several else []),
            count(row["activities"]), duration(row["busy_ns"]), percent(row["share"]), duration(row["p50_ns"]), duration(row["p99_ns"]),
        ]
        for row in rows.head(limit).to_dicts()
    ]  # fmt: skip
    header = [by, *(["category"] if several else []), "n", "busy", "share", "p50", "p99"]
    lines = table(header, cells, left=1 + several, indent="")
    if rows.height > limit:
        rest = rows["busy_ns"].tail(rows.height - limit).sum()
        lines.append(f"({rows.height - limit:,} more with {duration(float(rest))}; --limit, --json or --csv give them)")
    return lines


def health_lines(rows: pl.DataFrame) -> list[str]:
    """Every check with its status; those that withhold first."""
    several = rows["rank"].n_unique() > 1
    return [
        f"{row['status']:9}{row['check_id']}{_rank(row, several)}: {shown(row['message'], 600)}"
        for row in rows.to_dicts()
    ]


def _rank(row: dict[str, Any], several: bool) -> str:
    return f" (rank {row['rank']})" if several and row["rank"] is not None else ""
