"""Several files as one run: which rank each is, slices of one recording joined, clocks of ranks compared.

Works on the staging tables before linking. Files of one rank with one trace id are slices of one recording; files of
one rank with different trace ids are later sessions of one worker if they do not overlap in time, and different
workers (data-parallel replicas each count their ranks from 0) if they do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import duckdb

from traces.rows import first_row
from traces.store import named_sql

# A correction has to be worth it, and surer than its own spread.
LEAST_OFFSET_NS = 10_000
LARGEST_SPREAD_NS = 1_000_000
LEAST_MATCHED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What was arranged."""

    ranks: tuple[int, ...]
    renumbered: bool = False  # files claimed one rank at the same time: all were numbered through
    joined: tuple[tuple[str, str], ...] = ()  # (slice, file it was joined to)
    duplicates: int = 0  # events that two slices held
    corrected: tuple[int, ...] = ()  # ranks whose times were moved


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    """One file with events. Times in absolute ns."""

    src: int
    rank: int
    trace_id: str | None
    name: str
    shift_ns: int
    first_ns: int | None
    last_ns: int | None
    last_seq: int
    last_string: int


def arrange(con: duckdb.DuckDBPyConnection, run_id: str) -> RankReport:
    """Settle ranks, join slices, compare clocks (rows of `clock_offsets`) and move the times of ranks that are off."""
    files = _files(con)
    renumbered = _number_through(con, files)
    if renumbered:
        files = _files(con)
    _store_spans(con, files)
    joined, duplicates = _join_slices(con, files)
    ranks = tuple(sorted({file.rank for file in files}))
    corrected = _compare_clocks(con, run_id) if len(ranks) > 1 else ()
    return RankReport(
        ranks=ranks, renumbered=renumbered, joined=joined, duplicates=duplicates, corrected=corrected
    )  # fmt: skip


def _files(con: duckdb.DuckDBPyConnection) -> list[_File]:
    columns = tuple(_File.__slots__)
    rows = con.execute(
        f"SELECT {', '.join(columns)} FROM ({named_sql('rank_recordings').rstrip().rstrip(';')})"
    ).fetchall()
    return [_File(**dict(zip(columns, row, strict=True))) for row in rows]


def _store_spans(con: duckdb.DuckDBPyConnection, files: Sequence[_File]) -> None:
    """stage.file_span: what each file covers, in absolute ns; between two files of a rank nothing was recorded."""
    con.execute("CREATE TABLE stage.file_span (rank INTEGER, first_ns BIGINT, last_ns BIGINT)")
    spans = [[file.rank, file.first_ns, file.last_ns] for file in files if file.first_ns is not None]
    if spans:
        con.executemany("INSERT INTO stage.file_span VALUES (?, ?, ?)", spans)


def _recordings(files: Sequence[_File]) -> list[list[_File]]:
    """Files by recording: those with one rank and one trace id together."""
    groups: defaultdict[tuple[int, str], list[_File]] = defaultdict(list)
    for file in files:
        groups[file.rank, file.trace_id or f"#{file.src}"].append(file)
    return list(groups.values())


def _number_through(con: duckdb.DuckDBPyConnection, files: Sequence[_File]) -> bool:
    """Give every worker a rank of its own where recordings of one rank overlap in time. Whether that was so."""
    lanes: dict[tuple[int, int], list[list[_File]]] = {}  # (stated rank, worker) → its recordings
    for group in sorted(_recordings(files), key=lambda item: (item[0].rank, item[0].name)):
        rank, worker = group[0].rank, 0
        while any(_overlap(group, other) for other in lanes.get((rank, worker), [])):
            worker += 1
        lanes.setdefault((rank, worker), []).append(group)
    if not any(worker for _, worker in lanes):
        return False
    # replicas first, then the ranks within each: what comes of it does not depend on the order of the files
    for number, key in enumerate(sorted(lanes, key=lambda item: (item[1], item[0]))):
        for file in (file for group in lanes[key] for file in group):
            con.execute("UPDATE stage.sources SET rank = ? WHERE src = ?", [number, file.src])
    return True


def _overlap(one: Sequence[_File], other: Sequence[_File]) -> bool:
    first, last = _span(one)
    other_first, other_last = _span(other)
    return None not in (first, other_first) and first < other_last and other_first < last


def _span(group: Sequence[_File]) -> tuple[int, int]:
    starts = [file.first_ns for file in group if file.first_ns is not None]
    ends = [file.last_ns for file in group if file.last_ns is not None]
    return (min(starts), max(ends)) if starts and ends else (0, 0)


def _join_slices(con: duckdb.DuckDBPyConnection, files: Sequence[_File]) -> tuple[tuple[tuple[str, str], ...], int]:
    """Move the events of later slices to the first one's `src`, without those that both hold."""
    groups = [group for group in _recordings(files) if len(group) > 1]
    if not groups:
        return (), 0
    con.execute("CREATE TABLE stage.slice (src UINTEGER, into_src UINTEGER, first_ns BIGINT, last_ns BIGINT)")
    slices = [[file.src, group[0].src, file.first_ns, file.last_ns] for group in groups for file in group]
    con.executemany("INSERT INTO stage.slice VALUES (?, ?, ?, ?)", slices)
    con.execute(f"CREATE TABLE stage.slice_duplicate AS {named_sql('slice_duplicates')}")
    row = first_row(con.execute("SELECT count(*) FROM stage.slice_duplicate"))
    con.execute("DELETE FROM stage.events WHERE (src, seq) IN (SELECT (src, seq) FROM stage.slice_duplicate)")
    joined = tuple(pair for group in groups for pair in _append(con, group))
    return joined, int(row[0]) if row else 0


def _append(con: duckdb.DuckDBPyConnection, group: Sequence[_File]) -> list[tuple[str, str]]:
    into = group[0]
    pairs: list[tuple[str, str]] = []
    for file in group[1:]:
        move = {"src": file.src, "into": into.src, "string": into.last_string, "seq": into.last_seq + 1,
                "shift": file.shift_ns - into.shift_ns}  # fmt: skip
        con.execute("INSERT INTO stage.strings SELECT $into, id + $string, text FROM stage.strings WHERE src = $src",
                    {key: move[key] for key in ("src", "into", "string")})  # fmt: skip
        con.execute(
            "UPDATE stage.events SET src = $into, seq = seq + $seq, ts = ts + $shift, "
            "name = CASE WHEN name = 0 THEN 0 ELSE name + $string END, "
            "shapes = shapes + $string, dtypes = dtypes + $string, extra = extra + $string WHERE src = $src",
            move,
        )
        into = replace(
            into, last_string=into.last_string + file.last_string, last_seq=into.last_seq + 1 + file.last_seq
        )
        pairs.append((file.name, into.name))
    return pairs


def _compare_clocks(con: duckdb.DuckDBPyConnection, run_id: str) -> tuple[int, ...]:
    """Fill `clock_offsets`; move `shift_ns` of the ranks whose offset is certain. The ranks moved."""
    query = named_sql("clock_offsets").rstrip().rstrip(";")
    con.execute(
        "INSERT INTO clock_offsets (run_id, rank, reference_rank, offset_ns, spread_ns, n_matched, applied) "
        "SELECT $run_id, rank, reference_rank, offset_ns, spread_ns, n_matched, "
        "abs(offset_ns) > greatest($least, 3 * spread_ns) AND spread_ns <= $largest AND n_matched >= $matched "
        f"FROM ({query})",
        {"run_id": run_id, "least": LEAST_OFFSET_NS, "largest": LARGEST_SPREAD_NS, "matched": LEAST_MATCHED},
    )
    rows = con.execute(
        "SELECT rank, offset_ns FROM clock_offsets WHERE run_id = ? AND applied ORDER BY rank", [run_id]
    ).fetchall()
    for rank, offset_ns in rows:
        con.execute("UPDATE stage.sources SET shift_ns = shift_ns - ? WHERE rank = ?", [offset_ns, rank])
    return tuple(int(rank) for rank, _ in rows)
