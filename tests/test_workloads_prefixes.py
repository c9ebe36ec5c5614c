"""Reusable prefixes: what is computed by columns equals a cache played block by block."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiler.workloads.arrivals import Arrivals, as_planned
from profiler.workloads.prefixes import PrefixReuse, prefix_reuse
from traces.errors import UsageProblem

BLOCK = 4


def arrivals(prompts: list[tuple[list[int], int]], block: float = BLOCK) -> Arrivals:
    frame = pl.DataFrame(
        {
            "arrival_ns": list(range(len(prompts))),
            "input_tokens": [tokens for _, tokens in prompts],
            "output_tokens": [1] * len(prompts),
            "hash_ids": [ids for ids, _ in prompts],
        },
        schema_overrides={"hash_ids": pl.List(pl.Int64)},
    )
    return Arrivals(frame=as_planned(frame), block_tokens=block)


def naive(prompts: list[tuple[list[int], int]], size: int | None) -> int:
    """Tokens found in a list of paths, the least recently used first."""
    cache: list[tuple[int, ...]] = []
    found = 0
    for ids, tokens in prompts:
        paths = [tuple(ids[: place + 1]) for place in range(len(ids))]
        hits = next((place for place, path in enumerate(paths) if path not in cache), len(paths))
        found += min(hits * BLOCK, tokens)
        for path in reversed(paths):
            if path in cache:
                cache.remove(path)
            cache.append(path)
        if size is not None:
            del cache[: max(0, len(cache) - size)]
    return found


prompt_lists = st.lists(
    st.lists(st.integers(-3, 2), max_size=5).flatmap(
        lambda ids: st.tuples(
            st.just(ids), st.integers(max(1, len(ids) * BLOCK - BLOCK + 1), max(1, len(ids) * BLOCK))
        )
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(prompts=prompt_lists, size=st.integers(0, 12))
def test_reuse_equals_a_cache_played_block_by_block(prompts: list[tuple[list[int], int]], size: int) -> None:
    found = prefix_reuse(arrivals(prompts), cache_blocks=size)
    assert found == PrefixReuse(
        by="blocks", known_tokens=sum(tokens for _, tokens in prompts), infinite_tokens=naive(prompts, None),
        cache_tokens=size * BLOCK, cached_tokens=naive(prompts, size),
    )  # fmt: skip
    in_tokens = prefix_reuse(arrivals(prompts), cache_tokens=size * BLOCK + BLOCK - 1)
    assert in_tokens.cached_tokens == found.cached_tokens


def test_an_id_behind_other_ids_is_other_text() -> None:
    found = prefix_reuse(arrivals([([1, 7], 8), ([2, 7], 8), ([1, 7], 7)]))
    assert found.infinite_tokens == 7


def test_blocks_that_are_no_whole_number_of_tokens() -> None:
    found = prefix_reuse(arrivals([([1, 2, 3], 4), ([1, 2, 4], 4)], block=1.3))
    assert found.infinite_tokens == 3  # two blocks reach to 2.6


def sessions(rows: list[tuple[str, int, int, int, int]]) -> Arrivals:
    """(session, turn, prompt, output, prefix); each turn waits 1 s for a tool."""
    frame = pl.DataFrame(
        {
            "session_id": [row[0] for row in rows],
            "turn": [row[1] for row in rows],
            "input_tokens": [row[2] for row in rows],
            "output_tokens": [row[3] for row in rows],
            "prefix_tokens": [row[4] for row in rows],
            "arrival_ns": [0 if row[1] == 0 else None for row in rows],
            "tool_wait_ns": [10**9] * len(rows),
        }
    )
    return Arrivals(frame=as_planned(frame), closed=True)


def test_sessions_that_take_turns_push_each_other_out() -> None:
    load = sessions([("a", 0, 10, 2, 0), ("a", 1, 14, 2, 12), ("b", 0, 20, 2, 0), ("b", 1, 24, 2, 22)])
    assert prefix_reuse(load).infinite_tokens == 34
    # a and b come together, then a and b again: 38 tokens hold both; less, and the end of the older one is lost
    assert prefix_reuse(load, cache_tokens=38).cached_tokens == 34
    assert prefix_reuse(load, cache_tokens=34).cached_tokens == 12 + 18
    assert prefix_reuse(load, cache_tokens=30).cached_tokens == 8 + 14
    assert prefix_reuse(load, cache_tokens=0).cached_tokens == 0
    with pytest.raises(UsageProblem, match="not known in blocks"):
        prefix_reuse(load, cache_blocks=3)


def test_nothing_known_is_unknown_and_not_none() -> None:
    frame = pl.DataFrame({"arrival_ns": [0], "input_tokens": [5], "output_tokens": [1]})
    found = prefix_reuse(Arrivals(frame=as_planned(frame)), cache_tokens=100)
    assert (found.by, found.infinite_tokens, found.cached_tokens) == (None, None, None)
