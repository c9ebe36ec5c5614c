"""The accounting of reuse against a naive twin that compares the tokens themselves, and the keys it rests on."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzers.reuse import LEAST_RUN, Cache, Piece, Prompt, account
from profiler.prompts import PromptKeys

KEYS = PromptKeys()
ON = Cache(enabled=True, block_tokens=4, capacity_tokens=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A request as the tests write it: segments of (role, tokens), then the output."""

    name: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]
    output: tuple[int, ...] = ()
    session: str = "s"
    replica: int = 0
    cached: int = 0
    at: int = 0  # scheduled; its prompt is computed one later, its output two later

    @property
    def prompt(self) -> list[int]:
        return [token for _, tokens in self.parts for token in tokens]

    def keyed(self, *, located: bool = True) -> Prompt:
        ids = np.array([*self.prompt, *self.output], dtype=np.int32)
        starts = tuple(itertools.accumulate((len(tokens) for _, tokens in self.parts[:-1]), initial=0))
        n = len(self.prompt)
        return Prompt(
            request_id=self.name, session=self.session, replica=self.replica, scheduled_ns=self.at, computed_ns=self.at + 1,
            output_ns=self.at + 2, tokens=n, cached=self.cached, prefix_keys=KEYS.prefix(ids),
            tail_keys=KEYS.tails(ids[:n], starts) if located else None, starts=starts if located else (),
            roles=tuple(role for role, _ in self.parts) if located else (),
        )  # fmt: skip


def pieces(*sent: Sent, cache: Cache = ON) -> dict[str, list[Piece]]:
    found: dict[str, list[Piece]] = {}
    for piece in account([item.keyed() for item in sent], cache):
        found.setdefault(piece.request_id, []).append(piece)
    return found


def told(items: list[Piece]) -> list[tuple[str, str | None, int, int]]:
    return [(item.piece, item.cause, item.start, item.tokens) for item in items]


def run(start: int, length: int) -> tuple[int, ...]:
    return tuple(range(start, start + length))


SYSTEM, TASK, ANSWER, RESULT = run(100, 40), run(200, 20), run(300, 17), run(400, 30)
FIRST = Sent(name="a", parts=(("system", SYSTEM), ("user", TASK)), output=(1, 2, 3))


def test_a_loop_that_goes_on_loses_the_last_block_and_no_more() -> None:
    parts = (("system", SYSTEM), ("user", TASK), ("assistant", ANSWER), ("observation", RESULT))
    second = Sent(name="b", parts=parts, cached=60, at=10)
    assert told(pieces(FIRST, second)["b"]) == [
        ("cached", None, 0, 40), ("cached", None, 40, 20), ("resent_output", None, 60, 17), ("fresh", None, 77, 30),
    ]  # fmt: skip
    short = Sent(name="b", parts=parts, cached=56, at=10)
    assert ("lost", "block_remainder", 56, 4) in told(
        pieces(FIRST, short, cache=Cache(enabled=True, block_tokens=8))["b"]
    )


def test_real_output_that_comes_back_counts_as_prefix_less_its_last_token() -> None:
    parts = (("system", SYSTEM), ("user", TASK), ("assistant", (1, 2, 3)), ("observation", RESULT))
    second = Sent(name="b", parts=parts, cached=60, at=10)
    assert told(pieces(FIRST, second)["b"])[2:] == [
        ("lost", "block_remainder", 60, 2), ("resent_output", None, 62, 1), ("fresh", None, 63, 30),
    ]  # fmt: skip


def test_a_stamp_in_front_makes_everything_behind_it_lost() -> None:
    def stamped(name: str, stamp: int, at: int, *more: tuple[str, tuple[int, ...]]) -> Sent:
        return Sent(name=name, parts=(("system", (stamp, *SYSTEM)), ("user", TASK), *more), at=at)

    second = stamped("b", 8, 10, ("assistant", ANSWER), ("observation", RESULT))
    found = pieces(stamped("a", 7, 0), second)["b"]
    assert told(found) == [
        ("fresh", None, 0, 1), ("lost", "prefix_changed", 1, 40), ("lost", "prefix_changed", 41, 20),
        ("resent_output", None, 61, 17), ("fresh", None, 78, 30),
    ]  # fmt: skip
    lost = [item for item in found if item.piece == "lost"]
    assert {(item.divergence, item.divergence_role) for item in lost} == {(0, "system")}
    assert {item.detail for item in lost} == {"volatile text in the system prompt"}


def test_causes_come_in_the_order_of_the_method() -> None:
    again = Sent(name="b", parts=FIRST.parts, at=10)
    assert told(pieces(FIRST, again)["b"]) == [
        ("lost", "evicted", 0, 40), ("lost", "evicted", 40, 16), ("lost", "block_remainder", 56, 4),
    ], "the last token is always computed, so the last of 60 is in no whole block of 4"  # fmt: skip
    off = pieces(FIRST, again, cache=Cache(enabled=False, block_tokens=4))["b"]
    assert {(item.piece, item.cause) for item in off} == {("lost", "caching_off")}
    elsewhere = Sent(name="b", parts=FIRST.parts, at=10, replica=1)
    assert {item.cause for item in pieces(FIRST, elsewhere)["b"]} == {"other_replica"}
    unknown = pieces(FIRST, again, cache=Cache(enabled=True, block_tokens=None))["b"]
    assert {(item.piece, item.cause) for item in unknown} == {("lost", None)}


def test_a_cache_that_is_on_and_never_hits_though_nothing_was_pushed_out_is_off() -> None:
    sent = [Sent(name=f"r{i}", parts=FIRST.parts, at=10 * i) for i in range(4)]
    found = pieces(*sent)
    assert {item.cause for item in found["r3"]} == {"caching_off"}
    small = pieces(*sent, cache=Cache(enabled=True, block_tokens=4, capacity_tokens=100))
    assert {item.cause for item in small["r3"]} == {"evicted", "block_remainder"}
    hybrid = pieces(*sent, cache=Cache(enabled=True, block_tokens=1600, capacity_tokens=100_000))
    assert {item.cause for item in hybrid["r3"]} == {"block_remainder"}, "no whole block fits into the prompt"


def test_what_is_computed_at_the_same_time_was_not_there_before() -> None:
    twin = Sent(name="b", parts=FIRST.parts, session="t", at=0)
    assert {item.piece for item in pieces(FIRST, twin)["b"]} == {"fresh"}


def test_without_segments_nothing_is_guessed_behind_the_break() -> None:
    second = Sent(name="b", parts=(("system", (9, *SYSTEM)), ("user", TASK)), at=10)
    found = [item for item in account([FIRST.keyed(), second.keyed(located=False)], ON) if item.request_id == "b"]
    assert [(item.piece, item.role) for item in found] == [("fresh", None)]
    assert found[0].detail is not None


@pytest.mark.parametrize("length", [LEAST_RUN - 1, LEAST_RUN])
def test_few_equal_tokens_are_no_earlier_text(length: int) -> None:
    first = Sent(name="a", parts=(("system", SYSTEM), ("user", (5, *run(600, length)))))
    second = Sent(name="b", parts=(("system", SYSTEM), ("user", (6, *run(600, length)))), cached=40, at=10, session="t")
    lost = [item.tokens for item in pieces(first, second)["b"] if item.piece == "lost"]
    assert lost == ([] if length < LEAST_RUN else [length])


# -- against the naive twin -------------------------------------------------------------------------------------------

TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=40).map(tuple)
ROLES = st.sampled_from(["system", "user", "assistant", "observation"])
PARTS = st.lists(st.tuples(ROLES, TOKENS), min_size=1, max_size=4).map(tuple)
REQUESTS = st.lists(
    st.tuples(PARTS, TOKENS, st.sampled_from(["s", "t"]), st.integers(0, 1), st.integers(0, 6), st.integers(0, 4)),
    min_size=1, max_size=6,
)  # fmt: skip


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def prefix_of(sent: Sent, others: list[Sent]) -> int:
    best = 0
    for other in others:
        if other.at + 1 <= sent.at:
            best = max(best, common(sent.prompt, other.prompt))
        if other.at + 2 <= sent.at:
            best = max(best, common(sent.prompt, [*other.prompt, *other.output[:-1]]))
    return best


def known_tail(sent: Sent, token: int, others: list[Sent]) -> bool:
    """Whether the text from `token` to the end of its segment was the end of a segment sent before."""
    start = 0
    for _, tokens in sent.parts:
        if start <= token < start + len(tokens):
            tail = tokens[token - start :]
        start += len(tokens)
    return any(
        part[len(part) - len(tail) :] == tail and len(part) >= len(tail)
        for other in others if other.at + 1 <= sent.at for _, part in other.parts
    )  # fmt: skip


def oracle(sent: Sent, everyone: list[Sent], earlier: bool, block: int) -> list[tuple[str, str | None]]:
    """Piece and cause of every token."""
    n = len(sent.prompt)
    anywhere, own = prefix_of(sent, everyone), prefix_of(sent, [o for o in everyone if o.replica == sent.replica])
    full = min(own, n - 1) // block * block
    seen = [known_tail(sent, i, everyone) and i >= max(sent.cached, anywhere) for i in range(n)]
    for i in range(n):
        if seen[i]:
            a, b = i, i
            while a > 0 and seen[a - 1]:
                a -= 1
            while b < n and seen[b]:
                b += 1
            if b - a < LEAST_RUN:
                seen[a:b] = [False] * (b - a)
    last_start = n - len(sent.parts[-1][1])
    roles = [role for role, tokens in sent.parts for _ in tokens]
    told: list[tuple[str, str | None]] = []
    for i in range(n):
        if i < sent.cached:
            told.append(("cached", None))
        elif i < max(own, anywhere):
            cause = "evicted" if i < full else "block_remainder" if i < own else "other_replica"
            told.append(("lost", cause))
        elif seen[i]:
            told.append(("lost", "prefix_changed"))
        elif roles[i] == "assistant" and i < last_start and earlier:
            told.append(("resent_output", None))
        else:
            told.append(("fresh", None))
    return told


@settings(max_examples=150, deadline=None)
@given(REQUESTS, st.integers(1, 7))
def test_every_token_is_told_as_the_naive_twin_tells_it(drawn: list[tuple], block: int) -> None:  # type: ignore[type-arg]
    sent, at = [], 0
    for number, (parts, output, session, replica, step, cached) in enumerate(drawn):
        at += step
        length = sum(len(tokens) for _, tokens in parts)
        sent.append(Sent(name=str(number), parts=parts, output=output, session=session, replica=replica,
                         cached=min(cached * block, length), at=at))  # fmt: skip
    cache = Cache(enabled=True, block_tokens=block, capacity_tokens=1)
    found: dict[str, list[Piece]] = {item.name: [] for item in sent}
    for piece in account([item.keyed() for item in sent], cache):
        found[piece.request_id].append(piece)
    for number, item in enumerate(sent):
        expected = oracle(item, sent, any(o.session == item.session for o in sent[:number]), block)
        told = [(piece.piece, piece.cause) for piece in found[item.name] for _ in range(piece.tokens)]
        assert told == expected
        at_token = 0
        for piece in found[item.name]:
            assert piece.start == at_token and piece.tokens > 0
            at_token += piece.tokens
        assert at_token == len(item.prompt)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.lists(st.integers(0, 3), min_size=1, max_size=30))
def test_prefix_keys_agree_exactly_where_the_texts_do(a: list[int], b: list[int]) -> None:
    keys = [KEYS.prefix(np.array(ids, dtype=np.int32)) for ids in (a, b)]
    assert [bool(x == y) for x, y in zip(*keys, strict=False)] == [
        a[: i + 1] == b[: i + 1] for i in range(min(len(a), len(b)))
    ]


@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=20),
    st.lists(st.integers(0, 2), min_size=2, max_size=20),
    st.data(),
)
def test_tail_keys_agree_exactly_where_the_ends_of_segments_do(a: list[int], b: list[int], data: st.DataObject) -> None:
    cut = [data.draw(st.integers(1, len(ids) - 1)) for ids in (a, b)]
    tails = [KEYS.tails(np.array(ids, dtype=np.int32), (0, at)) for ids, at in zip((a, b), cut, strict=True)]
    ends = [[ids[i:at] if i < at else ids[i:] for i in range(len(ids))] for ids, at in zip((a, b), cut, strict=True)]
    assert [[bool(x == y) for y in tails[1]] for x in tails[0]] == [[x == y for y in ends[1]] for x in ends[0]]


def test_keys_of_another_run_have_nothing_in_common() -> None:
    ids = np.arange(1000, dtype=np.int32)
    assert not set(PromptKeys().prefix(ids).tolist()) & set(PromptKeys().prefix(ids).tolist())
