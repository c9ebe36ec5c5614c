"""Agent loops: every prompt tiled into what was cached, fresh, re-sent output and lost by cause, in tokens, time and energy.

The accounting itself is analyzers/reuse.py. Device time of a piece comes from the steps that computed it: within a chunk,
attention is divided by how far each token looks back and everything else by tokens (method §4, §9), so the pieces of a
request sum to its prefill time less what a preemption made it compute again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from analyzers.reuse import Cache, Prompt, account
from analyzers.sessions import PREFIX, Unnamed, by_prefix
from traces.rows import first_row
from traces.store import frame, named_sql

Floats = NDArray[np.float64]

_PIECES: dict[str, pl.DataType] = {
    "request_id": pl.String(), "piece": pl.String(), "cause": pl.String(), "start_token": pl.Int64(), "tokens": pl.Int64(),
    "role": pl.String(), "divergence_token": pl.Int64(), "divergence_role": pl.String(), "detail": pl.String(),
}  # fmt: skip


def fill(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """Fill table `reuse`; what an earlier analysis wrote is replaced. Needs step_requests.device_ns and energy_j."""
    con.execute("DELETE FROM reuse WHERE run_id = ?", [run_id])
    cache = _cache(con, run_id)
    scopes = [row[0] for row in con.execute(
        "SELECT DISTINCT q.pass FROM prompts AS p JOIN requests AS q ON q.run_id = p.run_id AND q.request_id = p.request_id "
        "WHERE p.run_id = ? ORDER BY 1", [run_id],
    ).fetchall()]  # fmt: skip
    if not scopes:
        return
    _name_sessions(con, run_id)
    rows = [row for scope in scopes for row in _scope(con, run_id, scope, cache)]
    pieces = pl.DataFrame(rows, schema=_PIECES, orient="row")
    chunks = frame(con.sql(named_sql("agents_chunks", "analyzers"), params={"run_id": run_id}))
    costed = _costed(pieces, chunks).with_columns(run_id=pl.lit(run_id))
    con.register("frame_to_store", costed.to_arrow())
    con.execute("INSERT INTO reuse BY NAME SELECT * FROM frame_to_store")
    con.unregister("frame_to_store")


def _name_sessions(con: duckdb.DuckDBPyConnection, run_id: str) -> None:
    """requests.session_id and turn where nobody told them: sessions by prefix, turns in order of arrival."""
    con.execute(
        "UPDATE requests SET session_id = NULL, turn = NULL WHERE run_id = ? AND starts_with(session_id, ?)",
        [run_id, PREFIX],
    )
    unnamed = frame(con.sql(named_sql("agents_unnamed", "analyzers"), params={"run_id": run_id}))
    rows = [
        (request_id, *place)
        for _, part in unnamed.group_by("pass", maintain_order=True)
        for request_id, place in by_prefix(
            [
                Unnamed(request_id=name, keys=keys.to_numpy())
                for name, keys in zip(part["request_id"], part["keys"], strict=True)
            ]
        ).items()
    ]
    named = pl.DataFrame(
        rows, schema={"request_id": pl.String(), "session_id": pl.String(), "turn": pl.Int64()}, orient="row"
    )
    con.register("session_by_prefix", named.to_arrow())
    for statement in con.extract_statements(named_sql("agents_sessions", "analyzers")):
        con.execute(statement)
    con.unregister("session_by_prefix")


def _cache(con: duckdb.DuckDBPyConnection, run_id: str) -> Cache:
    row = first_row(con.execute("SELECT config -> 'engine_facts' FROM runs WHERE run_id = ?", [run_id]))
    facts = json.loads(row[0]) if row and row[0] else {}
    facts = facts if isinstance(facts, dict) else {}
    block, blocks = (_positive(facts.get(key)) for key in ("block_size", "num_blocks"))
    enabled = facts.get("enable_prefix_caching")
    return Cache(
        enabled=enabled if isinstance(enabled, bool) else None, block_tokens=block,
        capacity_tokens=block * blocks if block and blocks else None,
    )  # fmt: skip


def _positive(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _scope(
    con: duckdb.DuckDBPyConnection, run_id: str, scope: str | None, cache: Cache
) -> Iterator[tuple[object, ...]]:
    """Rows of `_PIECES` for the prompts of one pass; one pass at a time bounds what is held."""
    query = f"SELECT * FROM ({named_sql('agents_prompts', 'analyzers')}) WHERE scope IS NOT DISTINCT FROM $scope"
    found = frame(con.sql(query, params={"run_id": run_id, "scope": scope}))
    for piece in account(_prompts(found), cache):
        yield (
            piece.request_id, piece.piece, piece.cause, piece.start, piece.tokens, piece.role, piece.divergence,
            piece.divergence_role, piece.detail,
        )  # fmt: skip


def _prompts(rows: pl.DataFrame) -> list[Prompt]:
    return [
        Prompt(
            request_id=row["request_id"], session=row["session_id"], replica=row["replica"], scheduled_ns=row["scheduled_ns"],
            computed_ns=row["computed_ns"], output_ns=max(row["output_ns"], row["computed_ns"]), tokens=row["prompt_tokens"],
            cached=row["cached_tokens"], prefix_keys=_per_token(prefix.to_numpy(), row),
            tail_keys=None if tail is None else tail.to_numpy(),
            starts=tuple(row["starts"] or ()), roles=tuple(row["roles"] or ()),
        )
        for row, prefix, tail in zip(
            rows.drop("prefix_keys", "tail_keys").iter_rows(named=True), rows["prefix_keys"], rows["tail_keys"], strict=True
        )
    ]  # fmt: skip


def _per_token(keys: NDArray[np.uint64], row: dict[str, int]) -> NDArray[np.uint64]:
    """A block's key stands for its every token; the tokens behind the last whole block are like nothing else."""
    unit, tokens = row["key_tokens"], row["prompt_tokens"]
    if unit == 1:
        return keys
    loose = tokens - len(keys) * unit
    alone = np.random.default_rng(row["scheduled_ns"] % 2**63).integers(0, 2**64, loose, dtype=np.uint64)
    return np.concatenate([np.repeat(keys, unit), alone])


def _costed(pieces: pl.DataFrame, chunks: pl.DataFrame) -> pl.DataFrame:
    """Adds device_ns and energy_j: NULL where no recorded step computed any of the piece, 0 where nothing was computed."""
    by_request = {str(key[0]): part for key, part in chunks.group_by("request_id", maintain_order=True)}
    costed = []
    for (request_id,), part in pieces.group_by("request_id", maintain_order=True):
        own = by_request.get(str(request_id))
        ends = (part["start_token"] + part["tokens"]).to_numpy()
        starts = part["start_token"].to_numpy()
        if own is None:
            empty = pl.lit(None)
            costed.append(part.with_columns(device_ns=empty.cast(pl.Int64), energy_j=empty.cast(pl.Float64)))
            continue
        covered = _covered(own, starts, ends) | (part["piece"] == "cached").to_numpy()
        time = np.rint(_until(own, "device_ns", ends)) - np.rint(_until(own, "device_ns", starts))
        energy = _until(own, "energy_j", ends) - _until(own, "energy_j", starts)
        known = own["energy_j"].null_count() == 0
        costed.append(part.with_columns(
            device_ns=pl.when(pl.Series(covered)).then(pl.Series(time.astype(np.int64))),
            energy_j=pl.when(pl.Series(covered & known)).then(pl.Series(energy)),
        ))  # fmt: skip
    return pl.concat(costed)


def _covered(chunks: pl.DataFrame, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.bool_]:
    a = chunks["start_token"].to_numpy()
    b = a + chunks["tokens"].to_numpy()
    touched: NDArray[np.bool_] = ((a[None, :] < ends[:, None]) & (b[None, :] > starts[:, None])).any(axis=1)
    return touched


def _until(chunks: pl.DataFrame, column: str, at: NDArray[np.int64]) -> Floats:
    """What computing the tokens below each of `at` took, in the unit of `column`."""
    a = chunks["start_token"].to_numpy()[None, :].astype(np.float64)
    n = chunks["tokens"].to_numpy()[None, :]
    done = np.clip(at[:, None] - a, 0, n)
    share = chunks["attention"].to_numpy()[None, :]
    # token j of a chunk looks back on a + j + 1 tokens, itself included
    looked = (a * done + done * (done + 1) / 2) / (a * n + n * (n + 1) / 2)
    part = share * looked + (1 - share) * done / n
    total: Floats = (part * chunks[column].fill_null(0).to_numpy()[None, :]).sum(axis=1)
    return total
