"""The working memory of the compiled parser: one block of int64 words, reached by its address (see `layout`).

Compiled functions take addresses and numbers only. Passing arrays would cost more than the parsing: each is seven
arguments and a reference count. The arrays behind the addresses belong to `compiled.CompiledParser`.
"""

# ruff: noqa: PLR1714, SIM109
# Compiled code: comparisons stay comparisons.

from __future__ import annotations

from traces.readers.kineto_json.layout import ABSENT, ESCAPED, N_SLOTS, STRING
from traces.readers.kineto_json.machine import inlined, load_word, store_word


@inlined
def get(context: int, index: int) -> int:
    """A word of the context."""
    return load_word(context + 8 * index)


@inlined
def put(context: int, index: int, value: int) -> None:
    """Set a word of the context."""
    store_word(context + 8 * index, value)


@inlined
def add(context: int, index: int, amount: int) -> None:
    """Add to a word of the context."""
    store_word(context + 8 * index, load_word(context + 8 * index) + amount)


@inlined
def set_slot(context: int, slot: int, what: int, start: int, stop: int) -> None:
    """Note where a value stands."""
    put(context, 3 * slot, what)
    put(context, 3 * slot + 1, start)
    put(context, 3 * slot + 2, stop)


@inlined
def clear_slots(context: int, first: int) -> None:
    """Forget the values from slot `first` on."""
    for slot in range(first, N_SLOTS):
        put(context, 3 * slot, ABSENT)


@inlined
def is_text(context: int, slot: int) -> bool:
    """Whether a slot holds a string."""
    what = get(context, 3 * slot)
    return what == STRING or what == ESCAPED
