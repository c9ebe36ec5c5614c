"""Requests: latency by method §11, and a request's wall time divided into what it waited for and what it computed.

The parts come from the step ledger, which covers the whole run, so they exist for the control pass too, where nothing
was recorded. A life [arrival, last token] is cut at the steps the request was in; the parts sum to it exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import duckdb
import polars as pl

from traces.errors import NothingToAnalyze, UsageProblem
from traces.store import TraceStore, frame, named_sql

REQUESTS_VERSION = 1
PARTS = ("frontend", "queue", "prefill", "interference", "decode", "preempted", "gap", "stream")
ALL_PASSES = "all"
_PASSES = ("control", "profiled", None)  # the first that the run has is shown: recording slows


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which requests. `pass_name` None: the control pass where there is one; 'all': every pass."""

    pass_name: str | None = None
    request_id: str | None = None  # the engine's or the client's, of any pass
    slowest: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestsReport:
    """Requests of a run. Times in ns, unknown is None; rows are those of the SQL files named `requests_*.sql`.

    `latency`: a row per term ('ttft', 'tpot', 'itl', 'queue', 'e2e') with n and percentiles (summary_latency.sql).
    `terms`: for 'e2e' and 'ttft', the slow requests (at or above p99) against those around the median.
    `parts`: the same divided into PARTS; a term's parts sum to it. `requests`: the slowest ones, or the one asked for,
    with `<part>_ns` of the whole and `ttft_<part>_ns` up to the first token. `unknown`: why parts are not known →
    number of requests.
    """

    version: int = REQUESTS_VERSION
    run_id: str
    pass_name: str | None
    passes: list[dict[str, Any]]
    latency: list[dict[str, Any]]
    terms: list[dict[str, Any]]
    parts: list[dict[str, Any]]
    requests: list[dict[str, Any]]
    unknown: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def fill(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Fill requests.prefill_device_ns and decode_device_ns from step_requests.device_ns; NULL where not known."""
    con.execute("SET VARIABLE run_id = ?", [run_id])
    con.execute(named_sql("requests_device", "analyzers"))


def divide(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Make the temporary tables request_row, request_step and request_part (see their SQL files) of a run."""
    con.execute("SET VARIABLE run_id = ?", [run_id])
    for name in ("requests_rows", "requests_steps", "requests_parts"):
        con.execute(named_sql(name, "analyzers"))


def read_requests(store: TraceStore, selection: Selection) -> RequestsReport:
    """Latency, parts and the requests of `selection`.

    Raises NothingToAnalyze where the run has no requests at all or none of that pass, UsageProblem for an unknown id.
    """
    passes = store.named("summary_requests", "analyzers").to_dicts()
    chosen = _choose(passes, selection.pass_name)
    every = selection.pass_name == ALL_PASSES
    of_pass = {"every": every, "pass": chosen}
    divide(store.connection, store.run_id)
    store.connection.execute(named_sql("requests_grouped", "analyzers"), of_pass)
    rows = _rows(store, "requests_list", of_pass | {"id": selection.request_id, "slowest": selection.slowest})
    if selection.request_id is not None and not rows.height:
        raise UsageProblem(
            f"no request {selection.request_id}", hint=f"known: {', '.join(_some_ids(store))}, …; --slowest lists more"
        )
    unknown = _rows(store, "requests_unknown", of_pass)
    latency = store.named("summary_latency", "analyzers")
    return RequestsReport(
        run_id=store.run_id,
        pass_name=ALL_PASSES if every else chosen,
        passes=passes,
        latency=latency.filter(pl.lit(every) | pl.col("pass").eq_missing(pl.lit(chosen, pl.String))).to_dicts(),
        terms=_rows(store, "requests_terms", {}).to_dicts(),
        parts=_rows(store, "requests_explained", of_pass).to_dicts(),
        requests=rows.to_dicts(),
        unknown=dict(zip(unknown["why"], unknown["requests"], strict=True)),
    )


def _choose(passes: list[dict[str, Any]], wanted: str | None) -> str | None:
    known = [row["pass"] for row in passes]
    if not known:
        raise NothingToAnalyze(
            "the run has no requests",
            hint="a trace alone names none: ingest the run directory, or record with `stepscope profile`",
        )
    if wanted is not None and wanted != ALL_PASSES and wanted not in known:
        names = ", ".join(name or "no pass (use all)" for name in known)
        raise NothingToAnalyze(f"the run has no {wanted} pass", hint=f"its requests are of: {names}")
    if wanted is not None:
        return wanted
    return next((name for name in _PASSES if name in known), known[0])


def _rows(store: TraceStore, name: str, parameters: Mapping[str, Any]) -> pl.DataFrame:
    return frame(store.connection.sql(named_sql(name, "analyzers"), params=dict(parameters) or None))


def _some_ids(store: TraceStore) -> list[str]:
    sql = "SELECT coalesce(client_request_id, request_id) AS id FROM requests WHERE run_id = ? ORDER BY arrival_ns"
    return store.query(f"{sql} LIMIT 3", [store.run_id])["id"].to_list()
