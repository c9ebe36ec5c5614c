"""The parser's compiled functions as machine code of this processor. Loads the compiler: see `native` for what is kept."""

from __future__ import annotations

import re
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from numba.core import types
from numba.core.errors import NumbaError

from traces.readers.kineto_json import events, interning

_THREE_WORDS = (types.int64, types.int64, types.int64)
_FUNCTIONS: tuple[Any, ...] = (events.parse_list, events.skip_value, interning.rehash)
# What the code may call outside itself: the C library's copies, which are in every process.
_ALLOWED = re.compile(r"llvm\.|mem(?:cpy|move|set|cmp)$")


def machine_code() -> dict[str, tuple[str, bytes]]:
    """{function: (its symbol, an object file)}. Raises ImportError where it cannot be made or would not stand alone."""
    made: dict[str, tuple[str, bytes]] = {}
    for function in _FUNCTIONS:
        try:
            function.compile(_THREE_WORDS)
            result = function.overloads[_THREE_WORDS]
            strange = outside_names(result.library.get_llvm_str())
            _, kind, (code, _) = result.library.serialize_using_object_code()
        except (NumbaError, AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise ImportError("the event parser cannot be compiled with this numba") from error
        if kind != "object" or strange or result.signature.return_type != types.int64:
            raise ImportError(f"the compiled event parser does not stand alone: {sorted(strange)[:3]}")
        made[function.py_func.__name__] = (result.fndesc.llvm_func_name, bytes(code))
    return made


def outside_names(assembly: str) -> set[str]:
    """Functions and data that a module needs from elsewhere, less those that are always there."""
    module = llvm.parse_assembly(assembly)
    declared = (item.name for item in (*module.functions, *module.global_variables) if item.is_declaration)
    return {name for name in declared if not _ALLOWED.match(name)}
