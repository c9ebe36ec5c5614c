"""The engine's side of split_accuracy.py: runs matched steps in vLLM and writes what each step's operators took.

Runs in the engine's interpreter, as `python split_engine.py PLAN.json OUT.jsonl`. The engine core runs inside this
process, so that every scheduler step is ours to order: a decode set is held, steps of it alone alternate with steps in
which one prompt of P tokens rides along, and the same prompt lengths run alone between two holds. One line per step:

    kind      'decode' | 'prefill' | 'mixed'
    rows      [[new tokens, tokens computed before], ...] as the scheduler planned them, the prompt (if any) first
    case      [P, D, decode context, prefill context]; P or D is 0 in steps of one kind only
    round     repetition, from 0
    wall_ns, cpu_ns   of the step, cpu_ns of the compute thread
    ops       {operator: exclusive ns on the compute thread}
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")


QUIET_SHARE = 0.97  # of a step's wall time that the compute thread ran; below it the step is repeated
TRIES = 3


class Bench:
    """One engine and the steps taken with it."""

    def __init__(self, plan: dict[str, Any], out: Path) -> None:
        import random

        from vllm import LLM

        self.llm = LLM(
            model=plan["model_dir"],
            load_format="dummy",
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=4096,
            max_num_batched_tokens=4096,
            max_num_seqs=32,
            enable_prefix_caching=True,
            # few enough blocks that all have been touched after the first rounds: no page faults later
            num_gpu_blocks_override=plan["blocks"],
            disable_log_stats=True,
            seed=0,
        )
        self.engine = self.llm.llm_engine
        self.random = random.Random(0)
        self.serial = 0
        self.out = out.open("w")
        self.scheduled: list[list[int]] = []
        self._watch_scheduler()

    def _watch_scheduler(self) -> None:
        scheduler = self.engine.engine_core.engine_core.scheduler
        plain = scheduler.schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            output = plain(*args, **kwargs)
            before = {r.req_id: r.num_computed_tokens for r in output.scheduled_new_reqs}
            cached = output.scheduled_cached_reqs
            before |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
            self.scheduled = [[n, before[rid]] for rid, n in output.num_scheduled_tokens.items()]
            return output

        scheduler.schedule = schedule

    def add(self, prompt: list[int], max_tokens: int) -> str:
        from vllm import SamplingParams

        self.serial += 1
        name = f"r{self.serial}"
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, temperature=0.0, detokenize=False)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, params)
        return name

    def tokens(self, n: int) -> list[int]:
        return [self.random.randrange(300, 30_000) for _ in range(n)]

    def step(self, recorded: list[dict[str, Any]], case: list[int], round_: int) -> bool:
        """One scheduler step under the profiler's range `bench-step-<i>`; kind and rows come from the scheduler.

        Returns whether the compute thread had its core to itself.
        """
        from torch.profiler import record_function

        with record_function(f"bench-step-{len(recorded)}"):
            wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
            self.engine.step()
            wall, cpu = time.perf_counter_ns() - wall, time.thread_time_ns() - cpu
        rows = sorted(self.scheduled, key=lambda row: -row[0])
        prefills = sum(row[0] > 1 for row in rows)
        kind = "decode" if not prefills else "prefill" if prefills == len(rows) else "mixed"
        recorded.append(
            {"kind": kind, "rows": rows, "case": case, "round": round_, "wall_ns": wall, "cpu_ns": cpu, "ops": {}}
        )
        return cpu >= QUIET_SHARE * wall

    def hold(self, prompts: list[list[int]]) -> list[str]:
        """A decode set whose prompts are computed (or found in the cache) and which has begun to decode."""
        names = [self.add(prompt, 2_000) for prompt in prompts]
        while True:
            self.engine.step()
            if len(self.scheduled) == len(names) and all(row[0] == 1 for row in self.scheduled):
                return names

    def release(self, names: list[str]) -> None:
        self.engine.abort_request(names)
        self.finish()

    def finish(self) -> None:
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def write(self, recorded: list[dict[str, Any]], profile: Any) -> None:
        """Exclusive time per operator and step, from the profiler's events on the compute thread."""
        events = [
            (e.start_ns(), -e.duration_ns(), e.name())
            for e in profile.profiler.kineto_results.events()
            if not e.is_async() and e.duration_ns() >= 0
        ]
        stack: list[tuple[int, str, int]] = []  # end, name, step
        step = -1
        for start, minus_dur, name in sorted(events):
            while stack and stack[-1][0] <= start:
                stack.pop()
            if not stack:
                step = -1
            if name.startswith("bench-step-"):
                step = int(name.rsplit("-", 1)[1])
            elif step >= 0:
                ops = recorded[step]["ops"]
                ops[name] = ops.get(name, 0) - minus_dur
                if stack and not stack[-1][1].startswith("bench-step-"):
                    ops[stack[-1][1]] += minus_dur
            stack.append((start - minus_dur, name, step))
        for row in recorded:
            self.out.write(json.dumps(row) + "\n")
        self.out.flush()


def _keep_pages() -> bool:
    """Lock pages once touched: a system that reclaims cold memory would have steps wait for it to come back."""
    current, future, on_fault = 1, 2, 4
    return ctypes.CDLL(None, use_errno=True).mlockall(current | future | on_fault) == 0


def run(plan: dict[str, Any], out: Path) -> None:
    from torch.profiler import ProfilerActivity, profile

    print("pages locked" if _keep_pages() else "pages not locked", flush=True)
    bench = Bench(plan, out)
    prefix = bench.tokens(max(c[3] for c in plan["cases"]) or 1)
    holds: dict[tuple[int, int], list[list[int]]] = {}
    groups: dict[tuple[int, int], list[list[int]]] = {}
    for case in plan["cases"]:
        groups.setdefault((case[1], case[2]), []).append(case)
    for d, context in groups:
        holds[d, context] = [bench.tokens(context) for _ in range(d)]
    bench.add([*prefix, 7], 1)  # the shared prefix enters the cache
    bench.finish()
    for round_ in range(plan["rounds"] + 1):  # the first round warms up: caches, allocators, threads
        for key, cases in bench.random.sample(sorted(groups.items()), len(groups)):
            d, context = key
            bench.random.shuffle(cases)
            names = bench.hold(holds[key])
            recorded: list[dict[str, Any]] = []
            with profile(activities=[ProfilerActivity.CPU]) as profiler:
                for case in cases:
                    alone = [0, d, context, 0]
                    for _ in range(plan["decode_steps"]):
                        bench.step(recorded, alone, round_ - 1)
                    for _ in range(TRIES):
                        bench.add([*prefix[: case[3]], *bench.tokens(case[0])], 1)
                        if bench.step(recorded, case, round_ - 1):
                            break
                    bench.step(recorded, alone, round_ - 1)
                bench.release(names)
                for case in cases:
                    for _ in range(TRIES):
                        # mixed steps follow small ones; so do these, for the sake of caches and of the allocator
                        bench.add(bench.tokens(key[0] + 1), 1)
                        bench.finish()
                        bench.add([*prefix[: case[3]], *bench.tokens(case[0])], 1)
                        if bench.step(recorded, [case[0], 0, 0, case[3]], round_ - 1):
                            break
            if round_:
                bench.write(recorded, profiler)
    bench.out.close()


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
