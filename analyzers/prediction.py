"""A question about a model on a device, and the answers, as values. Seconds are floats, since nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass

from analyzers.costs.comm import Collectives
from analyzers.costs.parallel import Parallel

PREFILL_BESIDE = (256, 1_024, 4_096)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked. Tokens; rates in tokens/s; price per device and hour."""

    prompt: int = 2_048
    context: int | None = None  # default: the prompt
    batch: int = 1
    output: int = 128
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    expert_parallel: int = 1
    data_parallel: int = 1
    turns: int | None = None
    per_turn: int = 200  # by how much the prompt grows from turn to turn, earlier answers included
    prefill_rate: float | None = None
    decode_rate: float | None = None
    price: float | None = None
    beside: tuple[int, ...] = PREFILL_BESIDE  # prefill tokens added to a decode step
    train_tokens: float | None = None
    memory_share: float = 0.9  # of the device's memory that weights and cache may take

    @property
    def decode_context(self) -> int:
        """Tokens that a decoding request attends to."""
        return self.prompt if self.context is None else self.context

    @property
    def parallel(self) -> Parallel:
        """How the model is divided."""
        return Parallel(
            tensor=self.tensor_parallel, pipeline=self.pipeline_parallel, expert=self.expert_parallel,
            data=self.data_parallel,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication(Collectives):
    """Over all stages of the pipeline. Bytes beside `message_bytes` are of all of them and of one rank."""

    bus_bytes: float  # sent
    wire_bytes: float  # sent and received
    floor_s: float | None  # None: the link's rate is not known


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFloor:
    """One step of one phase on one device; with pipeline stages, on one device of each in turn."""

    tokens: int
    flops: float
    bytes: float
    intensity: float  # FLOP/byte of the step
    weight_intensity: float  # FLOP/byte of the products with weights alone
    ridge: float  # FLOP/byte from which on this step would be computing-bound
    side: str
    compute_s: float
    memory_s: float
    comm_s: float | None  # None: the link's rate is not known, and the floor is without it
    comm_bytes: float  # that a rank sends
    communication: tuple[Communication, ...]
    floor_s: float  # through all stages
    period_s: float  # between two steps at least, with as many in flight as there are stages
    serial_s: float | None
    tokens_per_s: float  # of all replicas, at one step per period


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFloor:
    """Decode with `batch` requests per step and replica."""

    batch: int
    tpot_s: float
    tokens_per_s: float  # of all replicas, at one step per period
    intensity: float
    side: str
    kv_bytes: float
    fits: bool | None
    price_per_million: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RidgeBatch:
    """From which batch on decode computes longer than it reads, at one context."""

    context: int
    batch: int | None  # None: at no batch
    ceiling: float  # FLOP/byte that decode tends to as the batch grows
    ridge: float
    kv_bytes: float | None  # of that batch
    fits: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Bytes on one device; of a pipeline, no device needs more."""

    weights_bytes: float
    weights_read_s: float
    kv_bytes: float  # of the batch asked for, at its context
    total_bytes: float
    device_bytes: int | None
    usable_bytes: float | None
    headroom_bytes: float | None  # usable − total
    fits: bool | None
    kv_capacity_tokens: int | None
    kv_capacity_requests: int | None  # at the context asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFloor:
    """One pipeline stage: what a device of it holds, and its part of the two steps."""

    stage: int  # from 0
    layers: float
    weights_bytes: float
    kv_bytes_per_token: float
    prefill_s: float
    decode_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """All devices. A pipeline without bubbles needs a step in flight per stage, each with its own requests."""

    devices: int
    replicas: int
    requests_in_flight: int  # of one replica
    kv_bytes_in_flight: float  # on one device
    fits_in_flight: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGrowth:
    """Cache of one request on one device, `more` tokens after the context."""

    more: int
    tokens: int
    kv_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn of a growing conversation, without and with a prefix cache."""

    turn: int
    prompt_tokens: int
    ttft_s: float
    ttft_cached_s: float
    decode_s: float
    prefill_share: float  # of TTFT and decode together
    prefill_share_cached: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A decode step with prefill tokens added."""

    prefill_tokens: int
    step_s: float
    added_s: float  # that the decoding requests wait longer
    saved_s: float  # against two separate steps: weights are read once
    flops: float
    bytes: float
    intensity: float
    side: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesOfThumb:
    """Operations of a request (prompt and output) and of training, and what they take at the peak of all devices."""

    parameters: float
    active_parameters: float
    request_flops: float
    training_flops: float | None  # 6 per weight and token
    training_device_days: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Per million tokens, at the floors: no deployment is cheaper."""

    per_device_hour: float
    prefill_per_million: float
    decode_per_million: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The answers, under one convention."""

    convention: str
    peak_flops: float
    peak_bandwidth: float
    ridge: float
    prefill: PhaseFloor
    decode: PhaseFloor
    kv_bytes_per_token: float
    kv_growth: tuple[KvGrowth, ...]
    ridge_batch: RidgeBatch
    batches: tuple[BatchFloor, ...]
    memory: MemoryNeed
    stages: tuple[StageFloor, ...]
    deployment: Deployment
    turns: tuple[Turn, ...]
    beside: tuple[Beside, ...]
    prices: Prices | None
    rules: RulesOfThumb
