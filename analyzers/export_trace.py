"""What a run looks like on a time line: slices and counters in pieces of time, so that memory is that of a piece."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import duckdb
import pyarrow as pa

from traces.errors import NothingToAnalyze, UnreadableInput
from traces.rows import first_row
from traces.store import TraceStore, named_sql

PIECE_ROWS = 100_000
_LAST_NS = 2**63 - 1
_SPAN_NS = 2**62  # 146 years: what lies later has a time that is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One kind of events: `sql/NAME.sql`, read in pieces by the time `column` of `table`.

    `counter`: rows are values at a time; otherwise slices. `recorded`: they are the recording's own, not ours.
    """

    name: str
    table: str
    column: str
    counter: bool = False
    recorded: bool = False


SOURCES = (
    Source(name="export_steps", table="steps", column="coalesce(host_start_ns, device_start_ns)"),
    Source(name="export_runs", table="kernels", column="start_ns"),
    Source(name="export_gaps", table="gaps", column="start_ns"),
    Source(name="export_requests", table="requests", column="arrival_ns"),
    Source(name="export_sensors", table="telemetry", column="ts_ns", counter=True),
    Source(name="export_scheduler", table="ledger_steps", column="sched_start_ns", counter=True),
    Source(name="export_kernels", table="kernels", column="start_ns", recorded=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """What a trace of a run is made of. `base_ns` is the earliest time in it; `devices` are names by process."""

    run_id: str
    name: str | None
    clock: str | None
    base_ns: int
    devices: dict[str, str]
    _store: TraceStore

    @classmethod
    def of(cls, store: TraceStore, *, overlay: bool = False) -> Timeline:
        """The time line of the store's run; `overlay` leaves the recording's own activities out.

        Raises NothingToAnalyze where the run has nothing with a time.
        """
        least = [_extent(store, source, 1)[1] for source in chosen(overlay=overlay)]
        known = [value for value in least if value is not None]
        if not known:
            raise NothingToAnalyze("the run has nothing with a time in it", hint="see `stepscope info`")
        run = store.query("SELECT name, clock FROM runs WHERE run_id = ?", [store.run_id]).to_dicts()[0]
        devices = store.query("SELECT rank, device, name FROM devices WHERE run_id = ?", [store.run_id]).to_dicts()
        return cls(
            run_id=store.run_id, name=run["name"], clock=run["clock"], base_ns=min(known), _store=store,
            devices={f"rank {row['rank']} device {row['device']}": row["name"] for row in devices if row["name"]},
        )  # fmt: skip

    def pieces(self, source: Source) -> Iterator[pa.Table]:
        """The rows of a source in order of time, some PIECE_ROWS at once; columns as in its SQL file."""
        sql = named_sql(source.name, "analyzers")
        for low, high in _cuts(self._store, source, self.base_ns):
            try:
                rows = self._store.connection.sql(
                    sql, params={"run_id": self.run_id, "low": low, "high": high}
                ).to_arrow_table()
            except (duckdb.OutOfRangeException, duckdb.ConversionException) as error:
                raise UnreadableInput(
                    f"{self._store.path}: {source.table} has times that no clock shows",
                    hint="ingest the recording again",
                ) from error
            if rows.num_rows:
                yield rows


def chosen(*, overlay: bool) -> tuple[Source, ...]:
    """The sources of a trace, in the order in which they are written."""
    return tuple(source for source in SOURCES if not (overlay and source.recorded))


def _extent(store: TraceStore, source: Source, pieces: int) -> tuple[int, int | None, list[float]]:
    """Rows of a source, its earliest time, and about `pieces` - 1 times that divide it evenly."""
    shares = [place / pieces for place in range(1, pieces)] or [0.5]
    rows = (
        f"SELECT {source.column} AS at_ns FROM {source.table} WHERE run_id = ? AND {_USABLE.get(source.table, 'true')}"
    )
    row = first_row(store.connection.execute(
        f"SELECT count(at_ns), min(at_ns), approx_quantile(at_ns::DOUBLE, {shares}) FROM ({rows})", [store.run_id]
    ))  # fmt: skip
    return (0, None, []) if row is None else (row[0], row[1], row[2] or [])


_USABLE = {"kernels": "valid"}  # a quarantined activity has a time that is none


def _cuts(store: TraceStore, source: Source, base_ns: int) -> Iterator[tuple[int, int]]:
    """[low, high) of every piece; together all times from the base on."""
    rows, least, _ = _extent(store, source, 1)
    if least is None:
        return
    last = min(base_ns + _SPAN_NS, _LAST_NS)
    inner: set[int] = set()
    if rows > PIECE_ROWS:
        _, _, estimates = _extent(store, source, -(-rows // PIECE_ROWS))
        inner = {int(value) for value in estimates if base_ns < value < last}
    bounds = [base_ns, *sorted(inner), last]
    yield from pairwise(bounds)
