"""Compiled dictionary of strings: bytes to ids from 1, by a keyed 128-bit fingerprint instead of the text.

So its memory is 24 bytes a slot however long the strings are, and a text leaves for the sink when it is first seen.
The keys are random per reader, hence nobody can write a trace whose strings collide. Every spelling of a string has
an entry of its own beside that of the text it stands for, so that escapes are undone once per spelling only.
"""

from __future__ import annotations

from traces.readers.kineto_json.context import add, get, put
from traces.readers.kineto_json.layout import (
    ESCAPED,
    KEY_1,
    KEY_2,
    N_TEXTS,
    N_TEXTS_LIMIT,
    NEXT_ID,
    SCRATCH,
    SCRATCH_PART,
    TABLE,
    TABLE_MASK,
    TABLE_USED,
    TEXT,
    TEXT_BYTES,
    TEXT_ENDS,
    TEXT_LIMIT,
    TEXT_NEEDED,
)
from traces.readers.kineto_json.machine import compiled, copy_bytes, fold_product, inlined, load_word, store_word
from traces.readers.kineto_json.utf8 import compact, has_escape, is_ascii, repair, unescape

TEXT_FULL = -2  # no room for a new text: flush the texts and parse the event again
SPELLING, JSON = 1, 2  # what the bytes are; 0 is the text itself

_FACTOR_1, _FACTOR_2, _FACTOR_3 = 0x2D358DCCAA6C78A5, -0x7447137AF8CA4E9B, 0x4B33A62ED433D4A3


@inlined
def _fingerprint(p: int, count: int, key_1: int, key_2: int) -> tuple[int, int]:
    first, second = key_1 ^ count, key_2 ^ count
    while count >= 8:
        word = load_word(p)
        first = fold_product(first ^ word, _FACTOR_1)
        second = fold_product(second ^ word, _FACTOR_2)
        p += 8
        count -= 8
    if count > 0:
        word = load_word(p) & ((1 << (8 * count)) - 1)
        first = fold_product(first ^ word, _FACTOR_1)
        second = fold_product(second ^ word, _FACTOR_2)
    return fold_product(first ^ key_1, _FACTOR_3), fold_product(second ^ key_2, _FACTOR_3)


@inlined
def _find(context: int, first: int, second: int) -> int:
    """Address of the entry, or of the free slot where it belongs."""
    table, mask = get(context, TABLE), get(context, TABLE_MASK)
    slot = first & mask
    while True:
        entry = table + 24 * slot
        if load_word(entry + 16) == 0 or (load_word(entry) == first and load_word(entry + 8) == second):
            return entry
        slot = (slot + 1) & mask


@compiled
def enter(context: int, first: int, second: int, identity: int) -> None:
    """Add an entry, unless it is there."""
    entry = _find(context, first, second)
    if load_word(entry + 16) == 0:
        store_word(entry, first)
        store_word(entry + 8, second)
        store_word(entry + 16, identity)
        add(context, TABLE_USED, 1)


@compiled
def intern(context: int, p: int, stop: int, kind: int) -> int:
    """Id of the string (SPELLING) or raw JSON (JSON) between two addresses; TEXT_FULL where its text finds no room."""
    first, second = _fingerprint(p, stop - p, get(context, KEY_1) + kind, get(context, KEY_2) + kind)
    identity = load_word(_find(context, first, second) + 16)
    if identity != 0:
        return identity
    return _intern_new(context, p, stop, kind)


@compiled
def _intern_new(context: int, p: int, stop: int, kind: int) -> int:
    first, second = _fingerprint(p, stop - p, get(context, KEY_1) + kind, get(context, KEY_2) + kind)
    p, stop = final_text(context, p, stop, kind)
    final_first, final_second = _fingerprint(p, stop - p, get(context, KEY_1), get(context, KEY_2))
    identity = load_word(_find(context, final_first, final_second) + 16)
    if identity == 0:
        identity = _append_text(context, p, stop - p)
        if identity < 0:
            return identity
        enter(context, final_first, final_second, identity)
    enter(context, first, second, identity)
    return identity


@compiled
def final_text(context: int, p: int, stop: int, kind: int) -> tuple[int, int]:
    """Where the text stands that a spelling means: in place, or in scratch."""
    out = get(context, SCRATCH)
    if kind == JSON:
        p, stop = out, compact(p, stop, out)
    elif has_escape(p, stop):
        p, stop = out, unescape(p, stop, out)
    if is_ascii(p, stop):
        return p, stop
    out += get(context, SCRATCH_PART)
    return out, repair(p, stop, out)


@inlined
def slot_text(context: int, slot: int) -> tuple[int, int]:
    """Where the text of a slot's value stands, its escapes undone; invalid UTF-8 may remain where there are none."""
    p, stop = get(context, 3 * slot + 1), get(context, 3 * slot + 2)
    if get(context, 3 * slot) == ESCAPED:
        p, stop = final_text(context, p, stop, SPELLING)
    return p, stop


@compiled
def _append_text(context: int, p: int, count: int) -> int:
    used, number = get(context, TEXT_BYTES), get(context, N_TEXTS)
    if used + count > get(context, TEXT_LIMIT) or number >= get(context, N_TEXTS_LIMIT):
        put(context, TEXT_NEEDED, count)
        return TEXT_FULL
    copy_bytes(get(context, TEXT) + used, p, count)
    put(context, TEXT_BYTES, used + count)
    put(context, N_TEXTS, number + 1)
    store_word(get(context, TEXT_ENDS) + 8 * (number + 1), used + count)
    add(context, NEXT_ID, 1)
    return get(context, NEXT_ID)


@compiled
def rehash(context: int, old_table: int, old_slots: int) -> int:
    """Enter all entries of a former table into the present, larger and empty one; how many slots that had."""
    put(context, TABLE_USED, 0)
    for slot in range(old_slots):
        entry = old_table + 24 * slot
        identity = load_word(entry + 16)
        if identity != 0:
            enter(context, load_word(entry), load_word(entry + 8), identity)
    return old_slots


@compiled
def text_key(context: int, slot: int) -> int:
    """A number that stands for the text of a slot, where its id is not needed."""
    p, stop = final_text(context, get(context, 3 * slot + 1), get(context, 3 * slot + 2), SPELLING)
    first, _ = _fingerprint(p, stop - p, get(context, KEY_1), get(context, KEY_2))
    return first
