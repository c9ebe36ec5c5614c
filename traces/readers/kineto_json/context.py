"""The working memory of the compiled parser: one block of int64 words, reached by its address.

Compiled functions take addresses and numbers only. Passing arrays would cost more than the parsing: each is seven
arguments and a reference count. The arrays behind the addresses belong to `compiled.CompiledParser`.
"""

# ruff: noqa: PLR1714, SIM109
# Compiled code: comparisons stay comparisons.

from __future__ import annotations

from traces.readers.kineto_json.machine import inlined, load_word, store_word

# Slots: (what it is, first address, address behind it) of a member's value, the last one of that name.
PH, CAT, NAME, PID, TID, TS, DUR, ARGS = range(8)
CORRELATION, EXTERNAL, DEVICE, STREAM, BYTES, DIMS, TYPES, COLLECTIVE = range(8, 16)
FIRST_OF_ARGS, N_SLOTS = 8, 16
ABSENT, BARE, STRING, ESCAPED, NESTED = range(5)  # what a value is

(
    SEEN,  # elements of the list so far
    ROWS,  # filled in cells
    ROW_LIMIT,
    REASON,  # why the loop returned
    CELLS,  # address; column c of row r is word c * ROW_LIMIT + r
    TABLE,  # address of the dictionary: three words an entry, two of fingerprint and the id (0: free)
    TABLE_MASK,  # slots - 1
    TABLE_USED,
    KEY_1,  # random numbers
    KEY_2,
    NEXT_ID,
    TEXT,  # address of the texts not yet handed over
    TEXT_BYTES,
    TEXT_LIMIT,
    N_TEXTS,
    N_TEXTS_LIMIT,
    TEXT_ENDS,  # address of the int64 ends of the texts, one word behind the first end, 0
    TEXT_NEEDED,  # bytes of the text that found no room
    SCRATCH,  # address; four parts, each as long as the longest string
    SCRATCH_PART,
    LEXICON,  # address of words of WORD_BYTES, zero padded: python_function, frames kept, categories
    LENGTHS,  # addresses of their lengths and category codes (-1: not a category)
    CODES,
    N_WORDS,
    N_FRAMES,  # frames kept; -1: all
    COUNTS,  # address of the counters of tally.py
    SPANS,  # address of (first, behind) of metadata events noted since the last call
    N_SPANS,
    SPAN_LIMIT,
) = range(3 * N_SLOTS, 3 * N_SLOTS + 29)
N_WORDS_OF_CONTEXT = 3 * N_SLOTS + 29

WORD_BYTES = 64


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
