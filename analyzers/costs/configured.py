"""Our own way of counting (docs/method): the model as configured, every kernel's operands read and written once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analyzers.costs.attention import PhaseLoad, load_of_requests
from analyzers.costs.comm import Transfer, stage_transfers
from analyzers.costs.cost import Cost
from analyzers.costs.model import pieces
from analyzers.costs.parallel import Parallel, of_one_rank, stages_of
from analyzers.costs.roof import NS_PER_S, Peaks, roof_time_ns
from analyzers.costs.shape import ModelShape
from analyzers.costs.weights import weight_counts
from analyzers.costs.work import Rates, Stage, Work

WITH_WEIGHTS = ("gemm", "moe")
OTHERS = ("attention", "kv_cache", "norm", "activation", "rope", "logits", "sampling", "embedding")


class Configured:
    """Costs of a model from its configuration: causal, real widths, head and sampling included.

    Raises UsageProblem where the model cannot be divided so.
    """

    name = "default"

    def __init__(self, model: ModelShape, rates: Rates, *, tied: bool, parallel: Parallel) -> None:
        self._shapes = stages_of(of_one_rank(model, parallel), parallel.pipeline)
        self._rates, self._parallel = rates, parallel
        self._windows = tuple(window for window in model.window_counts if window is not None)
        whole = weight_counts(model, tied=tied)
        self.parameters, self.active_parameters = whole.total, whole.active
        self.stages = tuple(
            Stage(
                layers=stage.layers, weights_bytes=weight_counts(stage, tied=tied).bytes(stage),
                kv_bytes_per_token=stage.layers * stage.kv_width * stage.kv_bytes,
            )
            for stage in self._shapes
        )  # fmt: skip
        self.weights_bytes = max(stage.weights_bytes for stage in self.stages)
        self.kv_bytes_per_token = max(stage.kv_bytes_per_token for stage in self.stages)

    def kv_bytes(self, context: int) -> float:
        """Cache of one request; a layer with a window keeps no more than that."""
        return max(_kv_bytes(stage, context) for stage in self._shapes)

    def step(self, *, prefill: int = 0, before: int = 0, batch: int = 0, context: int = 0) -> Work:
        """Of all layers, the head and the sampler; of one prompt, the last token is sampled."""
        phases = (self._prefill(prefill, before), self._decode(batch, context))
        works = [self._stage(stage, *phases) for stage in self._shapes]
        return works[0] if len(works) == 1 else _in_turn(works)

    def _stage(self, stage: ModelShape, prefill: PhaseLoad, decode: PhaseLoad) -> Work:
        """Of one stage."""
        totals = {category: self._total(stage, category, prefill, decode) for category in WITH_WEIGHTS + OTHERS}
        weights = [totals[category][0] for category in WITH_WEIGHTS]
        flops = sum(float(cost.flops) for cost, _ in totals.values())
        moved = sum(float(cost.bytes) for cost, _ in totals.values())
        weight_flops = sum(float(cost.flops) for cost in weights)
        transfers = stage_transfers(stage, self._parallel, float(prefill.tokens) + float(decode.tokens))
        comm_s = self._comm_s(transfers)
        return Work(
            flops=flops, bytes=moved, weight_flops=weight_flops,
            weight_bytes=sum(float(cost.bytes) for cost in weights),
            compute_s=weight_flops / self._rates.weights + (flops - weight_flops) / self._rates.other,
            memory_s=moved / self._rates.bandwidth, transfers=transfers, comm_s=comm_s,
            serial_s=sum(seconds for _, seconds in totals.values()) + (comm_s or 0.0),
        )  # fmt: skip

    def request_flops(self, prompt: int, output: int) -> float:
        """The prompt, and each further token at the context it has."""
        prefill = self.step(prefill=prompt).flops
        if output < 2:
            return prefill * self._parallel.tensor
        ends = [self.step(batch=1, context=prompt + i).flops for i in (1, output - 1)]  # linear but for windows
        return (prefill + (output - 1) * sum(ends) / 2) * self._parallel.tensor

    def _prefill(self, tokens: int, before: int) -> PhaseLoad:
        if not tokens:
            return PhaseLoad()
        return load_of_requests(np.array([tokens]), np.array([before]), prompts=True, windows=self._windows)

    def _decode(self, batch: int, context: int) -> PhaseLoad:
        if not batch:
            return PhaseLoad()
        seen = float(batch) * context
        capped = {window: float(batch) * min(window, context) for window in self._windows}
        return PhaseLoad(
            reqs=float(batch), tokens=float(batch), kv_tokens=seen, qq=float(batch), qk=seen, sampled_rows=float(batch),
            windowed={window: (tokens, tokens) for window, tokens in capped.items()},
        )  # fmt: skip

    def _total(self, stage: ModelShape, category: str, prefill: PhaseLoad, decode: PhaseLoad) -> tuple[Cost, float]:
        """Cost of a category, and its seconds with each kernel at its own roof."""
        rate = self._rates.weights if category in WITH_WEIGHTS else self._rates.other
        peaks = Peaks(flops_per_s=rate, bytes_per_s=self._rates.bandwidth)
        parts = pieces(stage, category, prefill, decode)
        total = Cost(flops=sum(float(part.flops) for part in parts), bytes=sum(float(part.bytes) for part in parts))
        return total, sum(float(roof_time_ns(part, peaks)) for part in parts) / NS_PER_S

    def _comm_s(self, transfers: tuple[Transfer, ...]) -> float | None:
        """One after another, latency not counted; None where the link's rate is not known."""
        if not transfers:
            return 0.0
        link = self._rates.link
        return None if link is None else sum(each.bus_bytes for each in transfers) / link


def _kv_bytes(stage: ModelShape, context: int) -> float:
    counts = stage.window_counts.items()
    tokens = sum(count * min(context, context if window is None else window) for window, count in counts)
    return tokens * stage.kv_width * stage.kv_bytes


def _in_turn(works: list[Work]) -> Work:
    """A step that passes through the stages of a pipeline, one after another."""
    comm = [work.comm_s for work in works]
    return Work(
        flops=sum(work.flops for work in works), bytes=sum(work.bytes for work in works),
        weight_flops=sum(work.weight_flops for work in works), weight_bytes=sum(work.weight_bytes for work in works),
        compute_s=sum(work.compute_s for work in works), memory_s=sum(work.memory_s for work in works),
        transfers=_merged(works), comm_s=None if None in comm else sum(each or 0.0 for each in comm),
        stage_s=tuple(work.floor_s for work in works), serial_s=sum(work.serial_s or 0.0 for work in works),
    )  # fmt: skip


def _merged(works: list[Work]) -> tuple[Transfer, ...]:
    """Equal transfers of several stages as one, with their number."""
    counts: dict[Transfer, int] = {}
    for each in (each for work in works for each in work.transfers):
        alike = replace(each, count=1)
        counts[alike] = counts.get(alike, 0) + each.count
    return tuple(replace(each, count=count) for each, count in counts.items())
