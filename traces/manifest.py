"""What ran, where, with which versions, seeds and flags: `manifest.json` of a run directory."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from traces.clock import MOST_NS
from traces.errors import UnreadableInput

MANIFEST_NAME = "manifest.json"
MANIFEST_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """One pass of the workload. Times in ns since the epoch, as the client saw them."""

    name: str  # 'warmup' | 'control' | 'profiled'
    start_ns: int
    end_ns: int
    requests: int
    failed: int
    output_tokens: int
    first_cached_tokens: int | None = None  # of the pass's first request: 0 proves that passes do not feed each other
    late_p50_ns: int | None = None  # from when requests were due to when the client sent them
    late_p99_ns: int | None = None
    late_max_ns: int | None = None
    others_cpu: float | None = None  # share of all processors' time that others took meanwhile, 0..1


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureWindow:
    """The profiled window: from the end of the start call to the beginning of the stop call (ns since the epoch)."""

    start_ns: int
    end_ns: int
    marked_by: str  # 'hook' | 'client'
    steps: int | None = None
    stop_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """Everything about a run that is not in its recordings."""

    version: int = MANIFEST_VERSION
    run_id: str
    name: str
    status: str  # 'complete' | 'engine_failed' | 'interrupted' | 'stop_timeout' | 'trace_missing'
    created_ns: int
    stepscope_version: str
    source: str = "profile"
    engine: str = "unknown"
    engine_version: str | None = None
    engine_python: str | None = None
    device_kind: str = "cpu"
    device_name: str | None = None
    model: str | None = None
    dtype: str | None = None
    seed: int | None = None
    workload: dict[str, Any] = field(default_factory=dict)
    engine_argv: list[str] = field(default_factory=list)
    engine_args: list[str] | None = (
        None  # K=V or K as the user gave them: with them, workload and seed a run is repeated
    )
    engine_env: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    passes: list[PassRecord] = field(default_factory=list)
    capture: CaptureWindow | None = None
    calibration: dict[str, Any] | None = None  # traces.calibration.Calibration of this machine, CPU engines only
    hook_errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    telemetry: dict[str, Any] = field(default_factory=dict)  # source, hz and devices of the sampled sensors
    failure: str | None = None

    def write(self, directory: Path) -> Path:
        """Write `manifest.json` into `directory`, replacing it atomically."""
        target = directory / MANIFEST_NAME
        scratch = target.with_suffix(".json.part")
        scratch.write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")
        scratch.replace(target)
        return target

    @classmethod
    def read(cls, directory: Path) -> RunManifest:
        """The manifest of a run directory. Raises UnreadableInput where it is missing or is not one."""
        path = directory / MANIFEST_NAME
        try:
            raw = json.loads(path.read_text())
            return cls.from_dict(raw)
        except FileNotFoundError as error:
            raise UnreadableInput(f"{directory} has no {MANIFEST_NAME}", hint="give a run directory") from error
        except OSError as error:
            raise UnreadableInput(f"{path} cannot be read: {error.strerror}", hint="check the path") from error
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
            raise UnreadableInput(f"{path} is not a manifest of a run: {error}", hint="was the file edited?") from error

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> RunManifest:
        """Build from decoded JSON; unknown keys of newer versions are ignored."""
        known = {item.name for item in fields(cls)}
        values = {key: value for key, value in raw.items() if key in known}
        values["passes"] = [_checked(PassRecord(**item)) for item in raw.get("passes", [])]
        if raw.get("capture") is not None:
            values["capture"] = _checked(CaptureWindow(**raw["capture"]))
        return _checked(cls(**values))


_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "int": int, "float": (int, float), "str": str, "list": list, "dict": dict,
}  # fmt: skip
_Record = TypeVar("_Record", PassRecord, CaptureWindow, RunManifest)


def _checked(record: _Record) -> _Record:
    """`record`, whose values came from a file. Raises TypeError where one is of another type than its field."""
    for item in fields(record):
        value, stated = getattr(record, item.name), str(item.type)
        if value is None and stated.endswith("| None"):
            continue
        expected = _JSON_TYPES.get(re.split(r"[\[ ]", stated)[0])
        if expected is None:  # a record of its own, checked when it was made
            continue
        if not isinstance(value, expected) or isinstance(value, bool):
            raise TypeError(f"{item.name} is no {stated}")
        if isinstance(value, int | float) and not -MOST_NS <= value <= MOST_NS:
            raise ValueError(f"{item.name} is out of range")
    return record
