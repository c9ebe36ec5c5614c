"""Runs that every reading command has something to say about: a served one with sensors, and a trace with long names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
from trace_builder import DECODE, MIXED, MS, PREFILL, US, RunBuilder, TraceBuilder

from cli import Composition
from traces.ingest import IngestOptions, ingest_once

SYMBOLS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_align8>(cutlass_80_tensorop::Params)",
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>>(Params)",
    "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*, c10::BFloat16 const*, c10::BFloat16 const*, float, int, int)",
)

# request, piece, start, tokens, cause, divergence token, role, device time
REUSE = [
    ("a", "fresh", 0, 64, None, None, None, 3_900_000), ("b", "fresh", 0, 64, None, None, None, 4_360_000),
    ("c", "cached", 0, 64, None, None, None, None), ("c", "resent_output", 64, 4, None, None, None, 200_000),
    ("c", "fresh", 68, 28, None, None, None, 1_275_000), ("d", "lost", 0, 64, "prefix_changed", 12, "system", 2_900_000),
    ("d", "fresh", 64, 32, None, None, None, 1_525_000),
]  # fmt: skip


def ingested(paths: list[Path], target: Path, **analysis: Any) -> Path:
    """A database of the files."""
    finish = Composition().analysis(**analysis)
    ingest_once([str(path) for path in paths], target, IngestOptions(finish=finish))
    return target


def served(folder: Path) -> Path:
    """Two sessions of two turns on a CPU engine: prefill, mixed and decode steps, and a sample of power every 2 ms."""
    run = RunBuilder()
    at, done = 0, dict.fromkeys("abcd", 0)

    def step(dur: int, **rows: tuple[int, int, int]) -> None:
        nonlocal at
        entries = []
        for name, (new, computed, made) in rows.items():
            entries.append({"id": f"cmpl-{name}-0-00c0ffee", "new": new, "computed": computed, "prompt": 64 if name in "ab" else 96,
                            "out": done[name], "acc": made})  # fmt: skip
            done[name] += made
        run.step(at, dur, entries, op_dur=dur - 100 * US)
        at += dur + 50 * US

    step(4 * MS, a=(64, 0, 1))
    step(5 * MS, a=(1, 64, 1), b=(64, 0, 1))
    for number in range(6):
        step(MS, a=(1, 65 + number, 1), b=(1, 64 + number, 1))
    at += 20 * MS  # both wait for a tool
    step(6 * MS, c=(32, 64, 1), d=(96, 0, 1))
    for number in range(5):
        step(MS, c=(1, 96 + number, 1), d=(1, 96 + number, 1))
    tokens = (5 * MS, 10 * MS, 11 * MS, 13 * MS)
    run.request("a", -MS, tokens, prompt=64, session_id="s0", turn=0, tool_ns=20 * MS)
    run.request(
        "b", 2 * MS, tuple(item + 5 * MS for item in tokens), prompt=64, session_id="s1", turn=0, tool_ns=20 * MS
    )
    run.request("c", 34 * MS, tuple(item + 38 * MS for item in tokens), prompt=96, cached=64, session_id="s0", turn=1)
    run.request("d", 34 * MS, tuple(item + 38 * MS for item in tokens), prompt=96, session_id="s1", turn=1)
    run.write(folder / "run")
    samples = "".join(f"2023/11/14 22:13:20.{2 * number:03d}, 0, {40 + number % 5}.00 W\n" for number in range(26))
    (folder / "power.csv").write_text("timestamp, index, power.draw [W]\n" + samples)
    files = [folder / "run", folder / "power.csv"]
    target = ingested(files, folder / "served.duckdb", peak_flops="1T", bandwidth="50GB/s")
    with duckdb.connect(str(target)) as con:
        con.executemany(
            "INSERT INTO reuse (run_id, request_id, piece, start_token, tokens, cause, divergence_token, divergence_role, device_ns) "
            "VALUES ('abc123', 'cmpl-' || ? || '-0-00c0ffee', ?, ?, ?, ?, ?, ?, ?)", REUSE,
        )  # fmt: skip
    return target


def traced(folder: Path) -> Path:
    """Six steps of a GPU whose kernels have the names that templates give them."""
    trace = TraceBuilder(
        rank=0, base_ns=1_700_000_000_000_000_000, deviceProperties=[{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    )
    for number in range(6):
        at = (number + 1) * MS
        trace.label(at, 900 * US, (DECODE, PREFILL, MIXED)[number % 3])
        for place, name in enumerate(SYMBOLS):
            start = at + (50 + 200 * place) * US
            trace.op(
                "aten::mm", at + place * 10 * US, 5 * US, ext=9 * number + place, shapes=[[64, 4096], [4096, 4096]]
            )
            trace.launch(at + (place * 10 + 1) * US, 3 * number + place + 1, ext=9 * number + place)
            trace.kernel(start, (30 + 40 * place) * US, 3 * number + place + 1, name=name)
    return ingested([trace.write(folder / "traced.json")], folder / "traced.duckdb")
