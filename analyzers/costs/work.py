"""A step as an estimate sees it: operations, bytes, and the least time they can take on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from analyzers.costs.comm import Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one device reaches. Weight products may run in a narrower type than the rest."""

    weights: float  # FLOP/s of products with weights
    other: float  # FLOP/s of everything else
    bandwidth: float  # bytes/s
    link: float | None = None  # bytes/s to other devices in one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One step on one device; of a pipeline, on one device of each stage in turn, and sums over these."""

    flops: float
    bytes: float
    weight_flops: float  # of products with weights, and the bytes that only these move
    weight_bytes: float
    compute_s: float
    memory_s: float
    transfers: tuple[Transfer, ...] = ()
    comm_s: float | None = 0.0  # None where there are transfers and the link's rate is not known
    stage_s: tuple[float, ...] = ()  # floors of the pipeline's stages, where there are several
    serial_s: float | None = None  # kernels one after another, each at its own roof; None where not modelled

    @property
    def floor_s(self) -> float:
        """No step of this work is faster: the slower of computing and reading, and what is sent in between."""
        if self.stage_s:
            return sum(self.stage_s)
        return max(self.compute_s, self.memory_s) + (self.comm_s or 0.0)

    @property
    def period_s(self) -> float:
        """No pipeline completes such steps at shorter intervals, however many are in flight: the slowest stage's floor."""
        return max(self.stage_s, default=self.floor_s)

    @property
    def intensity(self) -> float:
        """FLOP per byte of the whole step."""
        return self.flops / self.bytes

    @property
    def weight_intensity(self) -> float:
        """FLOP per byte of the products with weights alone."""
        return self.weight_flops / self.weight_bytes

    @property
    def ridge(self) -> float:
        """FLOP per byte at which computing and reading would take equally long, with this step's mix of types."""
        return self.intensity * self.memory_s / self.compute_s

    @property
    def side(self) -> str:
        """'compute' | 'memory': what limits."""
        return "compute" if self.compute_s >= self.memory_s else "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """What one device of a pipeline stage holds."""

    layers: float
    weights_bytes: float
    kv_bytes_per_token: float


class Convention(Protocol):
    """A way of counting. Steps are one device's share. Sizes are one device's, of a pipeline the most of any stage's."""

    name: str
    stages: tuple[Stage, ...]
    kv_bytes_per_token: float
    weights_bytes: float
    parameters: float  # of the whole model
    active_parameters: float  # what one token is computed with

    def step(self, *, prefill: int = 0, before: int = 0, batch: int = 0, context: int = 0) -> Work:
        """One request's `prefill` new tokens after `before` computed ones, beside `batch` decodes at `context`."""
        ...

    def kv_bytes(self, context: int) -> float:
        """Cache of one request with `context` tokens, on one device."""
        ...

    def request_flops(self, prompt: int, output: int) -> float:
        """Operations of a whole request, over all devices."""
        ...
