"""The stages of a run while the engine lives: ready, warm-up, control, profiled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiler.capture import Capture, trace_files, wait_for_orphan
from profiler.config import ProfileConfig
from profiler.cpu_share import cpu_times, others
from profiler.engines.base import Engine, Launch
from profiler.facts import RunFacts
from profiler.ledger_tail import LedgerTail
from profiler.process import EngineProcess, describe_exit
from profiler.progress import Observer
from profiler.prompts import PromptStore
from profiler.rundir import RunDir
from profiler.segments import find_segments
from profiler.server import Server
from profiler.telemetry import Telemetry
from traces.errors import EngineFailed, UsageProblem
from traces.manifest import PassRecord

if TYPE_CHECKING:
    from profiler.client import PassResult, Progress
    from profiler.workloads.request import Plan

POLL_S = 0.2
SKIP_POLL_S = 0.05
EXIT_WAIT_S = 10.0  # from a server that stopped answering to its exit
ORPHAN_WAIT_S = 30.0


@dataclass(slots=True, kw_only=True)
class Stages:
    """Runs them in order; what they find goes into `facts`."""

    config: ProfileConfig
    engine: Engine
    launch: Launch
    run_dir: RunDir
    process: EngineProcess
    facts: RunFacts
    observer: Observer
    telemetry: Telemetry
    served: bool = False  # the server has been ready
    prompts: PromptStore = field(default_factory=PromptStore)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _plans: dict[str, Plan] = field(default_factory=dict)  # by pass, without the warm-up
    _pass_steps: dict[str, int] = field(default_factory=dict)  # by pass, from the ledger
    _tail: LedgerTail | None = None

    async def run(self, plan_warmup: Plan, plan: Plan) -> None:
        """Raises EngineFailed; `facts.failure` is set where the run went through but has no recording."""
        async with self.serving(plan_warmup) as server:
            if self.config.control or not self.config.trace:
                await self.load(server, "control", plan)
            if self.config.trace:
                await self._profiled(server, plan)

    @contextlib.asynccontextmanager
    async def serving(self, plan_warmup: Plan) -> AsyncIterator[Server]:
        """The engine, started and warmed up; at the end of the block its prompts are kept. Raises EngineFailed."""
        async with Server(f"http://{self.launch.host}:{self.launch.port}") as server:
            await self._start(server)
            watcher = asyncio.create_task(self._watch())
            try:
                await self.load(server, "warmup", plan_warmup)
                yield server
                await self._segments(server)
            finally:
                watcher.cancel()
                self._write_prompts()

    async def _start(self, server: Server) -> None:
        self.observer.stage("start engine", " ".join(self.process.argv[1:4]))
        self.process.start()
        await self.process.wait_ready(
            lambda: server.answers(self.engine.ready_path),
            timeout_s=self.config.ready_timeout_s,
            progress=self.observer.progress,
        )
        self.served = True

    async def _watch(self) -> None:
        """Set the stop event when the server exits."""
        while self.process.exit_code() is None:
            await asyncio.sleep(POLL_S)
        self._stop.set()

    async def load(self, server: Server, name: str, plan: Plan, *, under: str = "") -> None:
        """One pass of the load, under a cache salt of its own. Raises EngineFailed where it brought nothing."""
        from profiler.client import run_plan

        self.observer.stage(f"{name} pass", under)
        before = self._steps_so_far()
        if name != "warmup":
            self._plans[name] = plan
        await server.scrape(self.run_dir.metrics / f"{name}-before.prom")
        cpu = cpu_times(self.process.members())
        result = await run_plan(
            plan,
            base_url=server.base_url,
            model=self.launch.served_name,
            pass_name=name,
            cache_salt=f"{self.facts.run_id}-{name}-{len(self.facts.passes)}",  # the warm-up may come again
            out_path=self.run_dir.requests,
            stop=self._stop,
            observer=self._show,
            request_timeout_s=self.config.request_timeout_s,
            prompts=self.prompts,
        )
        self._record(name, result, others(cpu, cpu_times(self.process.members())))
        await self._check(server, name, result)
        await server.scrape(self.run_dir.metrics / f"{name}-after.prom")
        self._pass_steps[name] = self._steps_so_far() - before

    async def _segments(self, server: Server) -> None:
        """Once the load is over: which tokens of the prompts are which message."""
        if not self.prompts.prompts:
            return
        self.observer.stage("locate messages")
        known = await find_segments(self._plans, self.prompts.prompts, server, self.launch.served_name)
        if known.unknown:
            self._warn(f"{known.unknown} prompts whose messages could not be located: {known.reason}")

    def _write_prompts(self) -> None:
        try:
            if self.prompts.prompts:
                self.prompts.write(self.run_dir.prompts)
        except UsageProblem as error:  # a full disk: what the run failed of, or has recorded, comes first
            self._warn(error.message)
        if self.prompts.left_out:
            self._warn(
                f"{self.prompts.left_out} prompts were not kept for the analysis of reuse: too many tokens in all"
            )

    def _show(self, progress: Progress) -> None:
        text = f"{progress.finished}/{progress.total} requests, {progress.output_tokens} output tokens"
        self.observer.progress(text + (f", {progress.failed} failed" if progress.failed else ""))

    def _record(self, name: str, result: PassResult, others_cpu: float | None) -> None:
        self.facts.passes.append(
            PassRecord(
                name=name, start_ns=result.start_ns, end_ns=result.end_ns, requests=result.requests,
                failed=result.failed, output_tokens=result.output_tokens,
                first_cached_tokens=result.first_cached_tokens, late_p50_ns=result.late.p50_ns,
                late_p99_ns=result.late.p99_ns, late_max_ns=result.late.max_ns, others_cpu=others_cpu,
            )
        )  # fmt: skip
        if result.first_cached_tokens:
            self._warn(f"the first request of the {name} pass found {result.first_cached_tokens} tokens in the cache")
        late = result.late.problem(result.end_ns - result.start_ns)
        if late is not None and name != "warmup":
            self._warn(f"{name} pass: {late}")
        if result.failed:
            self._warn(f"{result.failed} of {result.requests} requests of the {name} pass failed: {result.first_error}")

    async def _check(self, server: Server, name: str, result: PassResult) -> None:
        """Raises EngineFailed where the engine is gone, or the pass brought nothing."""
        sick = bool(result.failed) and not await server.answers(self.engine.ready_path)
        if sick:  # it tells its clients before it exits
            await self._exit_within(EXIT_WAIT_S)
        code = self.process.exit_code()
        if code is not None:
            raise EngineFailed(f"the engine died during the {name} pass ({describe_exit(code)})", hint=self._log_hint())
        if sick or result.server_gone:
            raise EngineFailed(f"the server stopped answering during the {name} pass", hint=self._log_hint())
        if result.requests and result.failed == result.requests:
            raise EngineFailed(f"every request of the {name} pass failed: {result.first_error}", hint=self._log_hint())

    async def _profiled(self, server: Server, plan: Plan) -> None:
        window = self.config.window.for_device(self.launch.device_kind)
        capture = Capture(self.config, self.engine, self.launch, server, window)
        skip = max(0, self._pass_steps.get("control", 0) - (window.steps or 0)) // 2 if window.centred else 0
        if not skip:
            await capture.start()
        load = asyncio.create_task(self.load(server, "profiled", plan, under=f"window {window}"))
        try:
            if skip:
                await self._skip(skip, load)
                await capture.start()
            await self._bounded(capture, load)
        except EngineFailed:
            self._stop.set()
            if not await server.answers(self.engine.ready_path):
                await self._await_orphan()
            raise
        finally:
            load.cancel()  # a no-op once it is done
            with contextlib.suppress(asyncio.CancelledError, EngineFailed):
                await load
            self.facts.capture = await capture.marked_window()
        if not trace_files(self.run_dir.trace):
            partly = any(self.run_dir.trace.iterdir())
            self.facts.failure = "the engine's profiler " + (
                "could not finish its recording: is the disk full?" if partly else "wrote nothing"
            )

    async def _skip(self, steps: int, load: asyncio.Task[None]) -> None:
        """Return once the engine has done `steps` of this pass."""
        before = self._steps_so_far()
        while not load.done() and self._steps_so_far() - before < steps:
            await asyncio.sleep(SKIP_POLL_S)

    def _steps_so_far(self) -> int:
        """Of the whole run, by the ledger; 0 without one."""
        if self.launch.ledger_dir is None:
            return 0
        self._tail = self._tail or LedgerTail(directory=self.launch.ledger_dir)
        self._tail.poll()
        return self._tail.total_steps

    async def _bounded(self, capture: Capture, load: asyncio.Task[None]) -> None:
        """Stop recording when the window is full or the load is over, whichever comes first."""
        full = asyncio.create_task(capture.full())
        try:
            await asyncio.wait([load, full], return_when=asyncio.FIRST_COMPLETED)
        finally:
            full.cancel()
        if load.done():
            load.result()
            self.observer.stage("stop profiler", f"{capture.steps()} steps")
        else:
            self.observer.note(f"window is full after {capture.steps()} steps: the engine pauses while it writes them")
        await capture.stop()
        await load

    async def _await_orphan(self) -> None:
        """A worker that outlived its engine finishes writing what it recorded."""
        if await self._exit_within(EXIT_WAIT_S):
            self.observer.progress("waiting for what its worker still writes")
            await wait_for_orphan(self.run_dir.trace, timeout_s=ORPHAN_WAIT_S)

    async def _exit_within(self, seconds: float) -> bool:
        """Whether the server has exited, or does so soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.process.exit_code() is None:
                    await asyncio.sleep(POLL_S)
        return self.process.exit_code() is not None

    def _warn(self, text: str) -> None:
        self.facts.warnings.append(text)
        self.observer.note(text)

    def _log_hint(self) -> str:
        known = self.engine.diagnose(self.process.log_tail(400))
        return known or f"see {self.run_dir.log}"
