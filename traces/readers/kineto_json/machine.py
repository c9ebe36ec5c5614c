"""Loads and vector compares on raw addresses, for compiled functions only.

Addresses and masks are int64, so that no arithmetic leaves that type. Buffers need 64 readable bytes behind the last
one that matters. Bit i of a mask belongs to the byte at `address + i`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils, types
from numba.extending import intrinsic as _numba_intrinsic

_F = TypeVar("_F", bound=Callable[..., Any])

WIDTH = 64
# Without the wrappers through which Python would call it, a function compiles in half the time.
_CALLEE = {"nogil": True, "error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_I8, _I64, _I128 = ir.IntType(8), ir.IntType(64), ir.IntType(128)
_VECTOR = ir.VectorType(_I8, WIDTH)


def compiled(function: _F) -> _F:
    """Compile as part of its callers; releases the GIL when it is the outermost."""
    return cast("_F", numba.njit(function, **_CALLEE))


def inlined(function: _F) -> _F:
    """Like `compiled`, always copied into the caller."""
    return cast("_F", numba.njit(function, forceinline=True, **_CALLEE))


def _unary(function: Callable[[Any, Any], Any]) -> Callable[[int], int]:
    return cast("Callable[[int], int]", _numba_intrinsic(function))


def _binary(function: Callable[[Any, Any, Any], Any]) -> Callable[[int, int], int]:
    return cast("Callable[[int, int], int]", _numba_intrinsic(function))


def _ternary(function: Callable[[Any, Any, Any, Any], Any]) -> Callable[[int, int, int], int]:
    return cast("Callable[[int, int, int], int]", _numba_intrinsic(function))


def _vector(builder: Any, address: Any) -> Any:
    return builder.load(builder.inttoptr(address, _VECTOR.as_pointer()), align=1)


def _splat(builder: Any, byte: Any) -> Any:
    one = builder.insert_element(ir.Constant(_VECTOR, ir.Undefined), builder.trunc(byte, _I8), ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
    return builder.shuffle_vector(one, ir.Constant(_VECTOR, ir.Undefined), zeros)


@_unary
def load_byte(_context: Any, _address: Any) -> Any:
    """The byte at an address."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.zext(builder.load(builder.inttoptr(arguments[0], _I8.as_pointer()), align=1), _I64)

    return types.int64(types.int64), generate


@_unary
def load_word(_context: Any, _address: Any) -> Any:
    """Eight bytes, the first one lowest."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _I64.as_pointer()), align=1)

    return types.int64(types.int64), generate


@_binary
def store_byte(_context: Any, _address: Any, _byte: Any) -> Any:
    """Write one byte."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _I8.as_pointer())
        builder.store(builder.trunc(arguments[1], _I8), pointer, align=1)
        return arguments[1]

    return types.int64(types.int64, types.int64), generate


@_binary
def store_word(_context: Any, _address: Any, _word: Any) -> Any:
    """Write eight bytes."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _I64.as_pointer()), align=1)
        return arguments[1]

    return types.int64(types.int64, types.int64), generate


@_ternary
def copy_bytes(_context: Any, _target: Any, _source: Any, _count: Any) -> Any:
    """Copy `count` bytes between places that do not overlap."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointers = [builder.inttoptr(address, _I8.as_pointer()) for address in arguments[:2]]
        cgutils.raw_memcpy(builder, *pointers, arguments[2], 1)
        return arguments[2]

    return types.int64(types.int64, types.int64, types.int64), generate


@_binary
def equal_mask(_context: Any, _address: Any, _byte: Any) -> Any:
    """Which of 64 bytes equal `byte`."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        found = builder.icmp_unsigned("==", _vector(builder, arguments[0]), _splat(builder, arguments[1]))
        return builder.bitcast(found, _I64)

    return types.int64(types.int64, types.int64), generate


@_binary
def bracket_mask(_context: Any, _address: Any, _byte: Any) -> Any:
    """Which of 64 bytes equal `byte` once bit 5 is set: '{' and '[' differ in that bit only, and so do '}' and ']'."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        folded = builder.or_(_vector(builder, arguments[0]), ir.Constant(_VECTOR, [0x20] * WIDTH))
        return builder.bitcast(builder.icmp_unsigned("==", folded, _splat(builder, arguments[1])), _I64)

    return types.int64(types.int64, types.int64), generate


@_unary
def blank_mask(_context: Any, _address: Any) -> Any:
    """Which of 64 bytes are white space or control characters (up to 0x20)."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        limit = ir.Constant(_VECTOR, [0x20] * WIDTH)
        return builder.bitcast(builder.icmp_unsigned("<=", _vector(builder, arguments[0]), limit), _I64)

    return types.int64(types.int64), generate


@_unary
def high_mask(_context: Any, _address: Any) -> Any:
    """Which of 64 bytes are not ASCII."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        zero = ir.Constant(_VECTOR, [0] * WIDTH)
        return builder.bitcast(builder.icmp_signed("<", _vector(builder, arguments[0]), zero), _I64)

    return types.int64(types.int64), generate


@_unary
def lowest_bit(_context: Any, _mask: Any) -> Any:
    """Index of the lowest set bit; 64 for none."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return types.int64(types.int64), generate


@_unary
def count_bits(_context: Any, _mask: Any) -> Any:
    """Number of set bits."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.int64), generate


@_binary
def fold_product(_context: Any, _left: Any, _right: Any) -> Any:
    """High xor low half of the 128-bit product: the mixing step of the string hash."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        product = builder.mul(builder.zext(arguments[0], _I128), builder.zext(arguments[1], _I128))
        high = builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)
        return builder.xor(builder.trunc(product, _I64), high)

    return types.int64(types.int64, types.int64), generate
