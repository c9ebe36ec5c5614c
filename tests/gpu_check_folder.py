"""Raw data of a GPU check as an H200 would leave it, from literals: what no machine without a GPU can record."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_builder import MS, US, S, TraceBuilder

from traces.manifest import CaptureWindow, RunManifest

START_NS = 1_700_000_000 * S
PRODUCTS = [[37, 512, 1003], [8192, 8192, 8192]]
REPEATS = 2
PROMPT, HEADS, HEAD, INNER, BATCH, CONTEXT = 512, 4, 128, 2048, 8, 1024
WIDTH = HEADS * HEAD
REPLAYS, PER_GRAPH = 3, 3
REST_W, LOAD_W, LIMIT_W = 100.0, 650.0, 700.0
REST_S, LOAD_S = 3, 6
CALIBRATION: dict[str, Any] = {
    "version": 1, "created_ns": START_NS, "device_kind": "cuda", "device_name": "NVIDIA H200", "threads": None, "bind": None,
    "torch_version": "2.9.0", "short": False, "launch_ns": 3000.0, "others_cpu": 0.1, "quiet": True, "warnings": [],
    "matrix": [
        {"dtype": dtype, "m": 8192, "k": 8192, "n": 8192, "best": best, "median": best, "spread": 0.01, "repeats": 9}
        for dtype, best in (("bf16", 700e12), ("fp32", 50e12), ("fp8", 1200e12), ("int8", 900e12))
    ],
    "memory": [
        {"operation": "copy", "working_set_bytes": size, "best": best, "median": best, "spread": 0.01, "repeats": 9}
        for size, best in ((32 << 20, 6e12), (4 << 30, 4.2e12))
    ],
}  # fmt: skip


@dataclass(slots=True)
class GpuLoop:
    """A recorded loop; times from START_NS. What a test wants broken it changes before `write`."""

    trace: TraceBuilder = field(default_factory=lambda: TraceBuilder(
        base_ns=START_NS, deviceProperties=[{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "numSms": 132}],
        cuda_runtime_version=12080,
    ))  # fmt: skip
    now: int = 100 * US
    corr: int = 0
    steps: list[dict[str, Any]] = field(default_factory=list)
    sleeps: list[dict[str, Any]] = field(default_factory=list)

    def operator(self, name: str, shapes: Any, kernel: str, dur: int) -> None:
        """An operator, its launch and its kernel, for which the host waits."""
        self.corr += 1
        self.trace.op(name, self.now, 4 * US, ext=self.corr, shapes=shapes)
        self.trace.launch(self.now + US, self.corr, ext=self.corr)
        self.trace.kernel(self.now + 5 * US, dur, self.corr, name=kernel)
        self.now += 6 * US + dur

    def sleep(self, where: str) -> None:
        """60 ms in which the host does nothing."""
        start = self.now
        self.now += 60 * MS
        self.sleeps.append({"where": where, "start_ns": START_NS + start, "end_ns": START_NS + self.now})

    def eager(self, *, prefill: bool, sleep: bool = False) -> None:
        """A step without graphs: one product and one attention."""
        begin, rows = self.now, PROMPT if prefill else BATCH
        self.now += 2 * US
        self.operator("aten::mm", [[rows, WIDTH], [WIDTH, INNER]], "sm90_xmma_gemm_f32f32", 40 * US)
        if sleep:
            self.sleep("within a step")
        pair = ([1, PROMPT], [1, PROMPT]) if prefill else ([BATCH, 1], [BATCH, CONTEXT])
        query, key = ([*pair[0], HEADS, HEAD], [*pair[1], HEADS, HEAD])
        self.operator("aten::_flash_attention_forward", [query, key, key], "flash_fwd_kernel", 30 * US)
        self.operator("aten::gelu", [[rows, INNER]], "vectorized_elementwise_kernel", 9 * US)
        attention = 4 * WIDTH * (PROMPT**2 // 2 if prefill else BATCH * CONTEXT)
        self._labelled(begin, prefill=prefill, graph=False, mm=2 * rows * WIDTH * INNER, attention=attention)

    def replay(self, kernels: int = PER_GRAPH) -> None:
        """A decode step by one graph launch; `kernels` of it are recorded."""
        begin = self.now
        self.corr += 1
        self.trace.graph_launch(self.now + US, self.corr)
        for number in range(kernels):
            self.trace.kernel(self.now + (10 + 20 * number) * US, 19 * US, self.corr, name="sm90_xmma_gemm_f32f32")
        self.now += (20 * PER_GRAPH + 20) * US
        self._labelled(begin, prefill=False, graph=True, mm=0, attention=0)

    def _labelled(self, begin: int, *, prefill: bool, graph: bool, mm: int, attention: int) -> None:
        label = (
            f"execute_context_1({PROMPT})_generation_0(0)"
            if prefill
            else f"execute_context_0(0)_generation_{BATCH}({BATCH})"
        )
        self.trace.label(begin, self.now - begin, label)
        self.now += 10 * US
        self.steps.append({
            "label": label, "kind": "prefill" if prefill else "decode", "graph": graph, "mm_flops": mm, "attention_flops": attention,
        })  # fmt: skip


def gpu_loop(*, large_ns: int = 30 * MS, graph_kernels: int = PER_GRAPH) -> GpuLoop:
    """The loop in the order of torch_work.py."""
    loop = GpuLoop()
    for m, k, n in PRODUCTS:
        for _ in range(REPEATS):
            loop.operator("aten::mm", [[m, k], [k, n]], "sm90_xmma_gemm_f32f32", large_ns if m == 8192 else 20 * US)
    for _ in range(2):
        loop.eager(prefill=True)
    for number in range(4):
        if number % 2:
            loop.sleep("between steps")
        loop.eager(prefill=False, sleep=number % 2 == 0)
    for _ in range(REPLAYS):
        loop.replay(graph_kernels)
    return loop


def telemetry_lines(*, counter: float = 1.0, gpm: bool = True) -> list[dict[str, Any]]:
    """Sensors at 10 Hz: rest, load, rest. `counter`: what the energy counter shows of the true energy."""
    device = {
        "device": 0,
        "source": "nvml",
        "name": "NVIDIA H200",
        "power_limit_w": LIMIT_W,
        "power_period_ns": 100 * MS,
    }
    lines: list[dict[str, Any]] = [{
        "stepscope_telemetry": 1, "kind": "header", "ts_ns": START_NS, "source": "nvml", "hz": 10.0, "devices": [device],
    }]  # fmt: skip
    energy = 0.0
    for number in range(10 * (2 * REST_S + LOAD_S) + 1):
        loaded = 10 * REST_S <= number < 10 * (REST_S + LOAD_S)
        sample = {"ts_ns": START_NS + number * 100 * MS, "device": 0, "energy_j": energy * counter,
                  "power_w": LOAD_W if loaded else REST_W, "sm_util": float(loaded), "resident": True}  # fmt: skip
        if gpm:
            sample |= {"sm_active": 0.97 * loaded, "tensor_active": 0.8 * loaded, "dram_active": 0.2 * loaded}
        lines.append(sample)
        energy += (LOAD_W if loaded else REST_W) / 10
    return lines


def write_folder(
    folder: Path, *, loop: GpuLoop | None = None, telemetry: list[dict[str, Any]] | None = None, **changes: Any
) -> Path:
    """The folder as measure.py leaves it; `changes` replace fields of facts.json."""
    loop = loop or gpu_loop()
    run = folder / "run"
    loop.trace.write(run / "trace" / "rank0.pt.trace.json")
    window = CaptureWindow(start_ns=START_NS, end_ns=START_NS + loop.now, marked_by="client")
    RunManifest(
        run_id="gpu-check", name="gpu-check", status="complete", created_ns=START_NS, stepscope_version="0", source="attach",
        device_kind="cuda", device_name="NVIDIA H200", dtype="float32", calibration=CALIBRATION, capture=window,
    ).write(run)  # fmt: skip
    load_s, products = float(LOAD_S), 30_000
    work = [
        {"section": "facts", "device_kind": "cuda", "device_name": "NVIDIA H200", "dtype": "float32"},
        {"section": "load", "start_ns": START_NS + REST_S * S, "end_ns": START_NS + (REST_S + LOAD_S) * S, "rest_s": float(REST_S),
         "busy_s": 0.99 * load_s, "products": products, "side": 4096, "flops": 2 * 4096**3 * products},
        {"section": "loop", "no_graph": None, "start_ns": window.start_ns, "end_ns": window.end_ns, "steps": loop.steps,
         "sleeps": loop.sleeps, "products": PRODUCTS, "repeats": REPEATS},
    ]  # fmt: skip
    (folder / "work.jsonl").write_text("".join(json.dumps(line) + "\n" for line in work))
    lines = telemetry if telemetry is not None else telemetry_lines()
    (folder / "telemetry.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "calibration.out").write_text(json.dumps(CALIBRATION))
    facts = {
        "python": "python", "created_ns": START_NS, "problems": {}, "seconds": {}, "warnings": [],
        "found": {
            "torch": True, "vllm": False, "sglang": False, "cuda": True, "hip": False, "torch_version": "2.9.0",
            "gpus": ["NVIDIA H200"],
        },
        "reasons": {"vllm": "vLLM is not installed there", "sglang": "it is not installed"},
    }  # fmt: skip
    (folder / "facts.json").write_text(json.dumps(facts | changes))
    return folder
