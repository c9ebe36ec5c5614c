"""Tokens of a text where no usage was recorded: by a tokenizer that the user names, else characters / 4."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from traces.errors import UsageProblem

CHARS_PER_TOKEN = 4
CHUNK_CHARS = 64  # about 16 tokens, the usual cache block
RECORDED, TOKENIZER, ESTIMATE = "recorded", "tokenizer", "estimate"
_KEPT = 1 << 16  # texts whose measures are remembered


class Measure:
    """Lengths and hashes of texts; a text that comes again (every prompt repeats the last) is measured once."""

    def __init__(self, tokenizer: Path | None = None) -> None:
        self._tokenizer = None if tokenizer is None else _load(tokenizer)
        self.source = ESTIMATE if tokenizer is None else TOKENIZER
        self._lengths: dict[bytes, int] = {}
        self._chunks: dict[bytes, npt.NDArray[np.int64]] = {}

    def tokens(self, text: str) -> int:
        """Of `text`, without what a chat template puts around it."""
        if self._tokenizer is None:
            return -(-len(text) // CHARS_PER_TOKEN)
        key = _digest(text, 16)
        if key not in self._lengths:
            if len(self._lengths) >= _KEPT:
                self._lengths.clear()
            self._lengths[key] = len(self._tokenizer.encode(text, add_special_tokens=False).ids)
        return self._lengths[key]

    def chunks(self, role: str, text: str) -> npt.NDArray[np.int64]:
        """Hashes of the pieces of CHUNK_CHARS characters of a message, its role mixed in; at least one."""
        key = _digest(f"{role}\0{text}", 16)
        if key not in self._chunks:
            if len(self._chunks) >= _KEPT:
                self._chunks.clear()
            pieces = [text[start : start + CHUNK_CHARS] for start in range(0, max(len(text), 1), CHUNK_CHARS)]
            whole = b"".join(_digest(f"{role}\0{piece}", 8) for piece in pieces)
            self._chunks[key] = np.frombuffer(whole, dtype=np.int64)
        return self._chunks[key]


def chunk_chars(text: str) -> npt.NDArray[np.int64]:
    """Characters of each piece that Measure.chunks gives."""
    count = max(1, -(-len(text) // CHUNK_CHARS))
    sizes = np.full(count, CHUNK_CHARS, dtype=np.int64)
    sizes[-1] = len(text) - CHUNK_CHARS * (count - 1)
    return sizes


def _digest(text: str, size: int) -> bytes:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


def _load(path: Path) -> Any:
    """A tokenizer.json, or the folder that holds one. Raises UsageProblem."""
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UsageProblem(
            f"there is no tokenizer at {path}", hint="give a tokenizer.json or the folder that holds one"
        )
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageProblem("the package tokenizers is not installed", hint="pip install tokenizers") from error
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises no other for a fault of the file
        raise UsageProblem(
            f"{file} cannot be read as a tokenizer: {str(error)[:200]}", hint="give a tokenizer.json"
        ) from error
