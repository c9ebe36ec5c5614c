"""TraceLab: rounds of normalised sessions (JSON lines), and the CSV files its replayer takes.

`input_tokens_total` and prefix_len + input_len are whole prompts. A round's prefix_tokens are what its provider read
from the cache; a CSV's prefix_len is what the replayed prompt has in common with the round before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from traces.agentlogs.base import MAX_TOKENS, Batch, Head, Reading, frame_of
from traces.agentlogs.files import records_of
from traces.agentlogs.measure import RECORDED
from traces.agentlogs.tables import counted, read_csv
from traces.agentlogs.values import listing, mapping, moment_ns, name, span_ns, whole
from traces.clock import NS_PER_MS

_COLUMNS = ("session_id", "round_idx", "prefix_len", "input_len", "output_len")
_INPUTS = ("user_message", "tool_result")


class TracelabRoundsFormat:
    """Rounds, derived or sanitized."""

    name = "tracelab"

    def fits(self, head: Head) -> bool:
        """Whether a record has a round's counts."""
        return any({"round_index", "input_tokens_total", "output_tokens"} <= item.keys() for item in head.records)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per round."""
        rows = []
        after: dict[str | None, int | None] = {}  # of a session: how long its last tools ran
        for line, record in records_of(head, reading):
            row = _round(record)
            if row is None:
                reading.bad(head.path, line, "input_tokens_total and output_tokens are not whole numbers")
                continue
            key = row["message_id"]
            if key is not None and (row["session"] or "", key) in reading.counted:
                reading.repeated += 1
                continue
            if key is not None:
                reading.counted.add((row["session"] or "", key))
            session = row["session"]
            rows.append({**row, "line": line, "tool_wait_ns": after.get(session) if row["tool_step"] else None})
            after[session] = _longest([mapping(tool) for tool in listing(record.get("tools"))])
        yield Batch(path=head.path, format=self.name, requests=frame_of(rows))


def _round(record: dict[str, Any]) -> dict[str, Any] | None:
    total, output = whole(record.get("input_tokens_total")), whole(record.get("output_tokens"))
    if total is None or output is None or total == 0:
        return None
    cached = whole(record.get("prefix_tokens"))
    events = [mapping(event) for event in listing(record.get("timing_events"))]
    times = [when for event in events if (when := moment_ns(event.get("timestamp"))) is not None]
    return {
        "session": name(record.get("session_id")), "start_ns": times[0] if times else None, "input_tokens": total,
        "output_tokens": output, "cached_tokens": cached if cached is not None and cached <= total else None,
        "model": name(record.get("model")), "message_id": name(record.get("round_id")),
        "tool_step": _tool_step(record, events),
        "api_ns": times[-1] - times[0] if times and times[-1] >= times[0] else None,
        "token_source": RECORDED,
    }  # fmt: skip


def _tool_step(record: dict[str, Any], events: list[dict[str, Any]]) -> bool | None:
    results = whole(record.get("current_tool_result_count"))
    if results is not None:
        return results > 0
    kinds = {event.get("event_type") for event in events}
    return "tool_result" in kinds if kinds & set(_INPUTS) else None


def _longest(tools: list[dict[str, Any]]) -> int | None:
    """Of the tools, which run side by side."""
    spans = [span for tool in tools if (span := span_ns(tool.get("tool_wall_latency_ms"), NS_PER_MS)) is not None]
    return max(spans, default=None)


class TracelabCsvFormat:
    """Closed-loop replay files, with one session or several."""

    name = "tracelab-csv"

    def fits(self, head: Head) -> bool:
        """Whether the header names the columns."""
        return set(_COLUMNS) <= set(head.columns)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per row; its tool wait is what stands behind the row before."""
        rows = read_csv(head, reading, _COLUMNS)
        prefix, more, output = (counted(column) for column in ("prefix_len", "input_len", "output_len"))
        rows = rows.with_columns(prefix=prefix, more=more, output=output)
        right = pl.col("prefix").is_not_null() & pl.col("more").is_not_null() & pl.col("output").is_not_null()
        right &= (pl.col("prefix") + pl.col("more")).is_between(1, MAX_TOKENS).fill_null(value=False)
        for line in rows.filter(~right)["line"].to_list():
            reading.bad(head.path, line, "prefix_len, input_len and output_len are not whole numbers")
        wait = pl.col("tool_wait_after_ms") if "tool_wait_after_ms" in rows.columns else pl.lit(None, dtype=pl.String)
        wait_ns = (wait.str.strip_chars().cast(pl.Float64, strict=False).clip(0, 1e12) * NS_PER_MS).cast(pl.Int64)
        rows = rows.filter(right).with_columns(wait_ns=wait_ns)
        later = pl.int_range(pl.len()).over("session_id") > 0
        frame = rows.select(
            "line", session="session_id", input_tokens=pl.col("prefix") + pl.col("more"), output_tokens="output",
            reusable_tokens="prefix", tool_wait_ns=pl.col("wait_ns").shift(1).over("session_id"),
            tool_step=pl.when(~later).then(statement=False), token_source=pl.lit(RECORDED),
        )  # fmt: skip
        whole_frame = pl.concat([frame_of([]), frame], how="diagonal")
        yield Batch(path=head.path, format=self.name, requests=whole_frame)
