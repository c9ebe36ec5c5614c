"""The layout of the compiled parser's working memory, and the codes it answers with: numbers that both sides know.

Compiled functions take them from here as constants, and `compiled.CompiledParser` without loading a compiler.
"""

from __future__ import annotations

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

# Why the loop over the list returned.
NEED_MORE, LIST_ENDED, NEED_ROOM, NEED_TEXT = range(4)

ENTRIES_PER_EVENT = 8  # entries of the dictionary: four strings, each with one for its spelling and one for its text
