"""Compiled member loops: where the values of an event stand, without looking into them."""

# ruff: noqa: PLR1714, SIM109, SIM110
# Compiled code: comparisons stay comparisons.

from __future__ import annotations

from traces.readers.kineto_json.context import clear_slots, get, is_text, set_slot
from traces.readers.kineto_json.interning import SPELLING, final_text, slot_text
from traces.readers.kineto_json.layout import (
    ARGS,
    BARE,
    BYTES,
    CAT,
    COLLECTIVE,
    CORRELATION,
    DEVICE,
    DIMS,
    DUR,
    ESCAPED,
    EXTERNAL,
    FIRST_OF_ARGS,
    LENGTHS,
    LEXICON,
    N_FRAMES,
    NAME,
    NESTED,
    PH,
    PID,
    STREAM,
    STRING,
    TID,
    TS,
    TYPES,
    WORD_BYTES,
)  # fmt: skip
from traces.readers.kineto_json.machine import compiled, inlined, load_byte, load_word
from traces.readers.kineto_json.scan import (
    MORE,
    after_bare,
    after_blank,
    after_close,
    after_space,
    closing_quote,
    contains,
    same_bytes,
)

MALFORMED_EVENT, SKIPPED_FRAME = -3, -4


def _word(text: bytes) -> int:
    return int.from_bytes(text[:8].ljust(8, b"\0"), "little", signed=True)


_PH, _TS, _CAT, _PID, _TID, _DUR = (_word(key) for key in (b"ph", b"ts", b"cat", b"pid", b"tid", b"dur"))
_NAME, _ARGS, _BYTES, _DEVICE, _STREAM = (_word(key) for key in (b"name", b"args", b"bytes", b"device", b"stream"))
_INPUT_DI, _PUT_DIMS, _INPUT_TY, _PUT_TYPE = (
    _word(key) for key in (b"Input Di", b"put Dims", b"Input ty", b"put type")
)
_CORRELA, _RELATION, _EXTERNAL, _ERNAL_ID = (_word(key) for key in (b"correlat", b"relation", b"External", b"ernal id"))
_COLLECT, _LECTIVE, _IVE_NAME = (_word(key) for key in (b"Collecti", b"lective ", b"ive name"))


@inlined
def _event_slot(p: int, count: int) -> int:
    """Slot of an event's key; -1 for one that is not needed."""
    if count > 4 or count < 2:
        return -1
    word = load_word(p) & ((1 << (8 * count)) - 1)
    if count == 2:
        return PH if word == _PH else TS if word == _TS else -1
    if count == 3:
        return PID if word == _PID else TID if word == _TID else DUR if word == _DUR else CAT if word == _CAT else -1
    return NAME if word == _NAME else ARGS if word == _ARGS else -1


@inlined
def _args_slot(p: int, count: int) -> int:
    """Slot of a key within args; -1 for one that is not needed."""
    if count < 5 or count > 15:
        return -1
    word = load_word(p)
    if count == 5:
        return BYTES if (word & ((1 << 40) - 1)) == _BYTES else -1
    if count == 6:
        word &= (1 << 48) - 1
        return STREAM if word == _STREAM else DEVICE if word == _DEVICE else -1
    tail = load_word(p + count - 8)
    if count == 10:
        if word == _INPUT_DI and tail == _PUT_DIMS:
            return DIMS
        return TYPES if word == _INPUT_TY and tail == _PUT_TYPE else -1
    if count == 11:
        if word == _EXTERNAL and tail == _ERNAL_ID:
            return EXTERNAL
        return CORRELATION if word == _CORRELA and tail == _RELATION else -1
    if count == 15 and word == _COLLECT and tail == _IVE_NAME and load_word(p + 3) == _LECTIVE:
        return COLLECTIVE
    return -1


@compiled
def _decoded_slot(context: int, p: int, stop: int, in_args: bool) -> int:
    """Slot of a key that is written with escapes."""
    p, stop = final_text(context, p, stop, SPELLING)
    return _args_slot(p, stop - p) if in_args else _event_slot(p, stop - p)


@inlined
def _key(context: int, p: int, end: int, in_args: bool) -> tuple[int, int]:
    """(first byte of the value, or a code below 0; slot) of the member whose quote is at `p - 1`."""
    stop, escaped = closing_quote(p, end)
    if stop < 0:
        return MORE, -1
    if escaped != 0:
        slot = _decoded_slot(context, p, stop, in_args)
    elif in_args:
        slot = _args_slot(p, stop - p)
    else:
        slot = _event_slot(p, stop - p)
    p = after_space(stop + 1, end)
    if p >= end:
        return MORE, slot
    if load_byte(p) != 0x3A:
        return MALFORMED_EVENT, slot
    p = after_space(p + 1, end)
    return (MORE if p >= end else p), slot


@inlined
def _value(context: int, p: int, end: int, slot: int) -> int:
    """Note where the value at `p` stands; first byte behind it, or MORE."""
    byte = load_byte(p)
    if byte == 0x22:
        stop, escaped = closing_quote(p + 1, end)
        if stop < 0:
            return MORE
        if slot >= 0:
            set_slot(context, slot, ESCAPED if escaped != 0 else STRING, p + 1, stop)
        return stop + 1
    if (byte | 0x20) == 0x7B:
        stop = after_close(p + 1, end, 1)
        if slot >= 0:
            set_slot(context, slot, NESTED, p, stop)
        return stop
    stop = after_bare(p, end)
    if slot >= 0:
        set_slot(context, slot, BARE, p, stop)
    return stop


@compiled
def _args_members(context: int, p: int, end: int) -> int:
    """Members of args from behind its brace; first byte behind it, or a code below 0."""
    while True:
        p = after_blank(p, end)
        if p >= end:
            return MORE
        byte = load_byte(p)
        if byte == 0x7D:
            return p + 1
        if byte != 0x22:
            return MALFORMED_EVENT
        p, slot = _key(context, p + 1, end, True)
        if p < 0:
            return p
        p = _value(context, p, end, slot)
        if p < 0:
            return p


@compiled
def _is_unwanted_frame(context: int) -> bool:
    """Whether category and name are both known and make a python frame that nobody asked for."""
    if not is_text(context, CAT) or not is_text(context, NAME):
        return False
    words, lengths = get(context, LEXICON), get(context, LENGTHS)
    p, stop = slot_text(context, CAT)
    if stop - p != load_word(lengths) or not same_bytes(p, words, stop - p):
        return False
    p, stop = slot_text(context, NAME)
    for i in range(1, 1 + get(context, N_FRAMES)):
        if contains(p, stop, words + WORD_BYTES * i, load_word(lengths + 8 * i)):
            return False
    return True


@compiled
def event_members(context: int, p: int, end: int) -> int:
    """Members of the event whose brace is at `p - 1`; first byte behind it, MORE, or a code.

    Where frames are unwanted, SKIPPED_FRAME - (address to go on from) as soon as the event is known to be one.
    """
    clear_slots(context, 0)
    while True:
        p = after_blank(p, end)
        if p >= end:
            return MORE
        byte = load_byte(p)
        if byte == 0x7D:
            return p + 1
        if byte != 0x22:
            return MALFORMED_EVENT
        p, slot = _key(context, p + 1, end, False)
        if p < 0:
            return p
        if slot == ARGS:
            clear_slots(context, FIRST_OF_ARGS)
        if slot == ARGS and load_byte(p) == 0x7B:
            start = p
            p = _args_members(context, p + 1, end)
            set_slot(context, ARGS, NESTED, start, p)
        else:
            p = _value(context, p, end, slot)
        if p < 0:
            return p
        if (slot == CAT or slot == NAME) and get(context, N_FRAMES) >= 0 and _is_unwanted_frame(context):
            return SKIPPED_FRAME - p
