"""The parser's compiled functions: machine code kept on disk and loaded without the compiler.

numba takes longer to load than a common trace to read, and a hundred megabytes. What it made once is therefore kept as
object files, which llvmlite alone can load. They lie beside the code, in NUMBA_CACHE_DIR or in the user's cache
directory; where none can be written, each process compiles anew. A file is for one text of the sources, one version of
the compiler and one kind of processor, and carries the digest of what it holds: what does not fit is made again.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import llvmlite.binding as llvm  # type: ignore[import-untyped]

Function = Callable[[int, int, int], int]
Code = dict[str, tuple[str, bytes]]  # {function: (its symbol, an object file)}

# Modules whose text decides what is compiled.
_SOURCES = (
    "codegen", "machine", "layout", "context", "scan", "digits", "utf8", "interning", "members", "events", "rows", "tally",
)  # fmt: skip
_DIGEST_BYTES = 32
_LIMIT_BYTES = 64 << 20
_loaded: list[Any] = []  # what the functions' addresses belong to


@cache
def functions() -> dict[str, Function]:
    """The compiled functions by name. Raises ImportError where they cannot be had."""
    code = _kept()
    if code is None:
        from traces.readers.kineto_json.codegen import machine_code

        code = machine_code()
        _keep(code)
    return _load(code)


@cache
def file_name() -> str:
    """The name of the file for these sources, this compiler and this processor."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_") and "CACHE" not in item[0])
    processor = (llvm.get_default_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    about = (llvmlite.__version__, processor, settings)
    digest.update(json.dumps(about).encode())
    return f"kineto-{digest.hexdigest()[:24]}.code"


def _folders() -> Iterator[Path]:
    """Where the file may lie, the best place first."""
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        yield Path(chosen)
        return
    yield Path(__file__).with_name("__pycache__")
    base = os.environ.get("XDG_CACHE_HOME")
    with contextlib.suppress(RuntimeError):  # no home directory
        yield (Path(base) if base else Path.home() / ".cache") / "stepscope"


def _kept() -> Code | None:
    for folder in _folders():
        try:
            path = folder / file_name()
            status = path.stat()
            writable = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
            if writable or status.st_uid not in (os.getuid(), 0) or status.st_size > _LIMIT_BYTES:
                continue  # anybody's: not run
            code = unpack(path.read_bytes())
        except OSError:
            continue
        if code is not None:
            return code
    return None


def _keep(code: Code) -> None:
    for folder in _folders():
        scratch = folder / f".{file_name()}.{secrets.token_hex(4)}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch.write_bytes(pack(code))
            scratch.chmod(0o644)
            scratch.replace(folder / file_name())
        except OSError:  # no place here, or a full disk
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
        else:
            return


def pack(code: Code) -> bytes:
    """Digest, one line of JSON (function, symbol, bytes of code), the codes one after the other."""
    head = json.dumps([[name, symbol, len(data)] for name, (symbol, data) in code.items()]).encode() + b"\n"
    body = head + b"".join(data for _, data in code.values())
    return hashlib.sha256(body).digest() + body


def unpack(data: bytes) -> Code | None:
    """What `pack` packed; None for anything else."""
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return None
    head, _, rest = body.partition(b"\n")
    code: Code = {}
    for name, symbol, count in json.loads(head):
        code[name], rest = (symbol, rest[:count]), rest[count:]
    return code


def _load(code: Code) -> dict[str, Function]:
    try:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine()
        engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        for _, data in code.values():
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
        engine.finalize_object()
        made = {name: _callable(engine.get_function_address(symbol)) for name, (symbol, _) in code.items()}
    except RuntimeError as error:
        raise ImportError("the compiled event parser cannot be loaded") from error
    _loaded.append(engine)
    return made


def _callable(address: int) -> Function:
    """A function at an address, called as numba's code is: status f(result*, exception**, word, word, word)."""
    if not address:
        raise ImportError("the compiled event parser lacks a function")
    word = ctypes.c_int64
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(word), ctypes.POINTER(ctypes.c_void_p), word, word, word)
    function = kind(address)  # gives the GIL up while it runs

    def call(first: int, second: int, third: int) -> int:
        result, exception = word(0), ctypes.c_void_p()
        status = function(ctypes.byref(result), ctypes.byref(exception), first, second, third)
        if status:
            raise RuntimeError(f"the compiled event parser stopped with status {status}")
        return result.value

    return call
