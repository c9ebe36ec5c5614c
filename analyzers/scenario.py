"""From the words of `stepscope predict` to costs and rates: a model, a device, a precision and a convention."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from analyzers.costs.configured import Configured
from analyzers.costs.parallel import Parallel
from analyzers.costs.shape import ModelShape, model_shape
from analyzers.costs.textbook import Textbook, round_parameters
from analyzers.costs.weights import weight_counts
from analyzers.costs.work import Convention, Rates
from analyzers.datasheet import Device, canonical_dtype, flops_of
from analyzers.hardware import PeakOverride, parse_rate, peak_override
from analyzers.predict import predict
from analyzers.prediction import Prediction, Question
from analyzers.presets import model_config
from traces.errors import UsageProblem

CONVENTIONS = ("default", "textbook")
# Bytes per weight, scales included, and the type that products with them compute in (None: the activations').
QUANTIZATIONS: dict[str, tuple[float, str | None]] = {
    "fp8": (1.0, "fp8"),
    "int8": (1.0, "int8"),
    "int4": (0.5 + 2.5 / 128, None),
    "mxfp4": (0.5 + 1 / 32, "fp4"),
    "nvfp4": (0.5 + 1 / 16, "fp4"),
}
_COMPUTE_BY_METHOD = {"fp8": "fp8", "fbgemm_fp8": "fp8"}
_COUNT = re.compile(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmbt]?)\s*", re.IGNORECASE | re.ASCII)
_MOST_COUNT = 1e18  # in its unit: beyond any model, and far from where numbers end
_COUNT_OPTIONS = {"parameters": "--params", "train_tokens": "--train-tokens"}
_COUNT_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything a prediction is made of. `quant`: one of QUANTIZATIONS, 'none', or None for the configuration's own."""

    model_name: str
    config: Mapping[str, Any]
    override: PeakOverride
    convention: str = "default"
    dtype: str | None = None
    quant: str | None = None
    kv_dtype: str | None = None
    parameters: float | None = None  # for the textbook's round number
    link_bandwidth: float | None = None  # bytes/s to other devices, one direction


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A prediction with what it rests on."""

    model: str
    architecture: str
    device: str | None
    tensor_parallel: int
    pipeline_parallel: int
    expert_parallel: int
    data_parallel: int
    dtype: str
    weights_dtype: str
    peak_source: str  # 'user' | 'datasheet' | 'textbook'
    notes: tuple[str, ...]
    question: Question
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What a scenario's words stand for."""

    shape: ModelShape  # of the whole model
    device: Device | None
    dtype: str
    weights_dtype: str
    rates: Rates
    costs: Convention
    book: bool  # whether the rates are the textbook's


def resolve(scenario: Scenario, parallel: Parallel) -> Resolved:
    """Model, device, types, rates and costs. Raises UsageProblem for what is not known; nothing is assumed."""
    shape = _shape(scenario)
    device = scenario.override.device
    dtype = canonical_dtype(scenario.dtype or scenario.config.get("dtype") or scenario.config.get("torch_dtype"))
    if dtype is None:
        raise UsageProblem("the element type of the model is not known", hint="give --dtype bfloat16, for example")
    book = device is not None and scenario.convention == "textbook" and dtype in device.textbook
    weights_dtype = _weights_dtype(scenario, device, dtype)
    rates = _rates(scenario, device, dtype, weights_dtype, book=book)
    return Resolved(
        shape=shape, device=device, dtype=dtype, weights_dtype=weights_dtype, rates=rates,
        costs=_costs(scenario, shape, rates, parallel), book=book,
    )  # fmt: skip


def expect(scenario: Scenario, question: Question) -> Expectation:
    """Predict. Raises UsageProblem for a model, device or precision that is not known; nothing is assumed."""
    found = resolve(scenario, question.parallel)
    device, dtype, weights_dtype, rates = found.device, found.dtype, found.weights_dtype, found.rates
    if scenario.convention == "textbook":
        question = replace(question, memory_share=1.0)
    given = scenario.override.peak_flops is not None or scenario.override.bandwidth is not None
    return Expectation(
        model=scenario.model_name, architecture=found.shape.architecture, device=device.name if device else None,
        tensor_parallel=question.tensor_parallel, pipeline_parallel=question.pipeline_parallel,
        expert_parallel=question.expert_parallel, data_parallel=question.data_parallel, dtype=dtype,
        weights_dtype=weights_dtype,
        peak_source="user" if given else "textbook" if found.book else "datasheet",
        notes=tuple(_notes(scenario, found.shape, device, dtype, weights_dtype, question, rates.link)),
        question=question,
        prediction=predict(found.costs, rates, question, device_bytes=device.memory_bytes if device else None),
    )  # fmt: skip


def asked(words: Mapping[str, Any]) -> tuple[Scenario, Question]:
    """From the options of the command. Raises UsageProblem for what they do not name."""
    words = {key: value for key, value in words.items() if value is not None and value != ()}
    asked_of = {item.name for item in fields(Question)}
    counts = {key: parse_count(words[key], option) for key, option in _COUNT_OPTIONS.items() if key in words}
    scenario = Scenario(
        model_name=words["model"],
        config=model_config(words["model"]),
        override=peak_override(words.get("gpu"), words.get("peak_flops"), words.get("bandwidth")),
        parameters=counts.get("parameters"),
        link_bandwidth=parse_rate(words["link_bandwidth"], "--link-bandwidth") if "link_bandwidth" in words else None,
        **{key: words[key] for key in ("convention", "dtype", "quant", "kv_dtype") if key in words},
    )
    return scenario, Question(**{key: value for key, value in {**words, **counts}.items() if key in asked_of})


def _shape(scenario: Scenario) -> ModelShape:
    config = dict(scenario.config)
    if scenario.quant is not None:
        config.pop("quantization_config", None)
    shape = model_shape(config, dtype=scenario.dtype, kv_dtype=scenario.kv_dtype)
    if scenario.quant is None or scenario.quant == "none":
        return shape
    size, _ = _quantization(scenario.quant)
    return replace(shape, linear_bytes=size, expert_bytes=size)


def _quantization(name: str) -> tuple[float, str | None]:
    if name not in QUANTIZATIONS:
        known = ", ".join([*QUANTIZATIONS, "none"])
        raise UsageProblem(f"unknown quantization {name}", hint=f"known: {known}")
    return QUANTIZATIONS[name]


def _weights_dtype(scenario: Scenario, device: Device | None, dtype: str) -> str:
    """What products with weights compute in: the quantized type where the device has units for it."""
    if scenario.quant is None:
        own = scenario.config.get("quantization_config")
        method = str(own.get("quant_method", "")).lower() if isinstance(own, Mapping) else ""
        wanted = _COMPUTE_BY_METHOD.get(method)
    else:
        wanted = None if scenario.quant == "none" else _quantization(scenario.quant)[1]
    if wanted is None or scenario.convention == "textbook" or (device is not None and wanted not in device.flops):
        return dtype
    return wanted


def _rates(scenario: Scenario, device: Device | None, dtype: str, weights_dtype: str, *, book: bool) -> Rates:
    override = scenario.override
    other = override.peak_flops or (device.textbook[dtype] if device and book else _flops(device, dtype))
    weights = override.peak_flops or (other if weights_dtype == dtype else _flops(device, weights_dtype))
    bandwidth = override.bandwidth or (device.textbook["bandwidth"] if device and book else None)
    bandwidth = bandwidth or (device.bandwidth if device else None)
    if other is None or weights is None or bandwidth is None:
        if device is None:
            raise UsageProblem(
                "no device is given", hint="give --gpu NAME, or both --peak-flops and --bandwidth (990T, 3.35TB/s)"
            )
        raise UsageProblem(
            f"{device.name} has no matrix units for {dtype}", hint="give --dtype float16, or --peak-flops"
        )
    return Rates(weights=weights, other=other, bandwidth=bandwidth, link=scenario.link_bandwidth or _link(device))


def _flops(device: Device | None, dtype: str) -> float | None:
    return None if device is None else flops_of(device, dtype)


def _link(device: Device | None) -> float | None:
    """Bytes/s in one direction: over links between devices, else over PCIe."""
    return None if device is None else device.peer_bytes_s


def _costs(scenario: Scenario, shape: ModelShape, rates: Rates, parallel: Parallel) -> Convention:
    tied = bool(scenario.config.get("tie_word_embeddings", False))
    if scenario.convention == "textbook":
        count = scenario.parameters or round_parameters(scenario.model_name) or weight_counts(shape, tied=tied).total
        if parallel.expert > 1:
            raise UsageProblem("the textbook convention has no experts", hint="leave out --ep or --convention textbook")
        parallel.check(shape)
        return Textbook(shape, rates, parameters=count, parallel=parallel)
    if scenario.convention == "default":
        return Configured(shape, rates, tied=tied, parallel=parallel)
    raise UsageProblem(f"unknown convention {scenario.convention}", hint=f"known: {', '.join(CONVENTIONS)}")


def _notes(
    scenario: Scenario,
    shape: ModelShape,
    device: Device | None,
    dtype: str,
    weights_dtype: str,
    question: Question,
    link: float | None,
) -> list[str]:
    """What a reader should know of these numbers."""
    notes = []
    used = {"bandwidth", "memory", dtype, weights_dtype}
    for cell in () if device is None else device.uncertain:
        if cell in used:
            remark = device.remarks.get(cell, "one source only") if device else ""
            notes.append(f"uncertain: {cell} of {device.name if device else ''} ({remark})")
    if scenario.convention == "default" and shape.moe is not None:
        notes.append("experts: uniform routing is assumed; skewed routing reads fewer weights")
    notes += _parallel_notes(scenario, device, question, link)
    if scenario.quant not in (None, "none") and weights_dtype == dtype:
        notes.append(f"products with {scenario.quant} weights compute in {dtype}")
    if question.decode_context > _longest(scenario.config, question.decode_context):
        notes.append(f"the context is longer than the model's {_longest(scenario.config, 0):,} tokens")
    return notes


def _parallel_notes(scenario: Scenario, device: Device | None, question: Question, link: float | None) -> list[str]:
    """On what several devices add, and what was assumed of them."""
    parallel, notes = question.parallel, []
    if parallel.tensor > 1 or parallel.pipeline > 1 or parallel.expert > 1:
        if scenario.convention == "textbook":
            notes.append("communication between devices: not counted in this convention")
        elif link is None:
            notes.append(
                "communication: bytes only, no floor has its time (the link is not known: give --link-bandwidth)"
            )
        else:
            source = (
                "given" if scenario.link_bandwidth else "PCIe" if device and not device.link_bytes_s else "datasheet"
            )
            uncertain = " (uncertain)" if source == "datasheet" and device and "link" in device.uncertain else ""
            notes.append(f"communication: counted at {link / 1e9:g} GB/s ({source}){uncertain}, latency not counted")
    if parallel.pipeline > 1:
        notes.append(
            f"pipeline: floors and TPOT pass through all {parallel.pipeline} stages; tokens/s is the limit without bubbles, "
            f"{parallel.pipeline} steps in flight"
        )
    if parallel.shared_replicas > 1:
        notes.append(f"experts: {parallel.shared_replicas} replicas with equal load at the same time are assumed")
    return notes


def parse_count(text: str, option: str) -> float:
    """'70B', '160e9', '2.5M' as a number. Raises UsageProblem."""
    match = _COUNT.fullmatch(text)
    if match is None or not 0 < float(match[1]) <= _MOST_COUNT:
        raise UsageProblem(f"{option} {text} is not a number", hint="such as 70B or 160e9")
    return float(match[1]) * _COUNT_UNITS[match[2].lower()]


def _longest(config: Mapping[str, Any], default: int) -> int:
    value = config.get("max_position_embeddings")
    return value if isinstance(value, int) else default
