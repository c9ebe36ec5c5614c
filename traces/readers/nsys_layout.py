"""What an Nsight Systems export holds, and the statements that bring its tables into one shape.

The tables and their columns differ between versions, so every statement is put together from the columns that are
there; that is why they do not lie in .sql files. Identifiers come from the constants below, never from the file.
Each statement yields rows of SELECTED; decoding of packed ids and arithmetic happen in SQLite, not per row in Python.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field

from traces.readers.base import Cat

# Columns of every statement, in order. `name` is an integer (StringIds.id) or a text; the rest are integers or NULL.
SELECTED = ("cat", "name", "pid", "tid", "ts", "dur", "corr", "device", "stream", "bytes", "shapes")

KERNEL, MEMCPY, MEMSET = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
GRAPH, SYNC = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
RUNTIME, DRIVER = "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"
OVERHEADS = ("CUPTI_ACTIVITY_KIND_OVERHEAD", "PROFILER_OVERHEAD")
NVTX, STRINGS = "NVTX_EVENTS", "StringIds"
EVENT_TABLES = (KERNEL, MEMCPY, MEMSET, GRAPH, SYNC, RUNTIME, DRIVER, *OVERHEADS, NVTX)

NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END = 34, 59, 60
NO_STREAM = NO_EVENT = 0xFFFFFFFF  # CUPTI's mark for "none"
_LONGEST_TEXT = 65536
_COPY_KINDS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
_MEMORY_KINDS = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Tables of one export: {table: its columns}, and what is needed to tell processes and devices apart."""

    tables: dict[str, frozenset[str]]
    base_ns: int = 0
    several_processes: bool = False
    device_of: dict[tuple[int, int], int] = field(default_factory=dict)  # (pid, CUDA ordinal) → GPU id

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there with all these columns."""
        return table in self.tables and self.tables[table].issuperset(columns)

    @property
    def activity_process_known(self) -> bool:
        """Whether every table of device activities says which process an activity belongs to."""
        return all(self.has(name, "globalPid") for name in (KERNEL, MEMCPY, MEMSET, GRAPH) if name in self.tables)


def inspect(connection: sqlite3.Connection) -> Layout:
    """The layout of an open export. Raises sqlite3.DatabaseError where the file is damaged."""
    # Views and virtual tables could run anything for any time; an export has neither.
    names = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    ).fetchall()
    tables = {
        name: frozenset(row[0] for row in connection.execute("SELECT name FROM pragma_table_info(?)", (name,)))
        for (name,) in names
    }
    layout = Layout(tables=tables)
    return Layout(
        tables=tables,
        base_ns=_session_start_ns(connection, layout),
        several_processes=layout.activity_process_known and len(_processes(connection, layout)) > 1,
        device_of=_device_map(connection, layout),
    )


def statements(layout: Layout) -> list[tuple[str, str]]:
    """(table, statement) for every table of events in the export."""
    makers = {
        KERNEL: _kernels, MEMCPY: _copies, MEMSET: _sets, GRAPH: _graphs, SYNC: _syncs,
        RUNTIME: _calls, DRIVER: _calls, NVTX: _ranges, **dict.fromkeys(OVERHEADS, _overheads),
    }  # fmt: skip
    return [(name, makers[name](layout, name)) for name in EVENT_TABLES if layout.has(name, "start")]


def _kernels(layout: Layout, table: str) -> str:
    names = [column for column in ("demangledName", "shortName", "mangledName") if layout.has(table, column)]
    return _select(layout, table, cat=str(int(Cat.KERNEL)), name=_first(names), device=True)


def _copies(layout: Layout, table: str) -> str:
    kind = _words(layout, table, "copyKind", _COPY_KINDS, "?")
    if layout.has(table, "srcKind", "dstKind"):
        places = [_words(layout, table, column, _MEMORY_KINDS, "Unknown") for column in ("srcKind", "dstKind")]
        name = f"'Memcpy ' || {kind} || ' (' || {places[0]} || ' -> ' || {places[1]} || ')'"
    else:
        name = f"'Memcpy ' || {kind}"
    return _select(layout, table, cat=str(int(Cat.MEMCPY)), name=name, device=True, size=True)


def _sets(layout: Layout, table: str) -> str:
    place = _words(layout, table, "memKind", _MEMORY_KINDS, "Unknown")
    return _select(
        layout, table, cat=str(int(Cat.MEMSET)), name=f"'Memset (' || {place} || ')'", device=True, size=True
    )


def _graphs(layout: Layout, table: str) -> str:
    """Whole-graph activities, as one kernel each, less those whose nodes were recorded one by one."""
    number = _first([column for column in ("graphId", "graphExecId") if layout.has(table, column)])
    name = f"'CUDA graph ' || coalesce({number}, '?')"
    keys = [column for column in ("correlationId", "globalPid") if layout.has(table, column)]
    nodes = [
        f"SELECT {', '.join(keys)} FROM {node} WHERE graphNodeId IS NOT NULL"
        for node in (KERNEL, MEMCPY, MEMSET)
        if keys and layout.has(node, "graphNodeId", *keys)
    ]
    where = ""
    if nodes:
        # uncorrelated, so that SQLite collects the node launches once
        where = f"WHERE (({', '.join(keys)}) IN ({' UNION '.join(nodes)})) IS NOT TRUE"
    return _select(layout, table, cat=str(int(Cat.KERNEL)), name=name, device=True, where=where)


def _syncs(layout: Layout, table: str) -> str:
    name = _words(layout, table, "syncType", _SYNC_KINDS, "Sync")
    if layout.has(
        table, "syncType", "eventId"
    ):  # some drivers file a synchronized stream under waits, without an event
        name = f"CASE WHEN syncType = 2 AND eventId = {NO_EVENT} THEN 'Stream Sync' ELSE {name} END"
    return _select(layout, table, cat=str(int(Cat.SYNC)), name=name, device=True)


def _calls(layout: Layout, table: str) -> str:
    if table == DRIVER:
        cat = str(int(Cat.DRIVER))
    elif layout.has(table, "eventClass"):  # 1: driver calls, which newer versions keep in this table too
        cat = f"CASE eventClass WHEN 1 THEN {int(Cat.DRIVER)} ELSE {int(Cat.RUNTIME)} END"
    else:
        cat = str(int(Cat.RUNTIME))
    return _select(layout, table, cat=cat, name="nameId" if layout.has(table, "nameId") else "NULL")


def _overheads(layout: Layout, table: str) -> str:
    name = "nameId" if layout.has(table, "nameId") else "NULL"
    return _select(layout, table, cat=str(int(Cat.OVERHEAD)), name=name, corr=False)


def _ranges(layout: Layout, table: str) -> str:
    """NVTX ranges and marks. Ranges that PyTorch's emit_nvtx writes for operators become operators.

    Their text is `name[, seq = N][, op_id = N][, sizes = [[…], …]]`: without the running numbers there are a few
    hundred of them instead of one per call.
    """
    text = f"substr(text, 1, {_LONGEST_TEXT})" if layout.has(table, "text") else "NULL"
    registered = "textId" if layout.has(table, "textId") else "NULL"
    cut = f"coalesce(nullif(instr({text}, ', seq = '), 0), nullif(instr({text}, ', op_id = '), 0))"
    sizes = f"nullif(instr({text}, ', sizes = '), 0) + {len(', sizes = ')}"
    tail = f"substr({text}, {sizes})"
    shapes = f"substr({tail}, 1, coalesce(nullif(instr({tail}, ', input_op_ids'), 0) - 1, {_LONGEST_TEXT}))"
    name = f"CASE WHEN {cut} IS NULL THEN coalesce({text}, {registered}) ELSE substr({text}, 1, {cut} - 1) END"
    kind = "eventType" if layout.has(table, "eventType") else str(NVTX_PUSH_POP)
    crosses = "endGlobalTid <> globalTid" if layout.has(table, "endGlobalTid", "globalTid") else "0"
    cat = (
        f"CASE WHEN {kind} = {NVTX_MARK} THEN {int(Cat.INSTANT)} WHEN {cut} IS NOT NULL THEN {int(Cat.OP)} "
        # a range that ends on another thread is no scope of its thread
        f"WHEN {kind} = {NVTX_START_END} AND {crosses} THEN {int(Cat.OTHER)} ELSE {int(Cat.ANNOTATION)} END"
    )
    where = f"WHERE {kind} IN ({NVTX_MARK}, {NVTX_PUSH_POP}, {NVTX_START_END})"
    return _select(layout, table, cat=cat, name=name, shapes=f"CASE WHEN {cut} IS NULL THEN NULL ELSE {shapes} END",
                   corr=False, where=where)  # fmt: skip


def _select(
    layout: Layout, table: str, *, cat: str, name: str, shapes: str = "NULL", device: bool = False, corr: bool = True,
    size: bool = False, where: str = "",
) -> str:  # fmt: skip
    has = layout.tables[table]

    def whole(column: str) -> str:
        # A damaged or hostile file may hold any type in any column, and texts count as 0 in sums.
        return _integer(f'"{column}"') if column in has else "NULL"

    pid = f"(({whole('globalPid' if device else 'globalTid')} >> 24) & 16777215)"
    correlation = whole("correlationId") if corr else "NULL"
    if layout.several_processes:
        correlation = f"({correlation} | ({pid} << 32))"  # ids count from 0 in every process
    parts = {
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": f"({whole('globalTid')} & 16777215)",
        "ts": whole("start"),
        "dur": _integer(f"{whole('end')} - {whole('start')}"),  # beyond 64 bits SQLite goes on in floats
        "corr": correlation,
        "device": _device(layout, whole("deviceId"), pid) if device else "NULL",
        "stream": f"nullif({whole('streamId')}, {NO_STREAM})" if device else "NULL",
        "bytes": whole("bytes") if size else "NULL",
        "shapes": shapes,
    }
    return f"SELECT {', '.join(f'{parts[key]} AS {key}' for key in SELECTED)} FROM {table} {where}"


def _integer(expression: str) -> str:
    return f"CASE typeof({expression}) WHEN 'integer' THEN {expression} END"


def _device(layout: Layout, device: str, pid: str) -> str:
    known = {key: gpu for key, gpu in layout.device_of.items() if key[1] != gpu}
    if not known or device == "NULL":
        return device
    cases = " ".join(f"WHEN {process} * 65536 + {ordinal} THEN {gpu}" for (process, ordinal), gpu in known.items())
    return f"CASE {pid} * 65536 + {device} {cases} ELSE {device} END"


def _words(layout: Layout, table: str, column: str, words: dict[int, str], other: str) -> str:
    if not layout.has(table, column):
        return f"'{other}'"
    cases = " ".join(f"WHEN {number} THEN '{word}'" for number, word in words.items())
    return f"CASE {column} {cases} ELSE '{other}' END"


def _first(expressions: list[str]) -> str:
    if not expressions:
        return "NULL"
    return expressions[0] if len(expressions) == 1 else f"coalesce({', '.join(expressions)})"


def _session_start_ns(connection: sqlite3.Connection, layout: Layout) -> int:
    """ns since the epoch of the recording's own zero; 0 where the export does not say."""
    if not layout.has("TARGET_INFO_SESSION_START_TIME", "utcEpochNs"):
        return 0
    row = connection.execute(
        "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME WHERE typeof(utcEpochNs) = 'integer' LIMIT 1"
    ).fetchone()
    return 0 if row is None or not 0 <= row[0] < 2**62 else int(row[0])


def _processes(connection: sqlite3.Connection, layout: Layout) -> set[int]:
    found: set[int] = set()
    for table in (KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME, DRIVER):
        for column in ("globalPid", "globalTid"):
            if layout.has(table, column):
                statement = f"SELECT DISTINCT ({column} >> 24) & 16777215 FROM {table} WHERE {column} IS NOT NULL"
                try:
                    found.update(row[0] for row in connection.execute(statement))
                except sqlite3.DatabaseError:  # damaged: said when the table itself is read
                    continue
    return found


def _device_map(connection: sqlite3.Connection, layout: Layout) -> dict[tuple[int, int], int]:
    """Processes may number the GPUs they see from 0 each: two of them would fall on one device."""
    table = "TARGET_INFO_CUDA_DEVICE"
    if not layout.has(table, "gpuId", "cudaId", "pid"):
        return {}
    rows = connection.execute(f"SELECT pid, cudaId, gpuId FROM {table} LIMIT 4096").fetchall()
    numbers = [row for row in rows if all(isinstance(value, int) and 0 <= value < 2**31 for value in row)]
    return {(pid, ordinal): gpu for pid, ordinal, gpu in numbers}
