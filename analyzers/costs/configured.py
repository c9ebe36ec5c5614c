"""Our own way of counting (docs/method): the model as configured, every kernel's operands read and written once."""

from __future__ import annotations

import numpy as np

from analyzers.costs.attention import PhaseLoad, load_of_requests
from analyzers.costs.cost import Cost
from analyzers.costs.model import pieces
from analyzers.costs.roof import NS_PER_S, Peaks, roof_time_ns
from analyzers.costs.shape import ModelShape
from analyzers.costs.weights import weight_counts
from analyzers.costs.work import Rates, Work

WITH_WEIGHTS = ("gemm", "moe")
OTHERS = ("attention", "kv_cache", "norm", "activation", "rope", "logits", "sampling", "embedding")
REDUCTIONS_PER_LAYER = 2  # tensor parallel: after attention and after the feed-forward


class Configured:
    """Costs of a model from its configuration: causal, real widths, head and sampling included."""

    name = "default"

    def __init__(self, model: ModelShape, rates: Rates, *, tied: bool, tensor_parallel: int = 1) -> None:
        self._model = model.divided(tensor_parallel) if tensor_parallel > 1 else model
        self._rates, self._devices = rates, tensor_parallel
        self._windows = tuple(window for window in model.window_counts if window is not None)
        whole = weight_counts(model, tied=tied)
        self.parameters, self.active_parameters = whole.total, whole.active
        self.weights_bytes = weight_counts(self._model, tied=tied).bytes(self._model)
        self.kv_bytes_per_token = model.layers * self._model.kv_width * model.kv_bytes

    def kv_bytes(self, context: int) -> float:
        """Cache of one request; a layer with a window keeps no more than that."""
        counts = self._model.window_counts.items()
        tokens = sum(count * min(context, context if window is None else window) for window, count in counts)
        return tokens * self._model.kv_width * self._model.kv_bytes

    def step(self, *, prefill: int = 0, before: int = 0, batch: int = 0, context: int = 0) -> Work:
        """Of all layers, the head and the sampler; of one prompt, the last token is sampled."""
        phases = (self._prefill(prefill, before), self._decode(batch, context))
        totals = {category: self._total(category, *phases) for category in WITH_WEIGHTS + OTHERS}
        weights = [totals[category][0] for category in WITH_WEIGHTS]
        flops = sum(float(cost.flops) for cost, _ in totals.values())
        moved = sum(float(cost.bytes) for cost, _ in totals.values())
        weight_flops = sum(float(cost.flops) for cost in weights)
        return Work(
            flops=flops, bytes=moved, weight_flops=weight_flops,
            weight_bytes=sum(float(cost.bytes) for cost in weights),
            compute_s=weight_flops / self._rates.weights + (flops - weight_flops) / self._rates.other,
            memory_s=moved / self._rates.bandwidth, comm_s=self._comm_s(prefill + batch),
            serial_s=sum(seconds for _, seconds in totals.values()) + self._comm_s(prefill + batch),
        )  # fmt: skip

    def request_flops(self, prompt: int, output: int) -> float:
        """The prompt, and each further token at the context it has."""
        prefill = self.step(prefill=prompt).flops
        if output < 2:
            return prefill * self._devices
        ends = [self.step(batch=1, context=prompt + i).flops for i in (1, output - 1)]  # linear but for windows
        return (prefill + (output - 1) * sum(ends) / 2) * self._devices

    def _prefill(self, tokens: int, before: int) -> PhaseLoad:
        if not tokens:
            return PhaseLoad()
        return load_of_requests(np.array([tokens]), np.array([before]), windows=self._windows)

    def _decode(self, batch: int, context: int) -> PhaseLoad:
        if not batch:
            return PhaseLoad()
        seen = float(batch) * context
        capped = {window: float(batch) * min(window, context) for window in self._windows}
        return PhaseLoad(
            reqs=float(batch), tokens=float(batch), kv_tokens=seen, qq=float(batch), qk=seen, sampled_rows=float(batch),
            windowed={window: (tokens, tokens) for window, tokens in capped.items()},
        )  # fmt: skip

    def _total(self, category: str, prefill: PhaseLoad, decode: PhaseLoad) -> tuple[Cost, float]:
        """Cost of a category, and its seconds with each kernel at its own roof."""
        rate = self._rates.weights if category in WITH_WEIGHTS else self._rates.other
        peaks = Peaks(flops_per_s=rate, bytes_per_s=self._rates.bandwidth)
        parts = pieces(self._model, category, prefill, decode)
        total = Cost(flops=sum(float(part.flops) for part in parts), bytes=sum(float(part.bytes) for part in parts))
        return total, sum(float(roof_time_ns(part, peaks)) for part in parts) / NS_PER_S

    def _comm_s(self, tokens: int) -> float:
        """All-reduces in a ring: each device sends 2·(n−1)/n of the data."""
        if self._devices == 1 or self._rates.link is None:
            return 0.0
        data = REDUCTIONS_PER_LAYER * self._model.layers * tokens * self._model.hidden * self._model.activation_bytes
        return 2 * (self._devices - 1) / self._devices * data / self._rates.link
