"""Kernels of a replayed graph and the operators that captured it: aligned by graph, order and name, with a score.

Engines capture a graph per batch size and pad a step's batch up to the next one. Where a graph holds pieces of a model
only, the trace of its capture also shows what ran between them, so positions alone do not match.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import duckdb
import polars as pl

from analyzers.costing.doubts import forget, say
from traces.store import frame, named_sql

GOOD_ALIGNMENT = 0.9  # share of a replay's kernels found in order in the capture
_REACH = 64  # kernels of the capture that may be passed over at once
_OPERATORS = ("op_name", "op_shapes", "op_dtypes")


@dataclass(slots=True, kw_only=True)
class _Aligned:
    """Replays with one sequence of kernels: for each kernel its place in the capture, or −1."""

    places: list[int] = field(default_factory=list)
    graph: int = -1
    score: float = 0.0


def align(con: duckdb.DuckDBPyConnection, run_id: str, captures: pl.DataFrame) -> float | None:
    """Write op_name, op_shapes and op_dtypes of the run's graph kernels; returns the share of their time that was found.

    `captures` is what traces.capture.read_captures gave. None where the run has no graph kernels. A replay that is found to
    less than GOOD_ALIGNMENT is left alone, and table `health` says so.
    """
    replays = frame(con.sql(named_sql("roofline_replays", "analyzers"), params={"run_id": run_id}))
    forget(con, run_id, "capture_alignment")
    if not replays.height:
        return None
    graphs = [part for _, part in captures.group_by("file", "graph", maintain_order=True)]
    found, scores = _operators(replays, graphs)
    con.register("graph_operators", found.to_arrow())
    con.execute(
        "UPDATE kernels AS k SET op_name = g.op_name, op_shapes = g.op_shapes, op_dtypes = g.op_dtypes FROM graph_operators AS g "
        "WHERE k.run_id = ? AND k.kernel_id = g.kernel_id", [run_id],
    )  # fmt: skip
    con.unregister("graph_operators")
    total = float(replays["dur_ns"].sum())
    share = float(replays.join(found, on="kernel_id", how="semi")["dur_ns"].sum()) / total if total else 0.0
    _report(con, run_id, share, min(scores, default=0.0), named=captures["name"].null_count() < captures.height)
    return share


def _operators(replays: pl.DataFrame, graphs: list[pl.DataFrame]) -> tuple[pl.DataFrame, list[float]]:
    """kernel_id with its operator, and the score of each distinct replay."""
    known: dict[tuple[int, int], _Aligned] = {}
    places_of: dict[tuple[int, int], list[int]] = {}
    parts: list[pl.DataFrame] = []
    for _, step in replays.group_by("rank", "step_id", maintain_order=True):
        kernels = int(step["name"].hash().implode().hash()[0])
        key = (kernels, int(step["tokens"][0]))
        if key not in known:
            known[key] = _best(step, graphs, kernels, places_of)
        aligned = known[key]
        if aligned.score < GOOD_ALIGNMENT:
            continue
        placed = step.select("kernel_id").with_columns(position=pl.Series(aligned.places, dtype=pl.Int64))
        graph = (
            graphs[aligned.graph]
            .with_row_index("at")
            .select(pl.col("at").cast(pl.Int64).alias("position"), *_OPERATORS)
        )
        parts.append(
            placed.join(graph, on="position").filter(pl.col("op_name").is_not_null()).select("kernel_id", *_OPERATORS)
        )
    schema = {"kernel_id": pl.Int64, **dict.fromkeys(_OPERATORS, pl.String)}
    return (pl.concat(parts) if parts else pl.DataFrame(schema=schema)), [each.score for each in known.values()]


def _best(
    step: pl.DataFrame, graphs: list[pl.DataFrame], kernels: int, places_of: dict[tuple[int, int], list[int]]
) -> _Aligned:
    """The capture that explains the replay: large enough for its tokens, the same kernels, the smallest batch."""
    tokens, piecewise = int(step["tokens"][0]), step["graph_mode"][0] == "piecewise"
    names = step["name"].to_list()
    fitting = [number for number, graph in enumerate(graphs) if int(graph["batch"][0]) >= tokens]
    alike = sorted(
        fitting, key=lambda i: ((graphs[i]["mode"][0] == "PIECEWISE") != piecewise, int(graphs[i]["batch"][0]))
    )
    best = _Aligned()
    for number in alike:  # the smallest batch that explains it is the one that ran
        if (kernels, number) not in places_of:
            places_of[kernels, number] = _places(names, graphs[number]["name"].to_list())
        places = places_of[kernels, number]
        score = sum(place >= 0 for place in places) / len(names)
        if score > best.score:
            best = _Aligned(places=places, graph=number, score=score)
        if score >= GOOD_ALIGNMENT:
            break
    return best


def _places(replay: list[str | None], capture: list[str | None]) -> list[int]:
    """For each kernel the next of its name in the capture, not further away than _REACH but for the first; −1: none."""
    places: list[int] = []
    following, reach = 0, len(capture)
    for name in replay:
        ahead = range(following, min(following + reach, len(capture)))
        place = next((i for i in ahead if name is not None and capture[i] == name), -1)
        places.append(place)
        if place >= 0:
            following, reach = place + 1, _REACH
    return places


def _report(con: duckdb.DuckDBPyConnection, run_id: str, share: float, worst: float, *, named: bool) -> None:
    ok = worst >= GOOD_ALIGNMENT
    message = f"{100 * share:.0f} % of the time in graphs was found in the capture traces, in order and by name"
    if not named:
        message = (
            "the capture traces name no kernels (recordings of CUDA do not), so replays cannot be aligned with them: costs come "
            "from the model's configuration"
        )
    elif not ok:
        message = (
            f"a replayed graph was found to {100 * worst:.0f} % in the capture traces, too little to use them for it: are they of "
            "this engine, this model and these batch sizes?"
        )
    affects = ["kernels.op_name", "kernels.flops", "kernels.bytes"]
    say(con, run_id, "capture_alignment", message, affects, ok=ok, value=worst, threshold=GOOD_ALIGNMENT)
