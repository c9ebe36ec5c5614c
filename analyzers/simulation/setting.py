"""From the words of `stepscope idle --simulate` to a server: what it runs on, how it schedules, what it draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analyzers.costs.parallel import Parallel
from analyzers.datasheet import Device
from analyzers.scenario import Resolved, Scenario, asked, resolve
from analyzers.simulation.steptime import StepTime, step_time
from traces.clock import NS_PER_S
from traces.errors import UsageProblem

GIB = 1 << 30
US = 1_000
ROUTES = ("affinity", "random", "round-robin")  # see pool.py
EFFICIENCIES = (0.4, 0.6, 0.8)
PAGE_TOKENS = 16  # vLLM's block size on GPUs
# What vLLM's API server takes by device memory (EngineArgs.get_batch_defaults, 0.32): tokens per step, requests.
_BATCH_DEFAULTS = ((160 * GIB, 16_384, 1_024), (70 * GIB, 8_192, 1_024), (0, 2_048, 256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A pool of equal servers. Watts are of one device."""

    pool: int = 1
    route: str = "affinity"
    seed: int = 0
    efficiency: float = 0.6  # roof time / time of a step
    host_ns: int = 500 * US  # per step, the device idle
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2_048
    kv_tokens: int = 1
    max_model_len: int | None = None  # None: not limited
    window_ns: int | None = None  # None: until the last request is done
    prefix_caching: bool = True
    active_percent: float = 5.0  # a second that is busy for less is execution-idle
    idle_w: float | None = None  # with a program resident and nothing to do
    active_w: float | None = None  # while a step runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What every server of the pool is."""

    model: str
    device: str
    tensor_parallel: int
    dtype: str
    setting: Setting
    step_time: StepTime
    weights_bytes: float  # of one device
    kv_bytes_per_token: float
    longest: int | None  # tokens that the model was made for
    notes: tuple[str, ...]


def server_of(words: Mapping[str, Any]) -> Server:
    """From the options of the command; None counts as not given.

    Raises UsageProblem for an unknown model, device or route, and where the weights leave no room for a cache.
    """
    words = {key: value for key, value in words.items() if value is not None}
    if "model" not in words or "gpu" not in words:
        raise UsageProblem("a simulation needs a model and a device", hint="give --model llama-3.1-8b --gpu H100-SXM")
    scenario, _ = asked({key: words[key] for key in words if key not in ("pool", "route", "seed")})
    parallel = Parallel(tensor=words.get("tensor_parallel", 1))
    found = resolve(scenario, parallel)
    device = found.device
    if device is None:
        raise AssertionError("a device was named")
    setting = _setting(words, device, found)
    return Server(
        model=scenario.model_name, device=device.name, tensor_parallel=parallel.tensor, dtype=found.dtype,
        setting=setting, step_time=step_time(found.shape, found.rates, parallel),
        weights_bytes=found.costs.weights_bytes, kv_bytes_per_token=found.costs.kv_bytes_per_token,
        longest=_longest(scenario), notes=tuple(_notes(words, device, setting)),
    )  # fmt: skip


def _setting(words: Mapping[str, Any], device: Device, found: Resolved) -> Setting:
    own = Setting()
    tokens, seqs = batch_defaults(device)
    route = words.get("route", own.route)
    if route not in ROUTES:
        raise UsageProblem(f"unknown route {route}", hint=f"known: {', '.join(ROUTES)}")
    minutes = words.get("minutes")
    overhead = words.get("host_overhead_us")
    return Setting(
        pool=words.get("pool", own.pool), route=route, seed=words.get("seed", own.seed),
        efficiency=words.get("efficiency", own.efficiency),
        host_ns=own.host_ns if overhead is None else round(overhead * US),
        max_num_seqs=words.get("max_num_seqs", seqs),
        max_num_batched_tokens=words.get("max_num_batched_tokens", tokens),
        kv_tokens=_kv_tokens(words, device, found), max_model_len=words.get("max_model_len"),
        window_ns=None if minutes is None else round(minutes * 60 * NS_PER_S),
        prefix_caching=words.get("prefix_caching", own.prefix_caching),
        idle_w=words.get("idle_watts", device.loaded_idle_w), active_w=words.get("active_watts", device.tdp_w),
    )  # fmt: skip


def batch_defaults(device: Device) -> tuple[int, int]:
    """max_num_batched_tokens and max_num_seqs that vLLM's API server takes on this device."""
    large = device.memory_bytes if "a100" not in device.name.lower() else min(device.memory_bytes, 70 * GIB - 1)
    return next((tokens, seqs) for least, tokens, seqs in _BATCH_DEFAULTS if large >= least)


def _kv_tokens(words: Mapping[str, Any], device: Device, found: Resolved) -> int:
    """Room of the cache; whole tokens. A layer with a window is counted as if it kept the whole context."""
    share = words.get("memory_share", 0.9)
    left = device.memory_bytes * share - found.costs.weights_bytes
    given: int | None = words.get("kv_tokens")
    room = int(left // found.costs.kv_bytes_per_token)
    if left <= 0 or (given is None and room < PAGE_TOKENS):
        raise UsageProblem(
            f"{words['model']} does not fit on {device.name}: {found.costs.weights_bytes / 1e9:.1f} GB of weights on "
            f"each device, {device.memory_bytes * share / 1e9:.1f} GB to be used",
            hint="divide it with --tp, store it smaller with --quant fp8, or take a larger device",
        )
    return room if given is None else given


def _longest(scenario: Scenario) -> int | None:
    value = scenario.config.get("max_position_embeddings")
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _notes(words: Mapping[str, Any], device: Device, setting: Setting) -> list[str]:
    """What was assumed."""
    notes = []
    if "efficiency" not in words:
        notes.append(
            f"efficiency {setting.efficiency:g} is assumed, not measured: see the sensitivity, or give --efficiency"
        )
    if "host_overhead_us" not in words:
        notes.append(f"{setting.host_ns / US:g} µs of host time per step are assumed: give --host-overhead-us")
    if setting.idle_w is None:
        notes.append(
            f"the power of an idle {device.name} with a program on it is not known: give --idle-watts for energy"
        )
    elif "active_watts" not in words:
        notes.append(
            f"power while busy is the board limit of {setting.active_w:g} W, the most it can be: --active-watts"
        )
    return notes
