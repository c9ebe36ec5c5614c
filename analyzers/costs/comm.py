"""What ranks send to each other in a step: bytes per collective, and the least time they take on a link.

Message sizes are what the benchmark suite of NCCL (nccl-tests, PERFORMANCE.md) calls the size of an operation, so that
its "bus bandwidth" is `bus_bytes` over time: of an all-reduce the buffer of one rank, of an all-gather the gathered
result, of a reduce-scatter the input before it is scattered, of an all-to-all what one rank holds for all ranks
together, of a send what is sent. No collective has floating-point operations worth counting: FLOPs are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Literal

from analyzers.costs.parallel import Parallel
from analyzers.costs.shape import ModelShape
from traces.errors import UsageProblem

Kind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
KINDS: tuple[Kind, ...] = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


def bus_bytes(kind: Kind, message_bytes: float, ranks: int, *, in_switch: bool = False) -> float:
    """Bytes that each of `ranks` ranks sends, in one direction of its link. One rank sends nothing.

    - all_reduce 2·(n−1)/n·M: in a ring, n−1 pieces of M/n to add up and n−1 to hand out (Patarasuk and Yuan 2009 prove
      that no algorithm between equals sends less).
    - all_gather, reduce_scatter (n−1)/n·M: one of these two halves.
    - all_to_all (n−1)/n·M: all but the piece that stays.
    - send_recv M.
    - all_reduce where the switch adds up (`in_switch`) (n+1)/n·M: all of the own buffer goes up once to be added up, and
      the piece of M/n that came back added up goes up once more, for the switch to hand out.
    """
    if ranks < 1:
        raise UsageProblem(f"a group of {ranks} ranks", hint="a collective has at least one rank")
    if kind not in KINDS:
        raise UsageProblem(f"unknown collective {kind}", hint=f"known: {', '.join(KINDS)}")
    if ranks == 1:
        return 0.0
    if kind == "send_recv":
        return float(message_bytes)
    if kind == "all_reduce" and in_switch:
        return (ranks + 1) / ranks * message_bytes
    return (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks * message_bytes


def wire_bytes(kind: Kind, message_bytes: float, ranks: int) -> float:
    """Bytes that pass a rank's link, sent and received: what a rate of both directions together is compared with.

    Every rank receives as much as it sends; of a `send_recv` that holds for a rank between two others, while the first
    only sends and the last only receives.
    """
    return 2 * bus_bytes(kind, message_bytes, ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectives:
    """`count` equal collectives of a step; bytes are one rank's."""

    purpose: str  # 'tensor' | 'dispatch' | 'combine' | 'pipeline'
    kind: Kind
    ranks: int
    count: int
    message_bytes: float  # of one


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Collectives):
    """Of one stage, with what they cost."""

    flops = 0.0

    @property
    def bus_bytes(self) -> float:
        """Of all of them."""
        return self.count * bus_bytes(self.kind, self.message_bytes, self.ranks)

    @property
    def wire_bytes(self) -> float:
        """Of all of them, both directions."""
        return self.count * wire_bytes(self.kind, self.message_bytes, self.ranks)

    def floor_s(self, link: float | None) -> float | None:
        """Seconds at `link` bytes/s in one direction, latency not counted; None where that is not known."""
        return None if link is None else self.bus_bytes / link


def stage_transfers(stage: ModelShape, parallel: Parallel, tokens: float) -> tuple[Transfer, ...]:
    """What one rank of this pipeline stage sends in a step of `tokens` tokens of its replica.

    Tensor parallel: an all-reduce behind attention and one behind the feed-forward of each layer. Where experts are
    shared by several replicas, each rank takes its part of the replica's tokens to the experts and brings the results
    back (two all-to-all), and an all-gather stands for the second all-reduce. Between stages: the hidden state of each
    token. Expert ranks within one tensor-parallel group have all tokens already, and send nothing of their own.
    """
    hidden = tokens * stage.hidden * stage.activation_bytes
    sparse = sum(stage.moe_layers) if parallel.shared_replicas > 1 else 0
    found = [
        Transfer(purpose="tensor", kind="all_reduce", ranks=parallel.tensor, count=2 * stage.layers - sparse,
                 message_bytes=hidden),
        Transfer(purpose="tensor", kind="all_gather", ranks=parallel.tensor, count=sparse, message_bytes=hidden),
    ]  # fmt: skip
    if sparse and stage.moe is not None:
        reached = expected_ranks(stage.moe.experts, stage.moe.top_k, parallel.expert)
        part = hidden / parallel.tensor * reached
        found += [
            Transfer(purpose=purpose, kind="all_to_all", ranks=parallel.expert, count=sparse, message_bytes=part)
            for purpose in ("dispatch", "combine")
        ]
    if not stage.last:
        found.append(Transfer(purpose="pipeline", kind="send_recv", ranks=2, count=1, message_bytes=hidden))
    return tuple(each for each in found if each.count and each.ranks > 1)


def expected_ranks(experts: int, top_k: int, ranks: int) -> float:
    """Distinct ranks that hold one of a token's `top_k` different experts: n·(1 − C(E−E/n, k)/C(E, k)).

    Uniform routing is assumed. A token goes once to each of them; a library that sends it once per expert sends more.
    """
    missed = comb(experts - experts // ranks, top_k) / comb(experts, top_k)
    return ranks * (1 - missed)
