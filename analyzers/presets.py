"""Built-in model shapes: `models.toml`, Hugging Face configuration keys per preset."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def _load() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("analyzers").joinpath("models.toml").read_text(encoding="utf-8"))


def preset(name: str) -> dict[str, Any] | None:
    """The configuration of preset `name`; None where there is none."""
    entry = _load().get(name)
    return None if entry is None else dict(entry["config"])


def preset_names() -> list[str]:
    """Names of the presets, in the file's order."""
    return list(_load())
