"""Which kernels of two runs are the same thing: by name, and by role where names changed.

A role is (category, launching operator), where both sides know the operator, else the category. Kernels that only one side
has, and whose role the other side fills with kernels of other names, are compared as one group: what the role costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

LEAST_SHARE = 0.01  # of a side's busy time; smaller kernels are in their category only
MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Kernels compared as one. `by`: 'name', 'operator', 'category'; an empty side: only the other one has it."""

    title: str
    category: str | None
    by: str
    base: tuple[str, ...]
    cand: tuple[str, ...]
    share: float  # of busy time, the larger of the sides


def groups(base: pl.DataFrame, cand: pl.DataFrame) -> list[Group]:
    """Of rows of compare_kernel_names.sql; those worth a line, the largest first, MOST at the most."""
    sides = [_shares(base), _shares(cand)]
    known = [set(side["name"]) for side in sides]
    same = known[0] & known[1]
    found = [
        Group(title=name, category=category, by="name", base=(name,), cand=(name,), share=share)
        for name, category, share in pl.concat(sides).filter(pl.col("name").is_in(list(same))).group_by("name")
        .agg(pl.col("category").first(), pl.col("share").max()).iter_rows()
    ]  # fmt: skip
    left = [side.filter(~pl.col("name").is_in(list(same))) for side in sides]
    for keys in (("category", "op_name"), ("category",)):
        matched, left = _by_role(left, keys)
        found += matched
    found += [_alone(row, place) for place, side in enumerate(left) for row in side.iter_rows(named=True)]
    return sorted((item for item in found if item.share >= LEAST_SHARE), key=lambda item: (-item.share, item.title))[
        :MOST
    ]


def _shares(data: pl.DataFrame) -> pl.DataFrame:
    whole = data["busy_ns"].sum() or 1
    return data.with_columns(share=pl.col("busy_ns").fill_null(0) / whole)


def _by_role(left: list[pl.DataFrame], keys: tuple[str, ...]) -> tuple[list[Group], list[pl.DataFrame]]:
    named = [side.drop_nulls(list(keys)) for side in left]
    roles = named[0].select(keys).unique().join(named[1].select(keys).unique(), on=list(keys)).sort(keys).rows()
    found = []
    for role in roles:
        rows = [side.filter(_is(keys, role)) for side in named]
        names = [tuple(side["name"]) for side in rows]
        title = role[1] if len(keys) > 1 else f"other {role[0]} kernels"
        found.append(Group(
            title=title, category=role[0], by="operator" if len(keys) > 1 else "category", base=names[0], cand=names[1],
            share=max(float(side["share"].sum()) for side in rows),
        ))  # fmt: skip
    gone = {name for item in found for name in (*item.base, *item.cand)}
    return found, [side.filter(~pl.col("name").is_in(list(gone))) for side in left]


def _is(keys: Iterable[str], role: Iterable[object]) -> pl.Expr:
    return pl.all_horizontal([pl.col(key) == value for key, value in zip(keys, role, strict=True)])


def _alone(row: dict[str, object], place: int) -> Group:
    names = (str(row["name"]),)
    category = None if row["category"] is None else str(row["category"])
    return Group(
        title=names[0], category=category, by="name", base=names if place == 0 else (), cand=names if place == 1 else (),
        share=float(str(row["share"])),
    )  # fmt: skip
