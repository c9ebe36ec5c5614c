"""One profiling run: engine → warm-up → control → profiled, captured → stop → manifest.

Whatever happens, the engine's processes are gone and the manifest says what happened when `run_profile` is left. A
run that has recorded something is returned as a manifest with a status; one that has not is an exception.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profiler.calibrate import known_or_measured
from profiler.capture import StopTimeout
from profiler.config import ProfileConfig
from profiler.engines.base import Launch, with_given
from profiler.engines.registry import find_engine
from profiler.facts import RunFacts
from profiler.interpreter import Interpreter, device_kind, inspect_interpreter, require_engine
from profiler.ledger_tail import LedgerTail
from profiler.modeldir import write_model_dir
from profiler.pack import pack_traces
from profiler.process import EngineProcess, check_port, free_port
from profiler.progress import Observer
from profiler.rundir import RunDir, check_model_path, has_weights, new_run_dir
from profiler.stages import Stages
from profiler.telemetry import Telemetry
from traces.calibration import binding_of
from traces.environment import engine_settings, looks_secret
from traces.errors import EngineFailed, StepscopeError
from traces.manifest import MANIFEST_NAME, RunManifest

if TYPE_CHECKING:
    from profiler.workloads.request import Plan

HOST = "127.0.0.1"


def run_profile(config: ProfileConfig, plan_warmup: Plan, plan: Plan, observer: Observer) -> RunManifest:
    """Do it. Raises UsageProblem (nothing left behind) or EngineFailed (it never served; its log is kept).

    Blocks; call it from the main thread, or ctrl-C and SIGTERM are not turned into an orderly end.
    """
    stages = prepared(config, plan, observer)
    _calibrate(stages.facts, observer)
    _drive(stages, plan_warmup, plan)
    return stages.facts.manifest()


def prepared(config: ProfileConfig, plan: Plan, observer: Observer) -> Stages:
    """The run directory with its inputs, and everything that is needed to start; nothing runs yet. Raises UsageProblem."""
    engine = find_engine(config.engine)
    interpreter = inspect_interpreter(config.python, engine)
    require_engine(interpreter, engine)
    kind = device_kind(config.device, interpreter)
    if config.port is not None:
        check_port(HOST, config.port)
    model, local = (
        ("", True) if config.model_config is not None else check_model_path(config.model_path or config.model)
    )
    facts = RunFacts(
        config=config, run_id=uuid.uuid4().hex[:12], created_ns=time.time_ns(), interpreter=interpreter,
        device_kind=kind,
    )  # fmt: skip
    with new_run_dir(config.out) as run:
        _write_inputs(run, config, plan)
        launch = _launch(config, run, interpreter, kind, model=model, local=local)
        env = with_given(engine, launch, os.environ, config.engine_env)
        facts.argv = engine.argv(launch)
        facts.env = engine_settings(os.environ) | {name: value for name, value in env.items() if not looks_secret(name)}
        facts.manifest().write(run.root)
    process = EngineProcess(facts.argv, env, run_id=facts.run_id, log_path=run.log)
    telemetry = Telemetry(
        run.telemetry, device_kind=kind, hz=config.telemetry_hz, visible=env.get("CUDA_VISIBLE_DEVICES")
    )
    return Stages(
        config=config, engine=engine, launch=launch, run_dir=run, process=process, facts=facts, observer=observer,
        telemetry=telemetry,
    )  # fmt: skip


def _calibrate(facts: RunFacts, observer: Observer) -> None:
    """On a CPU no datasheet says what can be reached, so it is measured before the engine takes the machine."""
    config = facts.config
    if facts.device_kind != "cpu" or not (config.calibrate and config.trace):
        return
    observer.stage("calibrate")
    try:
        found = known_or_measured(facts.interpreter.path, binding_of(facts.env))
        facts.calibration = found.to_dict()
    except StepscopeError as error:
        hint = f" ({error.hint})" if error.hint else ""
        facts.warnings.append(f"not calibrated, so no roofline and no bounds: {error.message}{hint}")
        observer.note(facts.warnings[-1])


def _drive(stages: Stages, plan_warmup: Plan, plan: Plan) -> None:
    with settled(stages):
        with sigterm_as_interrupt():
            stages.telemetry.start()
            asyncio.run(stages.run(plan_warmup, plan))
        stages.facts.status = "trace_missing" if stages.facts.failure else "complete"


@contextlib.contextmanager
def settled(stages: Stages) -> Iterator[None]:
    """Whatever happens inside, the engine is gone and the manifest written when this is left.

    Raises where nothing was recorded that could be looked at.
    """
    facts = stages.facts
    try:
        yield
    except KeyboardInterrupt:
        facts.status, facts.failure = "interrupted", "interrupted"
        if not facts.passes:
            raise
    except StopTimeout as error:
        facts.status, facts.failure = "stop_timeout", error.message
        stages.observer.note(error.hint)
    except EngineFailed as error:
        facts.status, facts.failure = "engine_failed", error.message
        if not stages.served:
            raise _with_log(error, stages) from error
        stages.observer.note(error.hint)
    except (StepscopeError, OSError) as error:  # our own files cannot be written
        facts.status, facts.failure = "interrupted", str(error)
        raise
    finally:
        _shut_down(stages)


def _shut_down(stages: Stages) -> None:
    """Nothing interrupts this: it is bounded, and half of it would leave processes behind."""
    facts, run = stages.facts, stages.run_dir
    with _signals_ignored():
        stages.observer.stage("shut down")
        survivors = stages.process.stop()
        if survivors:
            facts.warnings.append(f"processes that could not be ended: {', '.join(map(str, survivors))}")
        facts.warnings += stages.telemetry.stop()
        facts.telemetry = stages.telemetry.facts()
        if stages.launch.ledger_dir is not None and stages.served:
            facts.take_ledger(LedgerTail(directory=run.ledger))
        facts.warnings += pack_traces(run.trace)
        for text in facts.hook_errors:
            stages.observer.note(f"step ledger: {text}")
        _write_manifest(facts.manifest(), run)
        stages.observer.close()


def _write_manifest(manifest: RunManifest, run: RunDir) -> None:
    """Replace the manifest; on a full disk write into the space that the one of the start takes up."""
    try:
        manifest.write(run.root)
    except OSError:
        target = run.root / MANIFEST_NAME
        with contextlib.suppress(OSError):
            target.with_suffix(".json.part").unlink(missing_ok=True)
        # the calibration is the one large part, and can be measured again
        text = json.dumps(asdict(replace(manifest, calibration=None))).encode()
        if len(text) <= target.stat().st_blocks * 512:
            with contextlib.suppress(OSError), target.open("r+b") as file:
                file.write(text)
                file.truncate()


def _with_log(error: EngineFailed, stages: Stages) -> EngineFailed:
    tail = stages.process.log_tail()
    hint = stages.engine.diagnose(stages.process.log_tail(400)) or error.hint
    if not tail:
        return EngineFailed(error.message, hint=hint)
    quoted = "\n".join(f"  | {line[:300]}" for line in tail.splitlines())
    return EngineFailed(f"{error.message}; the end of {stages.run_dir.log}:\n{quoted}", hint=hint or "the log says why")


def _write_inputs(run: RunDir, config: ProfileConfig, plan: Plan) -> None:
    from profiler.workloads.plan import write_plan

    if config.model_config is not None:
        write_model_dir(run.model, config.model_config)
    write_plan(plan, run.plan, text=config.keep_text)


def _launch(
    config: ProfileConfig, run: RunDir, interpreter: Interpreter, kind: str, *, model: str, local: bool
) -> Launch:
    if config.model_config is not None:
        model, random_weights = str(run.model), True
    else:
        random_weights = local and not has_weights(Path(model))
    return Launch(
        python=interpreter.path, model=model, served_name=config.model, host=HOST,
        port=config.port if config.port is not None else free_port(HOST), device_kind=kind,
        random_weights=random_weights, local_model=local, trace_dir=run.trace if config.trace else None,
        ledger_dir=run.ledger if config.ledger else None, engine_args=config.engine_args,
    )  # fmt: skip


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP end a run as ctrl-C does."""

    def interrupt(_number: int, _frame: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with _handlers({signal.SIGTERM: interrupt, signal.SIGHUP: interrupt}):
        yield


@contextlib.contextmanager
def _signals_ignored() -> Iterator[None]:
    with _handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)):
        yield


@contextlib.contextmanager
def _handlers(wanted: dict[signal.Signals, Any]) -> Iterator[None]:
    """Handlers for a while; outside the main thread Python allows none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in wanted.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
