"""Operands of a recorded operator: shapes and element types, as the profiler wrote them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

from analyzers.datasheet import canonical_dtype

_SIZES: dict[str, int] = {
    "float": 4, "double": 8, "int": 4, "long int": 8, "long": 8, "short int": 2, "short": 2, "bool": 1, "char": 1,
    "signed char": 1, "unsigned char": 1, "c10::bfloat16": 2, "c10::half": 2, "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1, "c10::float8_e4m3fnuz": 1, "c10::float8_e5m2fnuz": 1, "c10::float8_e8m0fnu": 1,
    "c10::float4_e2m1fn_x2": 1, "c10::qint8": 1, "c10::complex<float>": 8, "unsigned short": 2, "unsigned int": 4,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One tensor. `size` is bytes per element, None where the recording does not say (lists of tensors)."""

    dims: tuple[int, ...]
    size: int | None
    dtype: str | None = None  # as datasheet.canonical_dtype

    @property
    def elements(self) -> int:
        return prod(self.dims)

    @property
    def bytes(self) -> float | None:
        """None where the element size is not known."""
        return None if self.size is None else float(self.elements * self.size)


def operands(shapes: str | None, dtypes: str | None) -> tuple[Operand | None, ...]:
    """Operands in order, one per argument; scalars and missing ones are None. Lists of tensors come flattened."""
    dims, kinds = _listed(shapes), _listed(dtypes)
    found: list[Operand | None] = []
    for i, shape in enumerate(dims):
        named = kinds[i] if i < len(kinds) else ""
        kind = named if isinstance(named, str) else ""
        if not isinstance(shape, list):
            found.append(None)
        elif shape and all(isinstance(part, list) for part in shape):
            found += [_operand(part, None) for part in shape]
        elif kind in ("", "Scalar", "ScalarList") or not all(_natural(length) for length in shape):
            found.append(None)
        else:
            found.append(_operand(shape, kind))
    return tuple(found)


def _operand(shape: list[object], kind: str | None) -> Operand | None:
    if not all(_natural(length) for length in shape):
        return None
    dims = tuple(length for length in shape if isinstance(length, int))
    size = None if kind is None else _SIZES.get(kind.lower())
    return Operand(dims=dims, size=size, dtype=canonical_dtype(kind))


def _natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _listed(text: str | None) -> list[object]:
    """A JSON list of a recording, which is untrusted: anything else is no list."""
    if not text:
        return []
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []
