"""Small recordings from literals: rows of the staging tables, linked and checked in memory. Times in ns."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pyarrow as pa

from traces import health
from traces.link import LinkContext, create_stage, link
from traces.ranks import RankReport, arrange
from traces.readers.base import EVENT_COLUMNS, STRING_COLUMNS, Cat
from traces.sink import StageSink
from traces.store import SAFE_SETTINGS, named_sql, schema_sql

RUN = "r"
DECODE = "execute_context_0(0)_generation_4(4)"
PREFILL = "execute_context_1(64)_generation_0(0)"


class Recording:
    """Files and events; `link()` and `check()` do what an ingest does."""

    def __init__(self) -> None:
        self.con = duckdb.connect(config=dict(SAFE_SETTINGS))
        self.con.execute(schema_sql())
        self.con.execute("ATTACH ':memory:' AS stage")
        create_stage(self.con)
        self.texts: dict[int, dict[str, int]] = {}
        self.events: dict[int, list[list[Any]]] = {}

    def file(
        self, src: int = 0, *, rank: int = 0, trace_id: str | None = None, name: str = "", base_ns: int = 0,
        truncated: str | None = None, role: str = "trace", **meta: Any,
    ) -> Recording:  # fmt: skip
        name = name or f"f{src}.json"
        facts = [rank, trace_id, base_ns, base_ns, 0, "{}", "{}", truncated, json.dumps(meta)]
        row = [src, name, name, role, "kineto", None, 1, *facts]
        self.con.execute(f"INSERT INTO stage.sources VALUES ({', '.join('?' * 16)})", row)
        self.texts[src], self.events[src] = {}, []
        return self

    def text(self, src: int, text: str | None) -> int:
        return 0 if text is None else self.texts[src].setdefault(text, len(self.texts[src]) + 1)

    def event(
        self, cat: Cat, name: str | None, ts: int | None, dur: int | None, *, src: int = 0, **values: Any
    ) -> Recording:
        """One event. `values`: pid, tid, corr, ext, device, stream, and `extra` as a text."""
        extra = self.text(src, values.pop("extra", None)) or None
        known = {
            "src": src,
            "seq": len(self.events[src]),
            "cat": int(cat),
            "name": self.text(src, name),
            "ts": ts,
            "dur": dur,
        }
        row = {"pid": 1, "tid": 1} | values | known | {"extra": extra}
        self.events[src].append([row.get(item.name) for item in EVENT_COLUMNS])
        return self

    def launch(
        self, ts: int, corr: int, *, name: str = "cudaLaunchKernel", dur: int = 1_000, **values: Any
    ) -> Recording:
        return self.event(Cat.RUNTIME, name, ts, dur, corr=corr, **values)

    def kernel(
        self, ts: int | None, dur: int | None, corr: int | None = None, *, name: str = "gemm", **values: Any
    ) -> Recording:
        return self.event(Cat.KERNEL, name, ts, dur, corr=corr, **({"device": 0, "stream": 7} | values))

    def label(self, ts: int, dur: int, text: str = DECODE, **values: Any) -> Recording:
        return self.event(Cat.ANNOTATION, text, ts, dur, **values)

    def load(self) -> Recording:
        """Write strings and events into the staging tables."""
        sink = StageSink(self.con)
        for src, texts in self.texts.items():
            columns = [[src] * len(texts), list(texts.values()), list(texts)]
            sink.append("strings", pa.table(columns, schema=STRING_COLUMNS))
            columns = [list(column) for column in zip(*self.events[src], strict=True)] or [[] for _ in EVENT_COLUMNS]
            sink.append("events", pa.table(columns, schema=EVENT_COLUMNS))
            self.con.execute("UPDATE stage.sources SET events = ? WHERE src = ?", [len(self.events[src]), src])
        sink.close()
        return self

    def arrange(self) -> RankReport:
        return arrange(self.con, RUN)

    def link(self, *, window: tuple[int, int] | None = None) -> Recording:
        """Load, arrange ranks, link, and fill `sources`."""
        self.load()
        self.arrange()
        start, end = window or (None, None)
        link(self.con, LinkContext(run_id=RUN, window_start_ns=start, window_end_ns=end))
        self.con.execute("DELETE FROM sources")
        self.con.execute(named_sql("store_sources"))
        return self

    def check(self, *, window: tuple[int, int] | None = None) -> dict[tuple[int | None, str], dict[str, Any]]:
        """Link and check: {(rank, check_id): row of `health`}. Parts sum to the whole after it, always."""
        self.link(window=window)
        health.check(self.con, RUN)
        self.assert_exact()
        return self.health()

    def health(self) -> dict[tuple[int | None, str], dict[str, Any]]:
        rows = self.rows("SELECT rank, check_id, status, value, threshold, affects, message FROM health ORDER BY rowid")
        found = {(row["rank"], row["check_id"]): row | {"affects": json.loads(row["affects"])} for row in rows}
        assert len(found) == len(rows)  # one row per check and rank
        return found

    def assert_exact(self) -> None:
        wrong = self.rows(
            "SELECT * FROM devices WHERE busy_ns + idle_ns + unrecorded_ns <> window_end_ns - window_start_ns"
        )
        assert wrong == []
        overlapping = self.rows(
            "SELECT * FROM (SELECT start_ns, lag(start_ns + dur_ns) OVER (PARTITION BY rank, device ORDER BY start_ns) "
            "AS before_ns FROM gaps) WHERE start_ns < before_ns"
        )
        assert overlapping == []
        assert self.rows("SELECT gap_id FROM gaps GROUP BY gap_id HAVING count(*) > 1") == []
        assert self.rows("SELECT gap_id FROM gaps WHERE dur_ns <= 0") == []

    def rows(self, sql: str) -> list[dict[str, Any]]:
        result = self.con.execute(sql)
        names = [item[0] for item in result.description]
        return [dict(zip(names, row, strict=True)) for row in result.fetchall()]

    def one(self, sql: str) -> Any:
        row = self.con.execute(sql).fetchone()
        assert row is not None
        return row[0] if len(row) == 1 else row
