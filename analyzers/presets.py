"""Built-in model shapes: `models.toml`, Hugging Face configuration keys per preset."""

from __future__ import annotations

import json
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from traces.errors import UsageProblem


def _load() -> dict[str, dict[str, Any]]:
    return tomllib.loads(resources.files("analyzers").joinpath("models.toml").read_text(encoding="utf-8"))


def preset(name: str) -> dict[str, Any] | None:
    """The configuration of preset `name`; None where there is none."""
    presets = _load()
    entry = presets.get(name)
    if entry is None:
        return None
    shared = preset(entry["like"]) if "like" in entry else None
    return {**(shared or {}), **entry["config"]}


def preset_names() -> list[str]:
    """Names of the presets, in the file's order."""
    return list(_load())


def model_config(name: str) -> dict[str, Any]:
    """The configuration that PRESET or a path to a `config.json` (or the folder that holds one) names.

    Raises UsageProblem where it is neither, or the file is no JSON object.
    """
    known = preset(name)
    if known is not None:
        return known
    path = Path(name)
    try:
        path = path / "config.json" if path.is_dir() else path
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageProblem(
            f"unknown model {name}: neither a preset nor a file", hint=f"presets: {', '.join(preset_names())}"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UsageProblem(f"{path} cannot be read as a configuration: {error}", hint="give a config.json") from error
    if not isinstance(config, dict):
        raise UsageProblem(f"{path} is not a JSON object", hint="give a Hugging Face config.json")
    return config
