"""Compiled loop over the event list: members to rows, everything else to counters."""

# ruff: noqa: PLR1714
# Compiled code: comparisons stay comparisons.

from __future__ import annotations

from traces.readers.kineto_json import layout as at
from traces.readers.kineto_json import members, rows, tally
from traces.readers.kineto_json.context import add, get, is_text, put
from traces.readers.kineto_json.digits import parse_time, parse_whole
from traces.readers.kineto_json.interning import JSON, SPELLING, TEXT_FULL, intern, slot_text, text_key
from traces.readers.kineto_json.layout import (
    ENTRIES_PER_EVENT,
    LIST_ENDED,
    NEED_MORE,
    NEED_ROOM,
    NEED_TEXT,
    NESTED,
    WORD_BYTES,
)
from traces.readers.kineto_json.machine import compiled, fold_product, inlined, load_byte, load_word, store_word
from traces.readers.kineto_json.scan import MORE, after_blank, after_close, after_element, same_bytes

_PAIR_FACTOR = 0x1E3779B97F4A7C15


@inlined
def _cell(context: int, column: int, row: int, value: int) -> None:
    store_word(get(context, at.CELLS) + 8 * (column * get(context, at.ROW_LIMIT) + row), value)


@inlined
def _count(context: int, reason: int) -> None:
    address = get(context, at.COUNTS) + 8 * reason
    store_word(address, load_word(address) + 1)


@compiled
def _number(context: int, slot: int, is_time: bool) -> int:
    what = get(context, 3 * slot)
    if what == at.ABSENT or what == NESTED:
        return rows.NULL
    p, stop = slot_text(context, slot)
    return parse_time(p, stop) if is_time else parse_whole(p, stop)


@compiled
def _phase(context: int) -> int:
    """PH_COMPLETE, PH_BEGIN or PH_END, or -1 - (reason) of an event that is no row."""
    if not is_text(context, at.PH):
        return -1 - tally.NO_PHASE
    p, stop = slot_text(context, at.PH)
    if stop == p:
        return -1 - tally.NO_PHASE
    byte = load_byte(p) if stop - p == 1 else 0
    if byte == 0x58:
        return rows.PH_COMPLETE
    if byte == 0x42:
        return rows.PH_BEGIN
    if byte == 0x45:
        return rows.PH_END
    if byte == 0x4D:
        return -1 - tally.METADATA
    if byte == 0x69 or byte == 0x49 or byte == 0x52:
        return -1 - tally.INSTANT
    if byte == 0x73 or byte == 0x74 or byte == 0x66:
        return -1 - tally.FLOW
    return -1 - (tally.COUNTER if byte == 0x43 else tally.OTHER_PHASE)


@compiled
def _category(context: int) -> int:
    if not is_text(context, at.CAT):
        return 0
    p, stop = slot_text(context, at.CAT)
    words, lengths, codes = get(context, at.LEXICON), get(context, at.LENGTHS), get(context, at.CODES)
    for i in range(get(context, at.N_WORDS)):
        code = load_word(codes + 8 * i)
        if code >= 0 and load_word(lengths + 8 * i) == stop - p and same_bytes(p, words + WORD_BYTES * i, stop - p):
            return code
    return 0


@inlined
def _string(context: int, slot: int, kind: int) -> int:
    return intern(context, get(context, 3 * slot + 1), get(context, 3 * slot + 2), kind)


@compiled
def _thread_key(context: int, pid: int, tid: int) -> int:
    """A number for pid and tid as they are written, numbers or not."""
    if pid == rows.NULL and is_text(context, at.PID):
        pid = text_key(context, at.PID)
    if tid == rows.NULL and is_text(context, at.TID):
        tid = text_key(context, at.TID)
    return fold_product(pid ^ get(context, at.KEY_1), _PAIR_FACTOR) ^ tid


@compiled
def _fill_row(context: int, row: int, phase: int, category: int) -> bool:
    """Columns from the members of one event; False where the texts have no room for its strings."""
    name = _string(context, at.NAME, SPELLING) if is_text(context, at.NAME) else 0
    shapes = _string(context, at.DIMS, JSON) if get(context, 3 * at.DIMS) == NESTED else 0
    dtypes = _string(context, at.TYPES, JSON) if get(context, 3 * at.TYPES) == NESTED else 0
    extra = _string(context, at.ARGS, JSON) if get(context, 3 * at.COLLECTIVE) != at.ABSENT else 0
    if name < 0 or shapes < 0 or dtypes < 0 or extra < 0:
        return False
    pid, tid = _number(context, at.PID, False), _number(context, at.TID, False)
    _cell(context, rows.SEQ, row, get(context, at.SEEN))
    _cell(context, rows.CAT, row, category)
    _cell(context, rows.NAME, row, name)
    _cell(context, rows.PID, row, pid)
    _cell(context, rows.TID, row, tid)
    _cell(context, rows.TS, row, _number(context, at.TS, True))
    _cell(context, rows.DUR, row, _number(context, at.DUR, True))
    _cell(context, rows.CORR, row, _number(context, at.CORRELATION, False))
    _cell(context, rows.EXT, row, _number(context, at.EXTERNAL, False))
    _cell(context, rows.DEVICE, row, _number(context, at.DEVICE, False))
    _cell(context, rows.STREAM, row, _number(context, at.STREAM, False))
    _cell(context, rows.SHAPES, row, shapes)
    _cell(context, rows.DTYPES, row, dtypes)
    _cell(context, rows.BYTES, row, _number(context, at.BYTES, False))
    _cell(context, rows.EXTRA, row, extra)
    _cell(context, rows.PHASE, row, phase)
    _cell(context, rows.THREAD, row, 0 if phase == rows.PH_COMPLETE else _thread_key(context, pid, tid))
    return True


@compiled
def _note_metadata(context: int, p: int, stop: int) -> None:
    count = get(context, at.N_SPANS)
    if count < get(context, at.SPAN_LIMIT):
        store_word(get(context, at.SPANS) + 16 * count, p)
        store_word(get(context, at.SPANS) + 16 * count + 8, stop)
        put(context, at.N_SPANS, count + 1)


@compiled
def _pass_over(context: int, p: int, end: int, code: int) -> int:
    """First byte behind an event that is malformed, or a frame known by the code of `event_members`; or MORE."""
    malformed = code == members.MALFORMED_EVENT
    stop = after_close(p + 1 if malformed else members.SKIPPED_FRAME - code, end, 1)
    if stop >= 0:
        _count(context, tally.MALFORMED if malformed else tally.FRAME)
    return stop


@compiled
def _take_event(context: int, p: int, end: int) -> int:
    """The event whose brace is at `p`; first byte behind it, MORE or TEXT_FULL."""
    stop = members.event_members(context, p + 1, end)
    if stop == MORE:
        return MORE
    if stop < 0:
        return _pass_over(context, p, end, stop)
    category = _category(context)
    is_frame = category == load_word(get(context, at.CODES))
    if is_frame and get(context, at.N_FRAMES) >= 0 and not is_text(context, at.NAME):
        _count(context, tally.FRAME)
        return stop
    phase = _phase(context)
    if phase < 0:
        _count(context, -1 - phase)
        if -1 - phase == tally.METADATA:
            _note_metadata(context, p, stop)
        return stop
    row = get(context, at.ROWS)
    if not _fill_row(context, row, phase, category):
        return TEXT_FULL
    put(context, at.ROWS, row + 1)
    return stop


@compiled
def parse_list(context: int, p: int, end: int) -> int:
    """Take elements until the list or the buffer ends or room runs out; first address not consumed."""
    table_limit = (get(context, at.TABLE_MASK) + 1) // 2 - ENTRIES_PER_EVENT
    while True:
        p = min(after_blank(p, end), end)
        put(context, at.REASON, NEED_MORE)
        if p >= end:
            return p
        byte = load_byte(p)
        if byte == 0x5D:
            put(context, at.REASON, LIST_ENDED)
            return p + 1
        if byte != 0x7B:
            stop = after_element(p, end)
            if stop < 0:
                return p
            _count(context, tally.NOT_AN_EVENT)
        else:
            if get(context, at.ROWS) >= get(context, at.ROW_LIMIT) or get(context, at.TABLE_USED) > table_limit:
                put(context, at.REASON, NEED_ROOM)
                return p
            stop = _take_event(context, p, end)
            if stop == TEXT_FULL:
                put(context, at.REASON, NEED_TEXT)
                return p
            if stop < 0:
                return p
        add(context, at.SEEN, 1)
        p = stop


@compiled
def skip_value(p: int, end: int, state: int) -> int:
    """Go on inside a value (see outline.EventParser.skip), `state` an address; first address behind it, or MORE."""
    kind, depth, escaped, inside = load_word(state), load_word(state + 8), load_word(state + 16), load_word(state + 24)
    while p < end:
        byte = load_byte(p)
        bracket = byte | 0x20
        if kind == 2:
            if byte <= 0x20 or byte == 0x22 or byte == 0x2C or byte == 0x3A or bracket == 0x7B or bracket == 0x7D:
                return p
        elif escaped != 0:
            escaped = 0
        elif inside != 0:
            if byte == 0x5C:
                escaped = 1
            elif byte == 0x22:
                inside = 0
                if kind == 1:
                    return p + 1
        elif byte == 0x22:
            inside = 1
        elif bracket == 0x7B:
            depth += 1
        elif bracket == 0x7D:
            depth -= 1
            if depth <= 0:
                return p + 1
        p += 1
    store_word(state + 8, depth)
    store_word(state + 16, escaped)
    store_word(state + 24, inside)
    return MORE
