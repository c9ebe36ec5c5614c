"""What a run has found out about itself so far; turned into the manifest whenever that is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profiler.config import ProfileConfig
from profiler.interpreter import Interpreter, cpu_name, gpu_name
from profiler.ledger_tail import LedgerTail
from traces.manifest import CaptureWindow, PassRecord, RunManifest


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """Mutable counterpart of RunManifest; `status` starts as what a killed run deserves."""

    config: ProfileConfig
    run_id: str
    created_ns: int
    interpreter: Interpreter
    device_kind: str
    argv: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    status: str = "interrupted"
    failure: str | None = None
    passes: list[PassRecord] = field(default_factory=list)
    capture: CaptureWindow | None = None
    calibration: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)
    hook_errors: list[str] = field(default_factory=list)
    telemetry: dict[str, Any] = field(default_factory=dict)
    header: dict[str, Any] = field(default_factory=dict)  # of the ledger

    def take_ledger(self, tail: LedgerTail) -> None:
        """Header and hook failures from the ledger."""
        tail.poll()
        self.hook_errors = list(tail.errors)
        if tail.headers:
            self.header = tail.headers[-1]
        else:
            self.hook_errors.append("the hook did not report: no step ledger was written")

    def manifest(self) -> RunManifest:
        """As it stands."""
        config, model = self.config, self.header.get("model") or {}
        return RunManifest(
            run_id=self.run_id,
            name=self.config.out.name,
            status=self.status,
            created_ns=self.created_ns,
            stepscope_version=config.stepscope_version,
            engine=config.engine,
            engine_version=self.header.get("engine_version") or self.interpreter.engine_version,
            engine_python=str(self.interpreter.path),
            device_kind=self.device_kind,
            device_name=gpu_name() if self.device_kind == "cuda" else cpu_name(),
            model=config.model,
            dtype=model.get("dtype"),
            seed=config.seed,
            workload=dict(config.workload) | {"window": str(config.window.for_device(self.device_kind))},
            engine_argv=self.argv,
            engine_args=list(config.engine_args),
            engine_env=self.env,
            versions=self.interpreter.versions(),
            passes=self.passes,
            capture=self.capture,
            calibration=self.calibration,
            hook_errors=self.hook_errors,
            warnings=self.warnings,
            telemetry=self.telemetry,
            failure=self.failure,
        )
