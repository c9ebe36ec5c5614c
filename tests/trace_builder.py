"""Recordings from literals: torch-profiler JSON as Kineto writes it, and run directories. Times in integer ns."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from traces.manifest import CaptureWindow, PassRecord, RunManifest

US, MS, S = 1_000, 1_000_000, 1_000_000_000
DECODE = "execute_context_0(0)_generation_4(4)"
PREFILL = "execute_context_1(64)_generation_0(0)"
MIXED = "execute_context_1(64)_generation_4(4)"


class TraceBuilder:
    """The events of one file, in the order of the calls."""

    def __init__(self, *, rank: int | None = None, world_size: int = 1, base_ns: int = 0, **top: Any) -> None:
        self.events: list[str] = []
        self.top: dict[str, Any] = {"schemaVersion": 1, **top}
        if base_ns:
            self.top["baseTimeNanoseconds"] = base_ns
        if rank is not None:
            self.top["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}

    def event(
        self, cat: str, name: str, ts: int, dur: int, *, pid: int = 1, tid: int = 1, args: dict[str, Any] | None = None
    ) -> TraceBuilder:
        """A complete event."""
        head = json.dumps({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid})
        body = f'"ts": {microseconds(ts)}, "dur": {microseconds(dur)}, "args": {json.dumps(args or {})}'
        self.events.append(f"{head[:-1]}, {body}}}")
        return self

    def label(self, ts: int, dur: int, text: str = DECODE, **thread: int) -> TraceBuilder:
        """A step label on the host."""
        return self.event("user_annotation", text, ts, dur, **thread)

    def op(
        self, name: str, ts: int, dur: int, *, ext: int | None = None, shapes: Any = None, **thread: int
    ) -> TraceBuilder:
        """An operator."""
        args = {"External id": ext} if ext is not None else {}
        if shapes is not None:
            args |= {"Input Dims": shapes, "Input type": ["float"] * len(shapes)}
        return self.event("cpu_op", name, ts, dur, args=args, **thread)

    def frame(self, name: str, ts: int, dur: int, **thread: int) -> TraceBuilder:
        """A Python frame."""
        return self.event("python_function", name, ts, dur, args={"Python id": len(self.events)}, **thread)

    def launch(
        self,
        ts: int,
        corr: int,
        *,
        name: str = "cudaLaunchKernel",
        dur: int = US,
        ext: int | None = None,
        **thread: int,
    ) -> TraceBuilder:
        """A runtime call."""
        args = {"correlation": corr} | ({"External id": ext} if ext is not None else {})
        return self.event("cuda_runtime", name, ts, dur, args=args, **thread)

    def graph_launch(self, ts: int, corr: int, **thread: int) -> TraceBuilder:
        """A graph launch; its kernels share `corr`."""
        return self.launch(ts, corr, name="cudaGraphLaunch", **thread)

    def kernel(
        self, ts: int, dur: int, corr: int | None = None, *, name: str = "gemm", stream: int = 7, device: int = 0,
        cat: str = "kernel",
    ) -> TraceBuilder:  # fmt: skip
        """A device activity."""
        args = {"device": device, "stream": stream} | ({"correlation": corr} if corr is not None else {})
        return self.event(cat, name, ts, dur, pid=device, tid=stream, args=args)

    def launched(self, ts: int, start: int, dur: int, corr: int, **values: Any) -> TraceBuilder:
        """A call at `ts` and the kernel it launched."""
        return self.launch(ts, corr).kernel(start, dur, corr, **values)

    def text(self) -> str:
        """The file."""
        top = json.dumps(self.top)[1:-1]
        return "{" + top + ', "traceEvents": [\n' + ",\n".join(self.events) + "\n]}\n"

    def write(self, path: Path) -> Path:
        """Write the file, compressed where its name says so."""
        raw = self.text().encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(raw, 1) if path.suffix == ".gz" else raw)
        return path


class RunBuilder:
    """A run directory of `stepscope profile`: manifest, ledger, requests and a CPU trace with one row per step."""

    def __init__(self, *, start_ns: int = 1_700_000_000 * S) -> None:
        self.start_ns = start_ns
        self.trace = TraceBuilder(rank=0, base_ns=start_ns)
        self.records: list[dict[str, Any]] = [{"kind": "header", "pid": 77, "ts": start_ns, "engine": "vllm"}]
        self.requests: list[dict[str, Any]] = []
        self.seq = 0
        self.known: set[str] = set()
        self.end = 0
        self.manifest = RunManifest(
            run_id="abc123", name="built", status="complete", created_ns=start_ns, stepscope_version="0", engine="vllm",
            engine_version="0.32.0", device_kind="cpu", device_name="a CPU", model="tiny", dtype="bfloat16",
        )  # fmt: skip

    def step(
        self, at: int, dur: int, rows: Sequence[dict[str, Any]], *, op_dur: int | None = None, traced: bool = True
    ) -> RunBuilder:
        """A scheduler iteration at `at`. `rows`: id, new, computed, prompt, out, spec, acc, resumed. Times from start."""
        t0, ids = self.start_ns + at, [row["id"] for row in rows]
        total = sum(row["new"] for row in rows)
        self.records.append({
            "kind": "step", "seq": self.seq, "t0": t0, "t1": t0 + 10 * US, "m0": at, "total": total, "running": len(rows),
            "waiting": 0, "kv": 0.1, "ids": ids, "new": [row["new"] for row in rows],
            "computed": [row["computed"] for row in rows], "prompts": [row["prompt"] for row in rows],
            "out": [row.get("out", 0) for row in rows], "spec": [row.get("spec", 0) for row in rows],
            "first": [item not in self.known for item in ids], "resumed": [row.get("resumed", False) for row in rows],
        })  # fmt: skip
        self.known.update(ids)
        self.records.append({
            "kind": "result", "seq": self.seq, "r0": t0 + dur, "r1": t0 + dur + 10 * US, "ids": ids,
            "acc": [row.get("acc", 1) for row in rows], "done": [], "reason": [], "done_out": [],
        })  # fmt: skip
        if traced:
            prefill = [row for row in rows if row["computed"] < row["prompt"]]
            decode = [row for row in rows if row["computed"] >= row["prompt"]]
            label = (
                f"execute_context_{len(prefill)}({sum(row['new'] for row in prefill)})"
                f"_generation_{len(decode)}({sum(row['new'] for row in decode)})"
            )
            self.trace.label(at + 20 * US, dur - 40 * US, label)
            self.trace.op("aten::mm", at + 30 * US, op_dur or dur - 60 * US, shapes=[[total, 8], [8, 8]])
        self.seq += 1
        self.end = max(self.end, at + dur + 10 * US)
        return self

    def request(
        self, name: str, at: int, token_at: Sequence[int], *, prompt: int, cached: int = 0, **facts: Any
    ) -> RunBuilder:
        """A request sent at `at` whose tokens came at `token_at`; known to the engine by the same id."""
        tokens = [self.start_ns + item for item in token_at]
        self.requests.append({
            "stepscope_request": 1, "client_request_id": name, "pass": "profiled", "index": len(self.requests),
            "session_id": None, "parent_session_id": None, "turn": 0, "planned_ns": None, "sent_ns": self.start_ns + at,
            "late_ns": 0, "first_token_ns": tokens[0], "last_token_ns": tokens[-1], "finished_ns": tokens[-1],
            "prompt_tokens": prompt, "cached_tokens": cached, "output_tokens": len(tokens), "status": "ok", "error": None,
            "tool_ns": 0, "think_ns": 0, "token_source": "ids", "token_ns": tokens,
        } | facts)  # fmt: skip
        queued = {"kind": "request", "event": "queued", "id": f"cmpl-{name}-0-00c0ffee", "ts": self.start_ns + at + 5 * US,
                  "session": None, "prompt": prompt, "arrival": self.start_ns + at + US}  # fmt: skip
        self.records.insert(1, queued)
        return self

    def write(self, folder: Path) -> Path:
        """Write the directory."""
        (folder / "ledger").mkdir(parents=True, exist_ok=True)
        (folder / "ledger" / "77.jsonl").write_text(_lines(self.records))
        (folder / "requests.jsonl").write_text(_lines(self.requests))
        self.trace.write(folder / "trace" / "rank0.1.pt.trace.json.gz")
        end_ns = self.start_ns + self.end
        span = PassRecord(
            name="profiled", start_ns=self.start_ns, end_ns=end_ns, requests=len(self.requests), failed=0,
            output_tokens=sum(item["output_tokens"] or 0 for item in self.requests),
        )  # fmt: skip
        window = CaptureWindow(start_ns=self.start_ns, end_ns=end_ns, marked_by="hook", steps=self.seq)
        replace(self.manifest, passes=[span], capture=window).write(folder)
        return folder


def microseconds(ns: int) -> str:
    """Decimal microseconds of integer ns, exactly."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def _lines(records: Sequence[dict[str, Any]]) -> str:
    """JSON lines; the ledger and the client write no blanks."""
    return "".join(json.dumps(item, separators=(",", ":")) + "\n" for item in records)
