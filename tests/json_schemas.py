"""Schemas of what `--json` prints: kept in docs/schemas, made of sample answers by `STEPSCOPE_SCHEMAS=write`, and read by people.

What a schema says of an object: which keys are always there, and the type of each. Any number, text or flag may be null, which is
how unknown is said. Keys may be added, so further ones are allowed; names of MAPS are keys that come from the data.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Objects whose keys are data: names of numbers, tables, passes, arguments.
MAPS = frozenset({
    "withheld", "unknown", "rows_by_table", "config", "engine_facts", "model_config", "labels", "given", "settings", "arguments",
})  # fmt: skip
# Objects that change with what is asked or known, of which only the type is promised.
FREE = frozenset({"proof", "proved", "baseline", "change"})
_INTEGERS = ("_ns", "_tokens", "_bytes")
_NUMBERS = ("_j", "_w", "_s", "_ratio", "share", "intensity", "ridge")

Schema = dict[str, Any]


def schema_of(samples: list[Any], name: str = "") -> Schema:
    """A schema that all samples keep; `name`: the key they stand under."""
    known = [item for item in samples if item is not None]
    nullable = len(known) < len(samples)
    if known and all(isinstance(item, list) for item in known):
        members = [member for item in known for member in item]
        return _or_null({"type": "array", "items": schema_of(members, name) if members else {}}, nullable)
    if known and all(isinstance(item, dict) for item in known):
        return _or_null(_object(known, name), nullable)
    return {"type": sorted(_types(known, name) | {"null"})} if _types(known, name) else {}


def _object(samples: list[dict[str, Any]], name: str) -> Schema:
    if name in FREE:
        return {"type": "object"}
    if name in MAPS:
        return {
            "type": "object",
            "additionalProperties": schema_of([value for item in samples for value in item.values()] or [None]),
        }
    keys = list(dict.fromkeys(key for item in samples for key in item))
    properties = {key: schema_of([item[key] for item in samples if key in item], key) for key in keys}
    if "version" in properties and not name:
        properties["version"] = {"const": samples[0]["version"]}
    return {
        "type": "object",
        "required": [key for key in keys if all(key in item for item in samples)],
        "properties": properties,
    }


def _types(known: list[Any], name: str) -> set[str]:
    found: set[str] = set()
    for item in known:
        kind = {bool: "boolean", str: "string", int: "integer", float: "number", list: "array", dict: "object"}[
            type(item)
        ]
        found.add(kind)
    if not known:
        found = {"integer"} if name.endswith(_INTEGERS) else {"number"} if name.endswith(_NUMBERS) else set()
    if "number" in found or (
        name.endswith(_INTEGERS) and "integer" in found
    ):  # means and percentiles of integers are none
        found = (found - {"integer"}) | {"number"}
    if "integer" in found and name.endswith(_NUMBERS):
        found = (found - {"integer"}) | {"number"}
    return found


def _or_null(schema: Schema, nullable: bool) -> Schema:
    return {**schema, "type": [schema["type"], "null"]} if nullable else schema


def stored(command: str) -> Schema:
    """The schema of a command as it is documented."""
    found: Schema = json.loads((FOLDER / f"{command}.json").read_text(encoding="utf-8"))
    return found


def write(command: str, samples: list[Any]) -> None:
    """Keep a schema of the samples."""
    FOLDER.mkdir(exist_ok=True)
    head = {"$schema": DIALECT, "$id": f"stepscope:{command}", "title": f"stepscope {command} --json"}
    found = {"type": "array", "items": {"type": "object"}} if command == "query" else schema_of(samples)
    text = json.dumps({**head, **found}, indent=1) + "\n"
    (FOLDER / f"{command}.json").write_text(text, encoding="utf-8")
