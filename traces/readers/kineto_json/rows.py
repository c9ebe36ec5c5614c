"""The columns that parsers fill, and their conversion to the Arrow tables of the staging area.

A batch is a 2-D int64 array `cells[column, row]`, so that one column is contiguous and becomes an Arrow buffer without
a copy. NULL is the smallest int64, which no time or id can be (both parsers make a number that would be it NULL).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from traces.readers.base import EVENT_COLUMNS, STRING_COLUMNS

Cells = npt.NDArray[np.int64]

NULL = -(2**63)
BATCH_ROWS = 122_880  # one row group of DuckDB

SEQ, CAT, NAME, PID, TID, TS, DUR, CORR, EXT, DEVICE, STREAM, SHAPES, DTYPES, BYTES, EXTRA = range(15)
PHASE, THREAD = 15, 16  # not stored: how the event is to be treated, and a hash of pid and tid as they were written
N_COLUMNS = 17

PH_COMPLETE, PH_BEGIN, PH_END = 0, 1, 2

_STORED = (
    ("seq", SEQ),
    ("cat", CAT),
    ("name", NAME),
    ("pid", PID),
    ("tid", TID),
    ("ts", TS),
    ("dur", DUR),
    ("corr", CORR),
    ("ext", EXT),
    ("device", DEVICE),
    ("stream", STREAM),
    ("shapes", SHAPES),
    ("dtypes", DTYPES),
    ("bytes", BYTES),
    ("extra", EXTRA),
)
_STRING_COLUMNS = frozenset((SHAPES, DTYPES, EXTRA))  # id 0 means NULL


def event_table(src: int, cells: Cells) -> pa.Table:
    """Arrow table with the columns of `stage.events` from `cells` (N_COLUMNS x rows)."""
    rows = cells.shape[1]
    arrays = [pa.array(np.full(rows, src, dtype=np.uint32))]
    for (name, index), field in zip(_STORED, list(EVENT_COLUMNS)[1:], strict=True):
        assert name == field.name
        column = np.ascontiguousarray(cells[index])
        missing = 0 if index in _STRING_COLUMNS else NULL
        arrays.append(_array(column, field.type, missing if field.nullable else None))
    return pa.Table.from_arrays(arrays, schema=EVENT_COLUMNS)


def _array(column: npt.NDArray[np.int64], kind: pa.DataType, missing: int | None) -> pa.Array:
    narrow = column if kind == pa.int64() else column.astype(kind.to_pandas_dtype())
    validity = None
    nulls = 0
    if missing is not None:
        valid = column != missing
        nulls = len(column) - int(np.count_nonzero(valid))
        if nulls:
            validity = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(column), [validity, pa.py_buffer(narrow)], null_count=nulls)


def string_table(src: int, first_id: int, offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> pa.Table:
    """Arrow table of `stage.strings`: ids from `first_id` on, texts between `offsets` of `data` (valid UTF-8)."""
    count = len(offsets) - 1
    text = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)], null_count=0)
    ids = np.arange(first_id, first_id + count, dtype=np.uint32)
    return pa.Table.from_arrays(
        [pa.array(np.full(count, src, dtype=np.uint32)), pa.array(ids), text], schema=STRING_COLUMNS
    )
