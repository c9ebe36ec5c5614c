"""Recordings from literals, analyzed for the causes of idle time. Times in µs after START."""

from __future__ import annotations

from recording import RUN, Recording

from analyzers import idle, kernels

US, MS, S = 1_000, 1_000_000, 1_000_000_000
START = 1_000 * S
Piece = tuple[int, int, str]  # start and end in µs after START, cause


def recorded() -> Recording:
    return Recording().file(distributedInfo={"rank": 0, "world_size": 1})


def caused(recording: Recording, window: tuple[int, int] | None = None, *, clock: str = "epoch") -> list[Piece]:
    """Link, check and find causes; what must hold of any recording is asserted on the way."""
    span = None if window is None else (START + window[0] * US, START + window[1] * US)
    recording.check(window=span)
    recording.con.execute("INSERT INTO runs (run_id, clock) VALUES (?, ?)", [RUN, clock])
    return again(recording)


def again(recording: Recording) -> list[Piece]:
    kernels.apply_categories(recording.con, RUN)
    before = recording.rows("SELECT rank, device, idle_ns, unrecorded_ns FROM devices ORDER BY ALL")
    idle.fill(recording.con, RUN)
    recording.assert_exact()
    totals = recording.rows(
        "SELECT d.rank, d.device, coalesce(sum(g.dur_ns) FILTER (WHERE g.cause <> 'unrecorded'), 0)::BIGINT AS idle_ns, "
        "coalesce(sum(g.dur_ns) FILTER (WHERE g.cause = 'unrecorded'), 0)::BIGINT AS unrecorded_ns "
        "FROM devices AS d LEFT JOIN gaps AS g USING (rank, device) GROUP BY ALL ORDER BY ALL"
    )
    assert totals == before
    found = recording.rows(
        "SELECT start_ns, start_ns + dur_ns AS end_ns, cause, detail FROM gaps ORDER BY rank, device, start_ns"
    )
    assert all(row["detail"] for row in found)
    return [((row["start_ns"] - START) // US, (row["end_ns"] - START) // US, row["cause"]) for row in found]


def detail(recording: Recording, cause: str) -> str:
    return str(
        recording.rows(f"SELECT detail FROM gaps WHERE cause = '{cause}' ORDER BY dur_ns DESC LIMIT 1")[0]["detail"]
    )


def at(us: int) -> int:
    return START + us * US
