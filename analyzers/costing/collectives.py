"""What collectives in a recording send: kind by name, message by operands or the model, group by the run's facts.

Bytes are a rank's bus bytes (analyzers/costs/comm.py), to be held against its link. Neither the kind nor the size of a
group is guessed: where one is not known, the row has no cost.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from analyzers.costing.layers import nothing
from analyzers.costing.operands import Operand
from analyzers.costing.operators import Call
from analyzers.costing.sequence import STEP
from analyzers.costs.comm import Kind, bus_bytes
from analyzers.costs.cost import Cost
from analyzers.costs.shape import ModelShape

_ALL_REDUCE = r"(?i)all_?reduce|cross_device_reduce|quick_?reduce"
_KINDS: tuple[tuple[str, Kind], ...] = (
    (r"(?i)reduce_?scatter", "reduce_scatter"),
    (r"(?i)all_?gather", "all_gather"),
    (r"(?i)all_?to_?all", "all_to_all"),
    (r"(?i)send_?recv|^c10d::(send|recv)", "send_recv"),
    (_ALL_REDUCE, "all_reduce"),
)
# The switch adds up: symmetric memory's multicast, and the algorithm of the vendor's library that uses it.
_IN_SWITCH = r"(?i)multimem|nvls"
MOST_RANKS = 1 << 20
_PER_LAYER = 2  # all-reduces between two attention calls: behind the output projection and behind the feed-forward


def group_size(distributed: object, facts: object) -> int | None:
    """Ranks that take part in a run's collectives; None where the run does not say, or has groups of several sizes.

    `distributed` is what a recording says of its process groups (distributedInfo), `facts` what the engine says of its
    parallelism. Groups of one rank send nothing and do not count.
    """
    info = distributed if isinstance(distributed, Mapping) else {}
    listed = info.get("pg_config")
    groups = [each.get("pg_size") for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else []
    sizes = {size for size in map(_natural, groups) if size > 1}
    if len(sizes) == 1:
        return sizes.pop()
    known = facts if isinstance(facts, Mapping) else {}
    tensor, others = _natural(known.get("tensor_parallel_size")), ("pipeline_parallel_size", "data_parallel_size")
    if not sizes and tensor > 1 and all(_natural(known.get(key)) == 1 for key in others):
        return tensor
    return 2 if _natural(info.get("world_size")) == 2 else None


def kind_of(kernel: str | None, operator: str | None) -> Kind | None:
    """By the names of the kernel and of the operator that launched it."""
    for name in (kernel or "", operator or ""):
        for pattern, kind in _KINDS:
            if re.search(pattern, name):
                return kind
    return None


def in_switch(kernel: str | None, operator: str | None) -> bool:
    """Whether a switch between the devices adds up, so that ranks send less than in a ring."""
    return any(re.search(_IN_SWITCH, name) for name in (kernel or "", operator or ""))


def collective_call(
    kernel: str | None, operator: str | None, arguments: Iterable[Operand | None], ranks: int | None
) -> Call | None:
    """Bus bytes of one collective; None where its kind, message or number of ranks is not known."""
    kind = kind_of(kernel, operator)
    tensors = [each for each in arguments if each is not None and each.elements > 0]
    sizes = [each.bytes for each in tensors[:2] if each.bytes is not None]
    if kind is None or ranks is None or not sizes or len(sizes) < len(tensors[:2]):
        return None
    message = _message(kind, sizes, ranks)
    if message is None:
        return None
    moved = bus_bytes(kind, message, ranks, in_switch=in_switch(kernel, operator))
    return Call(cost=Cost(flops=0, bytes=moved), dtype=tensors[0].dtype)


def _message(kind: Kind, sizes: Sequence[float], ranks: int) -> float | None:
    """From one operand (the input), or from input and output, which tell each other apart by their sizes."""
    small, large = min(sizes), max(sizes)
    if kind in ("all_gather", "reduce_scatter"):
        if len(sizes) == 1:
            return small * ranks if kind == "all_gather" else small
        return large if large == small * ranks else None
    return sizes[0] if small == large or kind in ("all_reduce", "send_recv") else None


def from_layers(model: ModelShape, rows: pl.DataFrame, ranks: int | None) -> pl.DataFrame:
    """kernel_id, flops, bytes and so on (layers.nothing) of all-reduces in steps that show all layers of the model.

    Of tensor parallelism: the hidden states of the step's tokens, twice per layer and once behind the embedding. Where
    a layer has another number of them they serve something else, and get nothing.
    """
    if ranks is None or ranks < 2:
        return nothing()
    named = pl.col("name").str.contains(_ALL_REDUCE).fill_null(value=False)
    reduces = rows.filter(
        (pl.col("category") == "comm") & named & (pl.col("layers") == model.layers) & (pl.col("tokens") > 0)
    )
    expected = pl.when(pl.col("layer") == 0).then(1).otherwise(_PER_LAYER)
    reduces = reduces.filter(pl.len().over([*STEP, "layer"]) == expected)
    if not reduces.height:
        return nothing()
    message = reduces["tokens"].cast(pl.Float64).to_numpy() * model.hidden * model.activation_bytes
    switched = reduces["name"].str.contains(_IN_SWITCH).to_numpy()
    ring, switch = (bus_bytes("all_reduce", 1.0, ranks, in_switch=way) for way in (False, True))
    return reduces.select(
        "kernel_id", flops=pl.lit(0.0), bytes=pl.Series(message * np.where(switched, switch, ring)), soft=pl.lit(False),
        role=pl.lit(None, dtype=pl.String), least_bytes=pl.lit(None, dtype=pl.Float64),
    )  # fmt: skip


def _natural(value: Any) -> int:
    """A count from a recording, which is untrusted; 0 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_RANKS else 0
