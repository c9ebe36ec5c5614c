"""What is wrapped in vLLM, as soon as the module that holds it is imported.

Each wrapper calls the engine's own function first and unconditionally, keeps its result and its exceptions, and does
its own work inside a guard. Attribute names differ between versions: a missing one is recorded and the rest goes on.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from . import ledger, steps


def install() -> None:
    """Wrap what is loaded already, and the rest when it gets imported (the API server never needs the scheduler)."""
    waiting = {}
    for name, wrap in _TARGETS.items():
        if name in sys.modules:
            _guarded(name, wrap, sys.modules[name])
        else:
            waiting[name] = wrap
    if waiting:
        sys.meta_path.insert(0, _AfterImport(waiting))


def _guarded(where: str, function: Callable[..., None], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception as failure:
        ledger.error(where, failure)


class _AfterImport(importlib.abc.MetaPathFinder):
    def __init__(self, waiting: dict[str, Callable[[ModuleType], None]]) -> None:
        self.waiting = waiting

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        wrap = self.waiting.pop(fullname, None)
        if wrap is None:
            return None
        spec = importlib.util.find_spec(fullname)  # ours is no longer asked: the entry is gone
        if spec is not None and spec.loader is not None:
            _run_after(spec.loader, fullname, wrap)
        return spec


def _run_after(loader: Any, name: str, wrap: Callable[[ModuleType], None]) -> None:
    original = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        original(module)
        _guarded(name, wrap, module)

    loader.exec_module = exec_module


def _wrap_scheduler(module: ModuleType) -> None:
    scheduler = module.Scheduler
    _wrap(scheduler, "__init__", after=steps.on_init)
    _wrap(scheduler, "add_request", after=steps.on_add_request)
    _wrap(scheduler, "finish_requests", after=steps.on_finish_requests)
    _wrap(scheduler, "_preempt_request", after=steps.on_preempt)
    _wrap(scheduler, "schedule", after=steps.on_schedule)
    _wrap(scheduler, "update_from_output", after=steps.on_result)


def _wrap_kv_cache(module: ModuleType) -> None:
    _wrap(module.KVCacheManager, "take_events", after=steps.on_kv_events)


def _wrap_engine_core(module: ModuleType) -> None:
    original = module.EngineCore.profile

    @functools.wraps(original)  # utility calls check the signature
    def profile(self: Any, is_start: bool = True, *arguments: Any, **keywords: Any) -> Any:
        name = "start" if is_start else "stop"
        _guarded("profile", _mark_profile, f"profile_{name}_begin")
        try:
            result = original(self, is_start, *arguments, **keywords)
        except BaseException:
            _guarded("profile", ledger.mark, f"profile_{name}_failed")
            raise
        _guarded("profile", _mark_profile, f"profile_{name}_end")
        return result

    module.EngineCore.profile = profile


def _mark_profile(name: str) -> None:
    ledger.fail_if_asked("profile")
    ledger.mark(name)


def _wrap_profiler(module: ModuleType) -> None:
    """No summary table: on CPU vLLM builds one at every stop, which takes most of that time and nobody reads it."""

    def no_table(_t0: int, profiler: Any, _arguments: Any, _keywords: Any, _result: Any) -> None:
        profiler.dump_cpu_time_total = False
        profiler.dump_device_time_total = False

    _wrap(module.TorchProfilerWrapper, "__init__", after=no_table)


After = Callable[[int, Any, tuple[Any, ...], dict[str, Any], Any], None]


def _wrap(owner: type, name: str, *, after: After) -> None:
    """`after(start_ns, self, arguments, keywords, result)` runs behind every call that returned."""
    original = getattr(owner, name, None)
    if original is None:
        ledger.mark("error", text=f"{owner.__name__}.{name} does not exist in this version of the engine")
        return
    clock = time.time_ns

    @functools.wraps(original)
    def wrapper(self: Any, *arguments: Any, **keywords: Any) -> Any:
        start_ns = clock()
        result = original(self, *arguments, **keywords)
        try:
            after(start_ns, self, arguments, keywords, result)
        except Exception as failure:
            ledger.error(name, failure)
        return result

    setattr(owner, name, wrapper)


_TARGETS: dict[str, Callable[[ModuleType], None]] = {
    "vllm.v1.core.sched.scheduler": _wrap_scheduler,
    "vllm.v1.core.kv_cache_manager": _wrap_kv_cache,
    "vllm.v1.engine.core": _wrap_engine_core,
    "vllm.profiler.wrapper": _wrap_profiler,
}
