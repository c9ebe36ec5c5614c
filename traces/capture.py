"""Traces of the capture of graphs: which operator put which kernel into a graph. A replay shows kernels only."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import polars as pl

from traces.errors import UnreadableInput, UsageProblem
from traces.link import create_stage
from traces.readers.base import ReadOptions
from traces.sink import StageSink
from traces.sniff import pick_reader
from traces.store import SAFE_SETTINGS, frame, named_sql

# The kernel's name is an argument of the launch on HIP; nothing in the events of a capture tells it on CUDA.
_KERNEL = re.compile(rb'"kernel"\s*:\s*("(?:[^"\\]|\\.)*")[^{}]*?"correlation"\s*:\s*(\d+)')
_CHUNK_BYTES = 1 << 22
_OVERLAP_BYTES = 1 << 16
_MARK = re.compile(r"capture_(\d+)_([A-Z]+)")
_NAMES = (".json", ".json.gz")


def read_captures(folder: Path) -> pl.DataFrame:
    """One row per kernel of each captured graph, in order, of all traces in `folder` (or of one file).

    Columns: file, graph, batch (tokens it was captured for), mode ('FULL' | 'PIECEWISE' | 'DECODE' | …), position, name (the
    kernel; NULL where the trace does not say), op_name, op_shapes, op_dtypes. Raises UsageProblem where there is none.
    """
    found = [part for part in map(_read, _files(folder)) if part.height]
    if not found:
        raise UsageProblem(
            f"{folder} holds no graph-capture trace", hint="give the folder that the engine wrote its capture traces to"
        )
    return pl.concat(found)


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise UsageProblem(f"{folder} does not exist", hint="--capture takes a folder of graph-capture traces")
    return sorted(
        path for path in folder.iterdir() if path.name.endswith(_NAMES) and path.name != "execution_details.json"
    )


def _read(path: Path) -> pl.DataFrame:
    with duckdb.connect(config=dict(SAFE_SETTINGS)) as con:
        con.execute("ATTACH ':memory:' AS stage")
        create_stage(con)
        sink = StageSink(con)
        try:
            pick_reader(path).read(path, 0, sink, ReadOptions())
        finally:
            sink.close()
        launches = frame(con.sql(named_sql("capture_launches")))
    if not launches.height:
        return pl.DataFrame()
    names = pl.DataFrame(list(_kernel_names(path)), schema={"corr": pl.Int64, "name": pl.String}, orient="row").unique(
        "corr", keep="last"
    )
    marks = launches["graph"].unique().to_list()
    modes = pl.DataFrame(
        [(mark, int(match[1]), match[2]) for mark in marks if (match := _MARK.search(mark))],
        schema={"graph": pl.String, "batch": pl.Int64, "mode": pl.String}, orient="row",
    )  # fmt: skip
    joined = launches.join(names, on="corr", how="left").join(modes, on="graph").sort("graph", "position")
    return joined.select(
        pl.lit(path.name).alias("file"),
        "graph",
        "batch",
        "mode",
        "position",
        "name",
        "op_name",
        "op_shapes",
        "op_dtypes",
    )


def _kernel_names(path: Path) -> Iterator[tuple[int, str]]:
    """(correlation, kernel) of launches that say it: a few thousand in a capture."""
    opener = gzip.open if path.suffix == ".gz" else open
    rest = b""
    try:
        with opener(path, "rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                text = rest + chunk
                done = 0
                for match in _KERNEL.finditer(text):
                    done = match.end()
                    yield int(match[2]), json.loads(match[1])
                rest = text[max(done, len(text) - _OVERLAP_BYTES) :]
    except (OSError, EOFError, ValueError) as error:
        raise UnreadableInput(
            f"{path} cannot be read as a capture trace: {error}", hint="record the capture again"
        ) from error
