"""Kernels by category: what each device activity is for, decided from its name by a table of patterns.

The table is `kernel_patterns.toml`. Names are matched once each, however often they occur, by an engine whose time is
linear in the text; of very long names (C++ templates) the two ends are looked at, where the telling parts stand.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import duckdb
import polars as pl

from traces.rows import first_row

CATEGORIES: tuple[str, ...] = (
    "gemm", "attention", "kv_cache", "moe", "norm", "activation", "rope", "elementwise", "reduce", "embedding",
    "logits", "sampling", "quantize", "comm", "memcpy", "memset", "other",
)  # fmt: skip

# Names are cut to this many characters at each end before matching.
HEAD_CHARS = 1_024
TAIL_CHARS = 256

_BY_KIND = {"memcpy": "memcpy", "memset": "memset"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the pattern table; `pattern` is the alternation of its expressions."""

    category: str
    pattern: str
    phase: str | None = None  # 'prefill' | 'decode' where the kernel serves that phase only
    kind: str | None = None  # 'kernel' | 'cpu_op'
    op: str | None = None  # the launching operator must match this as well


@cache
def rules() -> tuple[Rule, ...]:
    """The pattern table in its order."""
    text = (files("analyzers") / "kernel_patterns.toml").read_text(encoding="utf-8")
    return tuple(
        Rule(
            category=row["category"],
            # a group of its own for each, so that inline flags end with it
            pattern="|".join(f"(?:{expression})" for expression in row["any"]),
            phase=row.get("phase"),
            kind=row.get("kind"),
            op=row.get("op"),
        )
        for row in tomllib.loads(text)["rule"]
    )


def categorize(names: Sequence[str], kind: str, op_names: Sequence[str | None] | None = None) -> pl.DataFrame:
    """Category and phase of each of `names`, all of one `kind` ('kernel' | 'memcpy' | 'memset' | 'cpu_op').

    `op_names` are the launching operators, NULL where unknown. Returns name, op_name, category, phase in the order
    given; a name that no rule knows is 'other', a phase is NULL unless the kernel can serve one phase only.
    """
    ops = list(op_names) if op_names is not None else [None] * len(names)
    frame = pl.DataFrame({"name": list(names), "op_name": ops}, schema={"name": pl.String, "op_name": pl.String})
    fixed = _BY_KIND.get(kind)
    if fixed is not None:
        return frame.with_columns(category=pl.lit(fixed), phase=pl.lit(None, dtype=pl.String))
    frame = frame.with_row_index("row")
    distinct = frame.group_by("name", "op_name", maintain_order=True).agg(pl.col("row").first().alias("key"))
    found = _match(distinct.with_columns(text=_ends(pl.col("name"))), kind)
    joined = frame.join(distinct, on=["name", "op_name"], how="left", nulls_equal=True).join(
        found, on="key", how="left"
    )
    return joined.sort("row").select("name", "op_name", pl.col("category").fill_null("other"), "phase")


def apply_categories(con: duckdb.DuckDBPyConnection, run_id: str) -> pl.DataFrame:
    """Set `kernels.category` of a run. Returns one row per kind, name and operator: with category and phase."""
    distinct = con.sql(_sql("kernel_names"), params={"run_id": run_id}).pl()
    parts = [
        categorize(part["name"].to_list(), kind, part["op_name"].to_list()).with_columns(kind=pl.lit(kind))
        for (kind,), part in sorted(distinct.group_by("kind"), key=lambda item: str(item[0]))
        if isinstance(kind, str)
    ]
    if not parts:
        return pl.DataFrame(schema=dict.fromkeys(("kind", "name", "op_name", "category", "phase"), pl.String))
    table = pl.concat(parts).select("kind", "name", "op_name", "category", "phase")
    con.register("kernel_category_map", table)
    try:
        con.execute(_sql("kernel_categories"), {"run_id": run_id})
    finally:
        con.unregister("kernel_category_map")
    return table


def mark_logits(con: duckdb.DuckDBPyConnection, run_id: str, *, vocab_size: int, tensor_parallel: int = 1) -> int:
    """Turn the category of GEMMs whose weight has one row per vocabulary entry into 'logits'; returns how many.

    Needs operator shapes. Engines pad the vocabulary before they divide it over ranks, so any width from vocab/tp up
    to the next multiple of 256 counts.
    """
    low = -(-vocab_size // tensor_parallel)
    high = -(-low // 256) * 256
    row = first_row(con.execute(_sql("kernel_logits"), {"run_id": run_id, "low": low, "high": high}))
    return int(row[0]) if row is not None else 0


def _ends(name: pl.Expr) -> pl.Expr:
    """The name, or its two ends where it is too long."""
    cut = pl.concat_str(name.str.head(HEAD_CHARS), pl.lit(" "), name.str.tail(TAIL_CHARS))
    return pl.when(name.str.len_bytes() > HEAD_CHARS + TAIL_CHARS).then(cut).otherwise(name)


def _match(left: pl.DataFrame, kind: str) -> pl.DataFrame:
    """key, category, phase of the rows that some rule knows; each rule sees only what the earlier ones left."""
    found = []
    for rule in rules():
        if rule.kind not in (None, kind) or left.is_empty():
            continue
        hit = left["text"].str.contains(rule.pattern)
        if rule.op is not None:
            hit &= left["op_name"].str.contains(rule.op).fill_null(value=False)
        matched = left.filter(hit)
        if not matched.is_empty():
            found.append(
                matched.select("key", category=pl.lit(rule.category), phase=pl.lit(rule.phase, dtype=pl.String))
            )
            left = left.filter(~hit)
    empty = pl.DataFrame(schema={"key": pl.UInt32, "category": pl.String, "phase": pl.String})
    return pl.concat([empty, *found])


@cache
def _sql(name: str) -> str:
    return (files("analyzers") / "sql" / f"{name}.sql").read_text(encoding="utf-8")
