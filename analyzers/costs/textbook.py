"""The way teaching material counts, for checking its figures and for explaining ours.

A layer is 24·d² operations per token (4 attention projections of d², a feed-forward of three matrices d × 8/3·d) and
4·S·d for attention to S tokens; no causal discount, no vocabulary product, nothing else. Weights are read once per
step, as many as the model's round name says, with 2 bytes each; the cache is read once; activations are free.
"""

from __future__ import annotations

import re

from analyzers.costs.parallel import Parallel
from analyzers.costs.shape import ModelShape
from analyzers.costs.work import Rates, Stage, Work

WEIGHT_BYTES = 2
_ROUND = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z])", re.IGNORECASE)


def round_parameters(name: str) -> float | None:
    """The number in a model's name: 7e9 for 'llama-2-7b'. None where the name has none."""
    match = _ROUND.search(name)
    return None if match is None else float(match[1]) * (1e9 if match[2].lower() == "b" else 1e6)


class Textbook:
    """Costs by the rules above. Several devices divide everything evenly, and nothing is sent. `parallel` was checked."""

    name = "textbook"

    def __init__(self, model: ModelShape, rates: Rates, *, parameters: float, parallel: Parallel) -> None:
        self._layers, self._hidden, self._rates = model.layers, model.hidden, rates
        self._devices, self._stages = parallel.tensor, parallel.pipeline
        divided = self._devices * self._stages
        self.parameters = self.active_parameters = parameters
        self.weights_bytes = WEIGHT_BYTES * parameters / divided
        self.kv_bytes_per_token = model.layers * model.kv_width * WEIGHT_BYTES / divided
        stage = Stage(
            layers=model.layers / self._stages, weights_bytes=self.weights_bytes,
            kv_bytes_per_token=self.kv_bytes_per_token,
        )  # fmt: skip
        self.stages = (stage,) * self._stages

    def kv_bytes(self, context: int) -> float:
        """Cache of one request."""
        return context * self.kv_bytes_per_token

    def step(self, *, prefill: int = 0, before: int = 0, batch: int = 0, context: int = 0) -> Work:
        """Of all layers."""
        tokens = prefill + batch
        layer = 24 * self._hidden**2
        seen = prefill * (before + prefill) + batch * context
        flops = self._layers * (tokens * layer + 4 * seen * self._hidden) / self._devices
        held = self.kv_bytes(before + prefill if prefill else 0) + batch * self.kv_bytes(context)
        moved = self._stages * (self.weights_bytes + held)
        compute_s, memory_s = flops / self._rates.weights, moved / self._rates.bandwidth
        each = max(compute_s, memory_s) / self._stages
        return Work(
            flops=flops, bytes=moved, weight_flops=self._layers * tokens * layer / self._devices,
            weight_bytes=self._layers * layer / 2 * WEIGHT_BYTES / self._devices,
            compute_s=compute_s, memory_s=memory_s, stage_s=(each,) * self._stages if self._stages > 1 else (),
        )  # fmt: skip

    def request_flops(self, prompt: int, output: int) -> float:
        """2 per weight and token."""
        return 2 * self.parameters * (prompt + output)
