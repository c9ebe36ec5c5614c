"""What `stepscope agents` says of a run: turns, sessions, what was lost for which reason and what that cost."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import polars as pl

from traces.errors import NothingToAnalyze, UsageProblem
from traces.store import TraceStore

AGENTS_VERSION = 1
CAUSES = ("prefix_changed", "evicted", "block_remainder", "caching_off", "other_replica", "cause_unknown")
# Lost for other reasons than the block remainder, as a share of the prompt tokens: below it a loop is healthy.
HEALTHY_LOST = 0.01
_PASSES = ("profiled", "control")  # device time is known of the profiled pass
_WARM_UP = "warmup"
_SUMMED = ("prompt_tokens", "output_tokens", "cached", "fresh", "resent_output", *CAUSES, "lost", "fresh_device_ns",
           "resent_device_ns", "lost_device_ns", "prefill_device_ns", "lost_energy_j", "energy_j", "queue_ns", "prefill_ns",
           "decode_ns", "tool_ns", "client_ns", "wall_ns")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentsReport:
    """Times in ns, unknown is None.

    `turns`: sql/agents_turns.sql. `sessions`: its columns summed over a session's turns, NULL where one of them is, with
    `turns`, `hit_ratio` (cached / prompt tokens) and `amplification` (computed / fresh tokens). `total`: the same over all.
    `causes`: per cause of loss its tokens, device_ns, energy_j, shares and turns, the most tokens first. `growth`: per turn
    number the medians of prompt_tokens, kv_tokens (prompt and output), ttft_ns, prefill_device_ns. `cache`: block_tokens,
    capacity_tokens, enabled, smallest_reused_tokens. `healthy`: nothing is lost but block remainders (less than HEALTHY_LOST
    of the prompt tokens). `unaccounted`: requests whose prompts are not known; `unlocated`: requests whose messages are not.
    """

    version: int = AGENTS_VERSION
    run_id: str
    pass_name: str | None
    passes: list[str | None]
    healthy: bool | None
    cache: dict[str, Any]
    total: dict[str, Any]
    causes: list[dict[str, Any]]
    sessions: list[dict[str, Any]]
    turns: list[dict[str, Any]]
    growth: list[dict[str, Any]]
    unaccounted: int
    unlocated: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def read_agents(store: TraceStore, pass_name: str | None = None) -> AgentsReport:
    """The report on one pass; without `pass_name` the recorded one. Raises NothingToAnalyze, UsageProblem."""
    passes = store.query(
        "SELECT DISTINCT pass FROM requests WHERE run_id = ? ORDER BY pass", [store.run_id]
    )["pass"].to_list()  # fmt: skip
    if not passes:
        raise NothingToAnalyze("this run has no requests", hint="record one with `stepscope profile`")
    if pass_name is not None and pass_name not in passes:
        names = ", ".join(str(name) for name in passes if name is not None)
        raise UsageProblem(f"no pass {pass_name!r} in this run", hint=f"it has: {names or 'requests outside any pass'}")
    measured = [name for name in passes if name != _WARM_UP] or passes
    chosen = pass_name or next((name for name in _PASSES if name in measured), measured[0])
    turns = store.named("agents_turns", "analyzers", **{"pass": chosen})  # "pass" is a word of Python
    known = turns.filter("accounted")
    if not known.height:
        raise NothingToAnalyze(
            "the prompts of this run are not known, so nothing can be said of what was computed again",
            hint="`stepscope profile` keeps keys of them (prompts.parquet); for a log of an agent: `stepscope agentlog`",
        )
    total = _summed(known, []).to_dicts()[0]
    avoidable = total["lost"] - total["block_remainder"]
    return AgentsReport(
        run_id=store.run_id, pass_name=chosen, passes=passes,
        healthy=avoidable < HEALTHY_LOST * total["prompt_tokens"], cache=_cache(store, known), total=total,
        causes=_causes(store, chosen, total), sessions=_summed(known, ["session_id", "parent_session_id"]).to_dicts(),
        turns=turns.to_dicts(), growth=_growth(known), unaccounted=turns.height - known.height,
        unlocated=known.filter(~pl.col("located")).height,
    )  # fmt: skip


def _summed(turns: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Sums over groups; NULL where a turn does not know its part."""
    sums = [pl.when(pl.col(name).null_count() == 0).then(pl.col(name).sum()).alias(name) for name in _SUMMED]
    grouped = turns.with_columns(all=0).group_by(by or ["all"], maintain_order=True).agg(pl.len().alias("turns"), *sums)
    computed = pl.col("prompt_tokens") - pl.col("cached")
    return grouped.with_columns(
        hit_ratio=pl.col("cached") / pl.col("prompt_tokens"),
        amplification=pl.when(pl.col("fresh") > 0).then(computed / pl.col("fresh")),
    ).drop("all", strict=False)


def _causes(store: TraceStore, pass_name: str | None, total: dict[str, Any]) -> list[dict[str, Any]]:
    rows = store.named("agents_causes", "analyzers", **{"pass": pass_name})
    return rows.with_columns(
        prompt_share=pl.col("tokens") / total["prompt_tokens"],
        prefill_share=pl.col("device_ns") / pl.lit(total["prefill_device_ns"] or None, dtype=pl.Float64),
    ).to_dicts()  # fmt: skip


def _growth(turns: pl.DataFrame) -> list[dict[str, Any]]:
    return (
        turns.filter(pl.col("turn").is_not_null())
        .group_by("turn")
        .agg(
            pl.len().alias("n"), pl.col("prompt_tokens").median(),
            (pl.col("prompt_tokens") + pl.col("output_tokens")).median().alias("kv_tokens"),
            pl.col("ttft_ns").median(), pl.col("prefill_device_ns").median(),
        )
        .sort("turn")
        .to_dicts()
    )  # fmt: skip


def _cache(store: TraceStore, turns: pl.DataFrame) -> dict[str, Any]:
    facts = store.query(
        "SELECT (config -> 'engine_facts' ->> 'block_size')::BIGINT AS block_tokens, "
        "(config -> 'engine_facts' ->> 'block_size')::BIGINT * (config -> 'engine_facts' ->> 'num_blocks')::BIGINT "
        "AS capacity_tokens, (config -> 'engine_facts' ->> 'enable_prefix_caching')::BOOLEAN AS enabled "
        "FROM runs WHERE run_id = ?",
        [store.run_id],
    ).to_dicts()[0]
    return {**facts, "smallest_reused_tokens": turns.filter(pl.col("cached") > 0)["cached"].min()}
