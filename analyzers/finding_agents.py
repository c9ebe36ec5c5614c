"""Findings of agent loops: one per cause for which tokens were computed again (table `reuse`, method §9), with its price."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import polars as pl

from analyzers.finding import Finding, Gain, Severity, device_window_ns, severity_of
from analyzers.finding_agents_causes import Cause, Recorded, cause_of, proof_of
from analyzers.finding_agents_gain import predicted, step_total_ns
from analyzers.step_law import learn
from traces.health import withheld
from traces.rows import first_row
from traces.store import frame, named_sql

MAKER = "agents"
_ASSUMED_BLOCK_TOKENS = 128  # for the interval where the block size is not known; the engines' largest default
# What spoils the device time of pieces when it is withheld:
_SPOIL_TIME = {"kernels", "steps", "steps.busy_ns", "steps.prefill_ns", "step_requests", "devices.busy_ns"}
_TOLD_SHARE = 0.01  # of the prompts' tokens: from here on what is only said is said


def make(con: duckdb.DuckDBPyConnection, run_id: str) -> Iterator[Finding]:
    """The findings of the run's agent loops; none where reuse is not known or there is no step ledger."""
    recorded = _recorded(con, run_id)
    block = recorded.block_tokens or _ASSUMED_BLOCK_TOKENS
    lost = _named(_query(con, "finding_agents_lost", run_id=run_id))
    passes = _query(con, "finding_agents_passes", run_id=run_id).to_dicts()
    if not lost.height or not passes:
        return
    chosen = passes[0]["pass"]
    steps = _query(con, "finding_steps", run_id=run_id, **{"pass": chosen})
    by_step = _named(_query(con, "finding_agents_steps", run_id=run_id, **{"pass": chosen}))
    law = learn(steps)
    spoilt = _SPOIL_TIME & withheld(con, run_id).keys()
    if spoilt:
        nothing = pl.lit(None)
        lost = lost.with_columns(device_ns=nothing.cast(pl.Int64), energy_j=nothing.cast(pl.Float64))
    window_ns = None if spoilt else device_window_ns(con, run_id)
    prompt_tokens = _prompt_tokens(con, run_id, chosen)
    for name in lost["name"].unique(maintain_order=True):
        rows = lost.filter(pl.col("name") == name)
        cause = cause_of(*rows.select("cause", "divergence_role", "detail").row(0))
        here = rows.filter(pl.col("pass").eq_missing(pl.lit(chosen)))
        if cause is None or not here.height:
            continue
        gain = None
        if law is not None and not cause.told_only:
            here_lost = by_step.filter(pl.col("name") == name)
            gain = predicted(law, steps, here_lost, 1 if cause.whole_blocks else block)
        if gain is None and not (cause.told_only and here["tokens"].sum() >= _TOLD_SHARE * prompt_tokens):
            continue
        yield _finding(
            cause, rows, here, gain, window_ns=window_ns, total_ns=step_total_ns(steps),
            proof=proof_of(cause, recorded, passes[0]["cache_need_tokens"]),
        )  # fmt: skip


def _finding(
    cause: Cause, rows: pl.DataFrame, here: pl.DataFrame, gain: Gain | None, *, window_ns: int | None, total_ns: int, proof: Any
) -> Finding:  # fmt: skip
    """`rows`: of every pass; `here`: of the pass the gain is predicted for."""
    recorded = (
        rows.filter(pl.col("pass").eq_missing(pl.lit("profiled"))) if "profiled" in rows["pass"].to_list() else here
    )
    device_ns = _known_sum(recorded, "device_ns")
    tokens, turns = int(here["tokens"].sum()), int(here["turns"].sum())
    sessions = max(here["sessions"].to_list(), default=0)
    first = here["first_token"].drop_nulls()
    where = f"; mostly from token {first[0]:,} on" if len(first) else ""
    estimate = 0 if gain is None else round(gain.value * total_ns)
    return Finding(
        finding_id=f"{MAKER}.{cause.name}", severity=Severity.INFO if gain is None else severity_of(gain),
        title=cause.title, cause=f"{cause.why}: {tokens:,} tokens in {_many(turns, 'turn')}"
        + (f" of {_many(sessions, 'session')}" if sessions else "") + where,
        device_ns=device_ns, energy_j=_known_sum(recorded, "energy_j"),
        share=None if device_ns is None or not window_ns else device_ns / window_ns,
        time_ns=estimate if device_ns is None else device_ns, gain=gain, evidence=_evidence(rows, recorded["pass"][0]),
        fix=cause.fix, proof=proof,
    )  # fmt: skip


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows whose cause is worth a finding, with its `name`."""
    found = [cause_of(*row) for row in rows.select("cause", "divergence_role", "detail").iter_rows()]
    names = pl.Series("name", [None if cause is None else cause.name for cause in found], dtype=pl.String)
    return rows.with_columns(names).filter(pl.col("name").is_not_null())


def _known_sum(rows: pl.DataFrame, column: str) -> Any:
    return None if rows[column].null_count() == rows.height else rows[column].sum()


def _evidence(rows: pl.DataFrame, recorded_pass: str | None) -> str:
    """The pieces that the finding is made of, with what those of the recorded pass explain; its words come from the
    recording, so they are quoted."""
    quoted = "NULL" if recorded_pass is None else "'" + recorded_pass.replace("'", "''") + "'"
    explained = ", ".join(
        f"CASE WHEN q.pass IS NOT DISTINCT FROM {quoted} THEN r.{name} END AS {column}"
        for name, column in (("device_ns", "explained_ns"), ("energy_j", "explained_j"))
    )
    keys = sorted({tuple("" if value is None else str(value) for value in row)
                   for row in rows.select("cause", "divergence_role", "detail").iter_rows()})  # fmt: skip
    listed = ", ".join(
        "({})".format(", ".join("'" + text.replace("'", "''") + "'" for text in key)) for key in keys[:20]
    )
    return (
        "SELECT r.request_id, q.pass, r.start_token, r.tokens, r.role, r.divergence_token, r.divergence_role, r.detail, "
        f"{explained} FROM reuse AS r LEFT JOIN requests AS q ON q.run_id = r.run_id AND q.request_id = r.request_id "
        "WHERE r.run_id = $run_id AND r.piece = 'lost' AND (r.cause, coalesce(r.divergence_role, ''), "
        f"coalesce(regexp_replace(r.detail, ' \\(segment [0-9]+\\)', '', 'g'), '')) IN ({listed}) ORDER BY r.tokens DESC"
    )


def _query(con: duckdb.DuckDBPyConnection, name: str, **parameters: Any) -> pl.DataFrame:
    return frame(con.sql(named_sql(name, "analyzers"), params=parameters))


def _recorded(con: duckdb.DuckDBPyConnection, run_id: str) -> Recorded:
    row = first_row(con.execute("SELECT config FROM runs WHERE run_id = ?", [run_id]))
    config = json.loads(row[0]) if row and row[0] else {}
    return Recorded.of(config if isinstance(config, dict) else {})


def _prompt_tokens(con: duckdb.DuckDBPyConnection, run_id: str, pass_name: str | None) -> int:
    row = first_row(con.execute(
        "SELECT sum(prompt_tokens)::BIGINT FROM requests WHERE run_id = ? AND pass IS NOT DISTINCT FROM ?", [run_id, pass_name]
    ))  # fmt: skip
    return (row[0] or 0) if row else 0
