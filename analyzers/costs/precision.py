"""Element sizes in bytes: of activations, of the cache, and of weights with the scales that quantization adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.errors import UsageProblem

_DTYPE_BYTES: dict[str, float] = {
    "float32": 4, "float": 4, "bfloat16": 2, "float16": 2, "half": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1,
}  # fmt: skip


def dtype_bytes(config: Mapping[str, Any], dtype: str | None = None) -> float:
    """Of one activation. Raises UsageProblem where neither `dtype` nor the configuration says."""
    name = dtype if dtype not in (None, "auto") else config.get("dtype") or config.get("torch_dtype")
    size = _DTYPE_BYTES.get(str(name).removeprefix("torch."))
    if size is None:
        raise UsageProblem(
            f"the element type of the model is not known ({name})",
            hint=f"give one of {', '.join(sorted(_DTYPE_BYTES))}",
        )
    return size


def kv_dtype_bytes(config: Mapping[str, Any], dtype: str | None, kv_dtype: str | None) -> float:
    """Of one cache element; 'auto' and None mean the model's own type."""
    return dtype_bytes(config, dtype if kv_dtype in (None, "auto") else kv_dtype)


def weight_bytes(config: Mapping[str, Any], dtype: str | None) -> tuple[float, float]:
    """Of one weight of a dense layer and of an expert, scales and zero points included."""
    plain = dtype_bytes(config, dtype)
    quantization = config.get("quantization_config")
    if not quantization:
        return plain, plain
    if not isinstance(quantization, Mapping):
        raise _unknown(quantization)
    method = str(quantization.get("quant_method") or quantization.get("quant_algo") or "").lower()
    if method == "mxfp4":  # gpt-oss: the experts only; one 8-bit scale per 32
        return plain, 0.5 + 1 / 32
    size = _size_of(method, quantization)
    return size, size


def _size_of(method: str, quantization: Mapping[str, Any]) -> float:
    if method in {"fp8", "fbgemm_fp8"}:
        block = quantization.get("weight_block_size")
        return 1 + 4 / (block[0] * block[1]) if block else 1.0  # one float32 scale per block
    if method in {"gptq", "awq", "gptq_marlin", "awq_marlin", "auto-round", "auto_round"}:
        bits = float(quantization.get("bits") or quantization.get("w_bit") or 4)
        group = int(quantization.get("group_size") or quantization.get("q_group_size") or 128)
        # per group a 16-bit scale and a zero point; −1: one per column, which adds next to nothing
        return bits / 8 + ((2 + bits / 8) / group if group > 0 else 0)
    if method in {"bitsandbytes", "bnb"}:
        if quantization.get("load_in_4bit"):
            return 0.5 + 4 / 64
        if quantization.get("load_in_8bit"):
            return 1.0
    if method == "modelopt" or method in {"nvfp4", "modelopt_fp4"}:
        algorithm = str(quantization.get("quant_algo") or method).upper()
        if "FP4" in algorithm:
            return 0.5 + 1 / 16
        if "FP8" in algorithm:
            return 1.0
    if method in {"compressed-tensors", "compressed_tensors"}:
        return _compressed(quantization)
    raise _unknown(method)


def _compressed(quantization: Mapping[str, Any]) -> float:
    groups = quantization.get("config_groups")
    if isinstance(groups, Mapping):
        for group in groups.values():
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping) and weights.get("num_bits"):
                size = int(weights.get("group_size") or 0)
                return float(weights["num_bits"]) / 8 + (2 / size if size > 0 else 0)
    raise _unknown("compressed-tensors without num_bits")


def _unknown(what: object) -> UsageProblem:
    return UsageProblem(
        f"the cost model does not know the quantization {what!r}",
        hint="give a configuration without quantization_config to count unquantized weights",
    )
