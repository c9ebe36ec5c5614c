"""The terminal form of `summary`."""

from __future__ import annotations

from typing import Any

from analyzers.report.text import count, duration, percent, rate, ratio, share, shown, table
from analyzers.summary import Summary

_TERMS = (("ttft", "TTFT"), ("tpot", "TPOT"), ("itl", "ITL"), ("queue", "queue"), ("e2e", "E2E"))


def summary_lines(summary: Summary) -> list[str]:
    """A summary as lines of at most about 100 columns."""
    sections = (_facts, _health, _devices, _steps, _categories, _latency, _requests, _overhead)
    lines: list[str] = []
    for section in sections:
        part = section(summary)
        if part:
            lines += [*part, ""]
    return lines[:-1]


def _facts(summary: Summary) -> list[str]:
    run = summary.run
    engine = " ".join(shown(run[key], 40) for key in ("engine", "engine_version") if run[key])
    device = (
        next((item["name"] for item in summary.devices if item["name"]), None) or run["device_kind"] or "unknown device"
    )
    named = [shown(run[key], limit) for key, limit in (("model", 50), ("dtype", 20)) if run[key]]
    facts = [item for item in (engine, *named, shown(device, 60)) if item]
    return [f"{shown(run['name'], 60)}  ({run['run_id']})", "  " + " · ".join(facts)]


def _health(summary: Summary) -> list[str]:
    if not summary.health:
        return []
    lines = ["recording"]
    for item in summary.health:
        where = f" (rank {item['rank']})" if item["rank"] is not None and len(summary.devices) > 1 else ""
        lines.append(f"  {item['status']}: {shown(item['message'], 400)}{where}")
    return lines


def _devices(summary: Summary) -> list[str]:
    if not summary.devices:
        return []
    rows = []
    for item in summary.devices:
        window = item["window_end_ns"] - item["window_start_ns"]
        rows.append([
            f"rank {item['rank']} device {item['device']}", duration(window), _of_window(item["busy_ns"], window),
            _of_window(item["idle_ns"], window), duration(item["unrecorded_ns"]),
        ])  # fmt: skip
    header = ["", "window", "busy", "idle", "unrecorded"]
    return ["time of the device: window = busy + idle + unrecorded", *table(header, rows)]


def _of_window(ns: int | None, window_ns: int) -> str:
    """A part of the window with its share; device times are never unknown, only withheld."""
    return "withheld" if ns is None else f"{duration(ns)} ({percent(share(ns, window_ns))})"


def _steps(summary: Summary) -> list[str]:
    if not summary.steps:
        return []
    busy = sum(item["busy_ns"] or 0 for item in summary.steps)
    rows = [
        [
            item["kind"], count(item["steps"]), count(item["prefill_tokens"]), count(item["decode_tokens"]), duration(item["busy_ns"]),
            percent(share(item["busy_ns"], busy)), duration(item["prefill_ns"]), duration(item["decode_ns"]),
            duration(item["p50_ns"]), duration(item["p99_ns"]),
        ]
        for item in summary.steps
    ]  # fmt: skip
    header = ["kind", "steps", "prefill tok", "decode tok", "busy", "share", "prefill", "decode", "p50", "p99"]
    lines = ["steps", *table(header, rows, drop=("share", "p50"))]
    prefill, decode = _total(summary.steps, "prefill_ns"), _total(summary.steps, "decode_ns")
    if prefill is not None and decode is not None and busy:
        parts = f"prefill {duration(prefill)} ({percent(prefill / busy)}), decode {duration(decode)} ({percent(decode / busy)})"
        lines.append(f"  phases: {parts} of the steps' busy time")
    unsplit = sum(
        item["busy_ns"] or 0 for item in summary.steps if item["kind"] == "mixed" and item["prefill_ns"] is None
    )
    if unsplit:
        lines.append(
            f"  not split: {duration(unsplit)} ({percent(unsplit / busy)}) in mixed steps; `stepscope health` says why"
        )
    return lines


def _total(rows: list[dict[str, Any]], name: str) -> int | None:
    values = [row[name] for row in rows if row["busy_ns"] is not None]
    return None if not values or None in values else sum(values)


def _categories(summary: Summary) -> list[str]:
    busy = sum(item["busy_ns"] or 0 for item in summary.categories)
    if not busy:
        return []
    rows = [
        [
            item["category"] or "not analyzed",
            count(item["activities"]),
            duration(item["busy_ns"]),
            percent(share(item["busy_ns"], busy)),
        ]
        for item in summary.categories
    ]
    return ["device time by category", *table(["category", "activities", "busy", "share"], rows)]


def _latency(summary: Summary) -> list[str]:
    known = {row["term"]: row for row in summary.latency if row["pass"] == summary.latency_pass}
    if not known:
        return []
    rows = [
        [title, duration(row["p50_ns"]), duration(row["p90_ns"]), duration(row["p99_ns"]), count(row["n"])]
        for term, title in _TERMS
        if (row := known.get(term))
    ]
    source = f"{shown(summary.latency_pass, 40)} pass" if summary.latency_pass else "all requests"
    return [f"latency at the client ({source})", *table(["", "p50", "p90", "p99", "n"], rows)]


def _requests(summary: Summary) -> list[str]:
    if not summary.requests:
        return []
    rows = [
        [
            shown(item["pass"] or "all", 40), *(count(item[name]) for name in ("requests", "failed", "prompt_tokens", "cached_tokens")),
            percent(item["hit_ratio"]), count(item["output_tokens"]), rate(item["output_tokens_per_s"]),
        ]
        for item in summary.requests
    ]  # fmt: skip
    header = ["pass", "requests", "failed", "prompt tok", "cached", "hit ratio", "output tok", "output tok/s"]
    return ["requests and prefix cache", *table(header, rows)]


def _overhead(summary: Summary) -> list[str]:
    cost = summary.overhead
    if cost is None or cost["step_ratio"] is None:
        return []
    text = f"step time {ratio(cost['step_ratio'])}, throughput {ratio(cost['throughput_ratio'])}"
    if cost["tpot_ratio"] is not None:
        text += f", TPOT {ratio(cost['tpot_ratio'])}"
    return [f"cost of recording (window against control, {count(cost['steps'])} steps at equal token counts): {text}"]
