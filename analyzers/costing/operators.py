"""What one call of a recorded operator costs, from its operands (method §5).

Attention and routed experts cannot be told from operands alone: their contexts and widths are the step's and the
model's, so these come back as a description that analyzers/costing/ completes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from analyzers.costing.operands import Operand
from analyzers.costs.attention import triangle
from analyzers.costs.cost import Cost
from analyzers.costs.gemm import gemm
from analyzers.costs.norms import activation, layer_norm, rms_norm

Operands = Sequence[Operand | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Geometry of an attention call; `kv_bytes` per element of the cache."""

    heads_q: int
    heads_kv: int
    dim_qk: int
    dim_v: int
    activation_bytes: float
    kv_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Cost of one call. Exactly one of `cost`, `heads` and `expert_rows` is set.

    `soft`: each operand counted once, which a kernel that touches part of one does not do; dropped where that would be
    faster than the device. `dtype`: what it computes in.
    """

    cost: Cost | None = None
    heads: Heads | None = None
    expert_rows: int | None = None
    soft: bool = False
    dtype: str | None = None


NOTHING_MOVED = Call(cost=Cost(flops=0, bytes=0))

# They compute through operators below them, and cost something themselves only where there are none.
COMPOSITE = re.compile(
    r"^aten::(linear|matmul|to|_to_copy|clone|contiguous|reshape|mean|einsum|embedding|embedding_bag|scaled_dot_product_attention|"
    r"softmax|log_softmax|layer_norm|rms_norm|conv1d|stack|zeros|zeros_like|ones|ones_like|full|full_like|arange|"
    r"type_as|repeat|argsort|item|is_nonzero|index_put_?|batch_norm|dropout|norm|std|where|chunk|split|cat)$"
    r"|^vllm::(unified_attention.*|unified_kv_cache_update|moe_forward.*|all_reduce|inplace_fused_experts|.*_gemm)$"
)
_VIEWS = re.compile(
    r"^aten::(view|_unsafe_view|_reshape_alias|reshape|as_strided|slice|select|narrow|transpose|t|permute|movedim|unsqueeze|"
    r"squeeze|expand|expand_as|broadcast_to|chunk|split|split_with_sizes|tensor_split|unbind|unflatten|flatten|alias|"
    r"view_as|unfold|diagonal|detach_?|lift_fresh|empty.*|new_empty.*|resize_?|resize_as_|set_|result_type|can_cast|"
    r"resolve_conj|resolve_neg|_has_compatible_shallow_copy_type|is_pinned|size|stride|numpy_T|record_stream|"
    r"_local_scalar_dense|item|is_nonzero|contiguous|to|linear|matmul|mean|clone|_to_copy)$|^detach|^(cuda|hip)"
)
_BINARY = re.compile(
    r"^aten::(add|sub|mul|div|pow|rsub|maximum|minimum|fmod|remainder|floor_divide|eq|ne|lt|le|gt|ge|bitwise_.*|logical_.*|"
    r"where|masked_fill|addcmul|lerp)_?$"
)
_UNARY = re.compile(
    r"^aten::(neg|exp|log|rsqrt|sqrt|sin|cos|abs|floor|ceil|round|reciprocal|square|erf|sign|silu|gelu|relu|tanh|sigmoid|"
    r"hardswish|softplus|clamp|clamp_min|clamp_max|isnan|isinf|_softmax|_log_softmax|softmax|log_softmax|cumsum|sort|flip|"
    r"roll|tril|triu|msort)_?$"
)
_WRITES = re.compile(r"^aten::(fill|zero|exponential|uniform|bernoulli|normal|random|zeros|ones|full|arange)_?$")
_READS = re.compile(
    r"^aten::(sum|max|min|amax|amin|any|all|prod|var|argmax|argmin|topk|count_nonzero|multinomial|nonzero|equal|mean)$"
)
_ROWS = re.compile(r"^aten::(embedding|index_select|gather)$")
_RUNTIME_SIZES = re.compile(
    r"^aten::(index|_?index_put_?.*|masked_select|index_copy_?|index_add_?|scatter.*|unique.*)$"
)


def call_cost(name: str, category: str, arguments: Operands) -> Call | None:
    """Cost of one call of operator `name` that runs activities of `category`; None where operands do not tell.

    Collectives have a module of their own (collectives.py).
    """
    tensors = [each for each in arguments if each is not None]
    if category in ("gemm", "logits"):
        return _gemm(name, tensors)
    if category == "comm":
        return None
    if category == "attention":
        return _attention(name, tensors)
    if category == "moe":
        return _experts(name, tensors)
    if category == "kv_cache":
        return _kv_cache(tensors)
    if category == "norm" and "norm" in name.lower():
        return _norm(name, tensors)
    if category == "activation" and "_and_mul" in name:
        return _gated(tensors)
    if category == "rope" and "rotary" in name:
        return _rotary(tensors)
    return _streaming(name, category, arguments)


def _gemm(name: str, tensors: Sequence[Operand]) -> Call | None:
    if name in {"aten::bmm", "aten::baddbmm"}:
        return _batched(tensors[-2:])
    out_first = name.startswith(("_C::onednn", "_C::cutlass", "_C::cpu_gemm"))
    if name in ("aten::addmm", "aten::addmv") and len(tensors) >= 3:
        return _product(tensors[1], tensors[2], bias=True, transposed=False)
    if name == "aten::mm" and len(tensors) >= 2:
        return _product(tensors[0], tensors[1], bias=False, transposed=False)
    matrices = [each for each in tensors if len(each.dims) >= 2]
    if len(matrices) < 2:
        return None
    if out_first:
        return _with_output(matrices, bias=any(len(each.dims) == 1 for each in tensors))
    first, weight = matrices[0], matrices[1]
    bias = any(each.dims == (weight.dims[0],) for each in tensors[2:])
    if len(weight.dims) == 2 and weight.dims[1] == first.dims[-1]:
        return _product(first, weight, bias=bias, transposed=True)
    if len(weight.dims) == 2 and weight.dims[0] == first.dims[-1]:
        return _product(
            first, weight, bias=bias or any(each.dims == (weight.dims[1],) for each in tensors[2:]), transposed=False
        )
    return None


def _product(first: Operand, weight: Operand, *, bias: bool, transposed: bool) -> Call | None:
    if first.size is None or weight.size is None or len(first.dims) < 1 or len(weight.dims) != 2:
        return None
    inner = first.dims[-1]
    rows = first.elements // inner if inner else 0
    width = weight.dims[0] if transposed else weight.dims[1]
    if inner != weight.dims[1 if transposed else 0]:
        return None
    return _matrix_call(rows, inner, width, first, weight, bias=bias)


def _with_output(matrices: Sequence[Operand], *, bias: bool) -> Call | None:
    """Operators that take where to write first: C[M,N], A[M,K] and, if it is a tensor, the weight."""
    out, first = matrices[0], matrices[1]
    if out.dims[0] != first.dims[0] or first.size is None:
        return None
    weight = matrices[2] if len(matrices) > 2 else first
    return _matrix_call(first.dims[0], first.dims[1], out.dims[1], first, weight, bias=bias, out=out)


def _matrix_call(
    rows: int, inner: int, width: int, first: Operand, weight: Operand, *, bias: bool, out: Operand | None = None
) -> Call:
    size = float(first.size or 0)
    out_bytes = float(out.size) if out is not None and out.size else max(size, 2.0) if size < 2 else size
    cost = gemm(
        rows, inner, width, a_bytes=size, weight_bytes=float(weight.size or size), out_bytes=out_bytes, bias=bias
    )
    return Call(cost=cost, dtype=first.dtype)


def _batched(tensors: Sequence[Operand]) -> Call | None:
    if len(tensors) < 2 or any(len(each.dims) != 3 or each.size is None for each in tensors):
        return None
    one, two = tensors
    call = _matrix_call(one.dims[1], one.dims[2], two.dims[2], one, two, bias=False)
    return None if call.cost is None else Call(cost=call.cost.times(one.dims[0]), dtype=call.dtype)


def _attention(name: str, tensors: Sequence[Operand]) -> Call | None:
    if "scheduler_metadata" in name:
        return NOTHING_MOVED
    if len(tensors) < 2 or tensors[0].size is None:
        return None
    query, key = tensors[0], tensors[1]
    if len(query.dims) == 4:
        return _whole_prompts(name, query, key)
    if len(query.dims) != 3 or key.size is None:
        return None
    own = next(
        (
            each
            for each in tensors[1:3]
            if len(each.dims) == 3 and each.dims[0] == query.dims[0] and each.dims[2] == query.dims[2]
        ),
        key,
    )
    heads_kv = _cache_heads(query.dims[1], own)
    if heads_kv is None or len(query.dims) < 3:
        return None
    kv_bytes = float(min(query.size or 2, key.size))  # 8-bit queries mean an 8-bit cache
    heads = Heads(
        heads_q=query.dims[1], heads_kv=heads_kv, dim_qk=query.dims[2], dim_v=query.dims[2],
        activation_bytes=float(query.size or 0), kv_bytes=kv_bytes,
    )  # fmt: skip
    return Call(heads=heads, dtype=query.dtype)


def _cache_heads(heads_q: int, key: Operand) -> int | None:
    """Key heads of [tokens, heads, d], [pages, heads, size, d] or [pages, size, heads, d]; page sizes do not divide."""
    if len(key.dims) == 3:
        return key.dims[1] if key.dims[1] and heads_q % key.dims[1] == 0 else None
    if len(key.dims) < 4:
        return None
    fitting = [length for length in key.dims[1:3] if length and heads_q % length == 0]
    return min(fitting) if fitting else None


def _whole_prompts(name: str, query: Operand, key: Operand) -> Call | None:
    """Padded batches: [batch, heads, tokens, d] (the scaled_dot_product family and what it hands to cuDNN), else
    [batch, tokens, heads, d].

    Causal, the new tokens last: decoder models. A single new token sees the whole context.
    """
    tokens_at, heads_at = (2, 1) if "scaled_dot_product" in name or "cudnn" in name else (1, 2)
    if len(key.dims) != 4 or query.size is None:
        return None
    batch, q, k, d = query.dims[0], query.dims[tokens_at], key.dims[tokens_at], query.dims[3]
    pairs = batch * (q * k - triangle(q * q, q, prompts=q > 1))
    moved = batch * (2 * q * query.dims[heads_at] + 2 * k * key.dims[heads_at]) * d * query.size
    return Call(cost=Cost(flops=4 * query.dims[heads_at] * pairs * d, bytes=moved), dtype=query.dtype)


def _experts(name: str, tensors: Sequence[Operand]) -> Call | None:
    """Only the number of tokens can be read off."""
    first = next((each for each in tensors if len(each.dims) == 2), None)
    if first is None or re.search(r"topk|softmax|sigmoid|routing|gate", name):
        return _touched(tensors, None)
    return Call(expert_rows=first.dims[0], dtype=first.dtype)


def _kv_cache(tensors: Sequence[Operand]) -> Call | None:
    """New keys and values come first, the cache behind; what lists pages only is small and counted as touched."""
    new = [each for each in tensors[:2] if len(each.dims) >= 2 and each.size is not None and each.size <= 4]
    if len(new) < 2 or new[0].dims != new[1].dims:
        return _touched(tensors, None)
    cache = tensors[2].size if len(tensors) > 2 and len(tensors[2].dims) >= 2 and tensors[2].size else new[0].size
    elements = sum(each.elements for each in new)
    return Call(cost=Cost(flops=0, bytes=elements * float((new[0].size or 0) + (cache or 0))))


def _norm(name: str, tensors: Sequence[Operand]) -> Call | None:
    wide = [each for each in tensors if len(each.dims) >= 2 and each.size is not None]
    if not wide:
        return None
    first = wide[0]
    width = first.dims[-1]
    rows = first.elements / width if width else 0
    size = float(first.size or 0)
    if "layer_norm" in name or "native_layer" in name:
        return Call(cost=layer_norm(rows, width, element_bytes=size))
    return Call(cost=rms_norm(rows, width, element_bytes=size, residual="add" in name))


def _gated(tensors: Sequence[Operand]) -> Call | None:
    wide = [each for each in tensors if len(each.dims) >= 2 and each.size is not None]
    if not wide:
        return None
    narrow = min(wide, key=lambda each: each.dims[-1])
    width = narrow.dims[-1] if len(wide) > 1 else narrow.dims[-1] // 2
    rows = narrow.elements / narrow.dims[-1] if narrow.dims[-1] else 0
    return Call(cost=activation(rows, width, gated=True, element_bytes=float(narrow.size or 0)))


def _rotary(tensors: Sequence[Operand]) -> Call | None:
    """positions, queries, keys, …: rotated in place."""
    turned = [each for each in tensors if len(each.dims) >= 2 and each.size is not None and each.size <= 4][:2]
    positions = next((each for each in tensors if len(each.dims) == 1), None)
    turned = [each for each in turned if positions is None or each.dims[0] == positions.dims[0]]
    if not turned:
        return None
    elements = sum(each.elements for each in turned)
    return Call(cost=Cost(flops=3 * elements, bytes=2 * elements * float(turned[0].size or 0)))


def _streaming(name: str, category: str, arguments: Operands) -> Call | None:
    """Work that passes over its operands once."""
    tensors = [each for each in arguments if each is not None]
    if _VIEWS.search(name):
        return NOTHING_MOVED
    if _RUNTIME_SIZES.search(name) or not tensors:
        return None
    first = tensors[0]
    if name == "aten::copy_":
        sizes = [each.bytes for each in tensors[:2]]
        known = [size for size in sizes if size is not None]
        return Call(cost=Cost(flops=0, bytes=sum(known))) if len(known) == len(sizes) else None
    if _ROWS.search(name):
        rows = tensors[-1] if name == "aten::gather" else tensors[1] if len(tensors) > 1 else None
        if rows is None or first.size is None:
            return None
        taken = rows.elements * (1 if name == "aten::gather" else prod(first.dims[1:]))
        return Call(cost=Cost(flops=0, bytes=2.0 * taken * first.size))
    if first.bytes is None:
        return None
    if _WRITES.search(name):
        return Call(cost=Cost(flops=0, bytes=first.bytes))
    if _READS.search(name):
        return Call(cost=Cost(flops=first.elements, bytes=first.bytes))
    if _UNARY.search(name):
        return Call(cost=Cost(flops=first.elements, bytes=2 * first.bytes))
    if _BINARY.search(name):
        return _elementwise(tensors)
    return _touched(tensors, category)


def _elementwise(tensors: Sequence[Operand]) -> Call | None:
    """Operands read, a result as large as the largest of them written."""
    sizes = [each.bytes for each in tensors]
    known = [size for size in sizes if size is not None]
    if len(known) < len(sizes):
        return None
    largest = max(tensors, key=lambda each: each.elements)
    return Call(cost=Cost(flops=largest.elements, bytes=sum(known) + (largest.bytes or 0)))


def _touched(tensors: Sequence[Operand], category: str | None) -> Call | None:
    """Each operand once; generated kernels list all that they read and write."""
    known = [each.bytes for each in tensors if each.bytes is not None]
    if not known or len(known) < len(tensors):
        return None
    flops = 0 if category in ("memcpy", "memset", None) else max(each.elements for each in tensors)
    return Call(cost=Cost(flops=flops, bytes=sum(known)), soft=True)
