"""Coding-agent sessions as published for cache tests: one JSON document per session with block ids, and a CSV of such.

The documents' ids are local to their session and stand for whole blocks; the prompt's rest has none. The CSV has lengths
and what each prompt has in common with the ones before. think_time stands before a request: for a tool, or a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from traces.agentlogs.base import Batch, Head, Reading, Units, frame_of
from traces.agentlogs.files import records_of
from traces.agentlogs.hashes import local_ids
from traces.agentlogs.measure import RECORDED
from traces.agentlogs.tables import counted, read_csv, seconds_ns
from traces.agentlogs.values import listing, name, span_ns, whole
from traces.clock import NS_PER_S

BLOCK_TOKENS = 64
_MAX_BLOCK = 1 << 20
_COLUMNS = ("trace_id", "agent", "in_tokens", "out_tokens")


class BlockSessionFormat:
    """One JSON document per session (or one a line)."""

    name = "block-session"

    def fits(self, head: Head) -> bool:
        """Whether a document has requests and says how large its blocks are."""
        return any(isinstance(item.get("requests"), list) and "block_size" in item for item in head.records)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """A batch per document."""
        for number, document in records_of(head, reading):
            block = whole(document.get("block_size"))
            if block is None or not 0 < block <= _MAX_BLOCK or not isinstance(document.get("requests"), list):
                reading.bad(head.path, number, "no session with block_size and requests")
                continue
            session = name(document.get("id")) or head.label
            scope = session if document.get("hash_id_scope", "local") == "local" else ""
            rows: list[dict[str, Any]] = []
            ids: list[list[int]] = []
            self._requests(head, reading, document["requests"], (session, None, block), rows, ids)
            if not rows:
                continue
            lengths = np.array([len(item) for item in ids], dtype=np.int64)
            flat = np.array([one for item in ids for one in item], dtype=np.int64)
            units = Units(
                offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64), chain=local_ids(flat, scope),
                tokens=np.full(len(flat), block, dtype=np.int32),
            )  # fmt: skip
            yield Batch(path=head.path, format=self.name, requests=frame_of(rows), units=units, block_tokens=block)

    def _requests(
        self, head: Head, reading: Reading, items: list[Any], place: tuple[str, str | None, int],
        rows: list[dict[str, Any]], ids: list[list[int]],
    ) -> None:  # fmt: skip
        """Requests of a session and, after them, of the agents it started."""
        session, parent, block = place
        first = len(rows)
        nested = []
        for item in items:
            if isinstance(item, dict) and isinstance(item.get("requests"), list):
                nested.append(item)
                continue
            row = _request(item, len(rows) == first)
            number = len(rows) + 1
            blocks = _block_ids(item)
            if row is None:
                reading.bad(head.path, number, "a request without whole numbers for in and out")
            elif blocks is None or len(blocks) * block > row["input_tokens"]:
                reading.bad(head.path, number, f"hash_ids are no blocks of {block} tokens of the prompt")
            else:
                rows.append({**row, "line": number, "session": session, "parent_session": parent})
                ids.append(blocks)
        if parent is not None and nested:
            reading.note(f"{head.label}: agents that agents started are left out below the second level")
            return
        for count, item in enumerate(nested, 1):
            agent = name(item.get("agent_id")) or f"agent_{count:03d}"
            self._requests(head, reading, item["requests"], (f"{session}/{agent}", session, block), rows, ids)


def _request(item: object, first: bool) -> dict[str, Any] | None:
    if not isinstance(item, dict):
        return None
    tokens, output = whole(item.get("in")), whole(item.get("out"))
    if tokens is None or output is None or tokens == 0:
        return None
    kinds = {kind for kind in listing(item.get("input_types")) if isinstance(kind, str)}
    tool = None if not kinds else "tool_result" in kinds
    return {
        "start_ns": span_ns(item.get("t"), NS_PER_S), "input_tokens": tokens, "output_tokens": output,
        "model": name(item.get("model")), "tool_step": False if first else tool,
        "tool_wait_ns": span_ns(item.get("think_time"), NS_PER_S) if tool and not first else None,
        "api_ns": span_ns(item.get("api_time"), NS_PER_S), "token_source": RECORDED,
    }  # fmt: skip


def _block_ids(item: object) -> list[int] | None:
    """None where there are none, or one of them is no 64-bit number."""
    ids = item.get("hash_ids") if isinstance(item, dict) else None
    right = isinstance(ids, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and -(1 << 63) <= one < 1 << 63 for one in ids
    )
    return ids if right else None


class CodingCsvFormat:
    """coding_agent_sessions.csv."""

    name = "coding-agent-csv"

    def fits(self, head: Head) -> bool:
        """Whether the header names the columns."""
        return set(_COLUMNS) <= set(head.columns)

    def read(self, head: Head, reading: Reading) -> Iterator[Batch]:
        """One request per row; sessions are trace and agent."""
        rows = read_csv(head, reading, _COLUMNS)
        there = set(rows.columns)
        absent = pl.lit(None, dtype=pl.String)
        rows = rows.with_columns(
            absent.alias(column)
            for column in ("cached_tokens_infcache", "t_s", "api_time_s", "think_time_s", "input_types", "model")
            if column not in there
        )
        rows = rows.with_columns(
            counted("in_tokens"), counted("out_tokens"), counted("cached_tokens_infcache"), seconds_ns("t_s"),
            seconds_ns("api_time_s"), seconds_ns("think_time_s"),
        )  # fmt: skip
        right = (pl.col("in_tokens") > 0).fill_null(value=False) & pl.col("out_tokens").is_not_null()
        for line in rows.filter(~right)["line"].to_list():
            reading.bad(head.path, line, "in_tokens and out_tokens are not whole numbers")
        rows = rows.filter(right)
        main = pl.col("agent").str.split("/").list.first()
        trace = pl.col("trace_id")
        session = pl.when(pl.col("agent") == "main").then(trace).otherwise(pl.concat_str(trace, pl.lit("/"), "agent"))
        parent = pl.when((pl.col("agent") != "main") & (main == "main")).then(trace)
        tool = pl.col("input_types").str.contains("tool_result")
        first = pl.int_range(pl.len()).over("trace_id", "agent") == 0
        reusable = pl.col("cached_tokens_infcache")
        frame = rows.select(
            "line", session=session, parent_session=parent, start_ns="t_s", input_tokens="in_tokens",
            output_tokens="out_tokens", reusable_tokens=pl.when(reusable <= pl.col("in_tokens")).then(reusable),
            model="model", tool_step=tool & ~first, tool_wait_ns=pl.when(tool & ~first).then("think_time_s"),
            api_ns="api_time_s", token_source=pl.lit(RECORDED),
        )  # fmt: skip
        reading.note("times of this log start anew in every session: --ttl and sizes of the cache act within sessions")
        whole_frame = pl.concat([frame_of([]), frame], how="diagonal")
        yield Batch(path=head.path, format=self.name, requests=whole_frame, block_tokens=BLOCK_TOKENS)
