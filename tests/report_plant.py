"""A run database with something in every section of a report; `word` is in every text that a recording can bring."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from energy_plant import LOW, RUN, Plant, S, ns

from analyzers import energy

STEPS = 20
HOSTILE = (
    "</script></title><script>document.documentElement.dataset.hacked=1</script>"
    '<img src=x onerror="document.documentElement.dataset.hacked=2"><b>bold</b>\'"`&lt;%{x}\u2028\x1b[31m--><!--'
)
_BOUNDS = ("compute", "memory", "latency", None)
_CATEGORIES = ("gemm", "attention", "norm", "rope")


def planted(path: Path, word: str = "", *, steps: int = STEPS) -> Path:
    """`steps` steps of 0.4 s in a window of half a second each: prefill, mixed and decode steps, gaps, requests, power, findings."""
    plant = Plant(path)
    config = {
        "engine_facts": {"block_size": 16, "kv_cache_dtype": f"auto{word}"},
        "model_config": {"model_type": f"llama{word}"},
    }
    plant.con.execute(
        "UPDATE runs SET name = ?, engine = 'vllm', engine_version = ?, model = ?, dtype = 'bfloat16', window_start_ns = ?, "
        "window_end_ns = ?, config = ?",
        [f"run{word}", f"0{word}", f"/models/m{word}", ns(0), ns(steps / 2), json.dumps(config)],
    )
    peaks = {
        "name": f"NVIDIA L40S{word}",
        "peak_flops": 3.6e14,
        "peak_bandwidth": 8.6e11,
        "peak_source": "datasheet",
        "ridge": 418.6,
    }
    busy = round(0.4 * S) * steps
    plant.window(0, steps / 2, busy_ns=busy, idle_ns=steps * S // 2 - busy, **peaks)
    for seq in range(steps):
        _step(plant, seq, word)
    _requests(plant, steps, word)
    plant.sampled(
        steps / 2, lambda t: {**LOW, "sm_active": 0.9 if t < 5 else 0.01, "resident": True, "power_w": 100.0 + t}
    )
    plant.row("sensors", rank=0, device=0, source="nvml", name=f"NVIDIA L40S{word}")
    for status, affects in (("ok", []), ("warning", ["gaps.cause"])):
        plant.row(
            "health", check_id=f"check_{status}", status=status, affects=json.dumps(affects), message=f"message{word}"
        )
    _findings(plant, word)
    plant.row(
        "sources", src=0, name=f"trace{word}.json", role="trace", format="kineto", bytes=10, events=5, sha256="ab" * 32
    )
    energy.fill(plant.con, RUN)
    plant.con.close()
    return path


def _step(plant: Plant, seq: int, word: str) -> None:
    at = seq / 2
    kind = "prefill" if seq % 10 == 0 else "mixed" if seq % 10 == 5 else "decode"
    prefill = {"prefill": 1.0, "mixed": 0.5, "decode": 0.0}[kind]
    values: dict[str, Any] = {
        "prefill_ns": round(prefill * 0.4 * S),
        "decode_ns": round((1 - prefill) * 0.4 * S),
        "other_ns": 0,
        "idle_ns": 0,
        "unrecorded_ns": 0,
        "interference_ns": 10_000_000 if kind == "mixed" else None,
        "prefill_reqs": int(prefill > 0),
        "prefill_tokens": 64 if prefill else 0,
        "prefill_kv_tokens": 64 if prefill else 0,
        "decode_reqs": 4 if prefill < 1 else 0,
        "decode_tokens": 4 if prefill < 1 else 0,
        "decode_kv_tokens": 400 + seq,
        "flops": 4e12,
        "bytes": 4e9,
        "intensity": 1000.0 if prefill else 10.0,
        "cost_coverage": 1.0,
        "source": "label",
        "label": f"label{word}",
        "ledger_seq": seq,
        "n_kernels": 4,
        "accepted_tokens": 4,
    }
    plant.step(seq, kind, at, at + 0.4, **values)
    for i in range(4):
        plant.kernel(at + i * 0.1, at + (i + 1) * 0.1, seq, prefill=prefill)
    plant.con.execute(
        "UPDATE kernels SET name = concat('k', kernel_id % 4, ?), category = list_extract(?, kernel_id % 4 + 1), op_name = ?, "
        "flops = 1e12, bytes = 1e9 * (kernel_id % 4 + 1), intensity = 1e3 / (kernel_id % 4 + 1), cost_source = 'shapes', "
        "bound = list_extract(?, kernel_id % 4 + 1), side = 'memory', roof_fraction = 0.3 WHERE step_id = ? AND name = 'k'",
        [word, list(_CATEGORIES), f"op{word}", list(_BOUNDS), seq],
    )
    plant.gap(at + 0.4, at + 0.5, ("host_launch", "no_work")[seq % 2])
    plant.con.execute("UPDATE gaps SET detail = ? WHERE detail IS NULL", [f"frame{word}"])
    plant.row(
        "ledger_steps",
        pid=1,
        seq=seq,
        **{"pass": "control"},
        sched_start_ns=ns(at),
        result_end_ns=ns(at + 0.45),
        total_tokens=68,
        running=4,
        waiting=1,
        kv_usage=0.25 + seq / 1000,
    )


def _requests(plant: Plant, steps: int, word: str) -> None:
    for i in range(6):
        name, at = f"q{i}{word}", i * steps / 14
        plant.request(
            name,
            at,
            at + 3,
            client_request_id=f"c{i}{word}",
            **{"pass": "control"},
            session_id=f"s{i % 2}{word}",
            turn=i // 2,
            status="ok",
            queued_ns=ns(at + 0.01),
            scheduled_ns=ns(at + 0.1),
            first_token_ns=ns(at + 0.5),
            last_token_ns=ns(at + 2.9),
            prompt_tokens=100,
            cached_tokens=40,
            output_tokens=5,
            queue_ns=S // 10,
            error=f"error{word}",
        )
        for j in range(5):
            plant.row("tokens", request_id=name, i=j, ts_ns=ns(at + 0.5 + j * 0.6))
        start = 0
        for piece, cause, tokens in (
            ("cached", None, 40),
            ("fresh", None, 30),
            ("resent_output", None, 10),
            ("lost", "prefix_changed", 20),
        ):
            plant.row(
                "reuse",
                request_id=name,
                piece=piece,
                cause=cause,
                start_token=start,
                tokens=tokens,
                role="user",
                detail=f"text{word}",
            )
            start += tokens


def _findings(plant: Plant, word: str) -> None:
    for place, severity in enumerate(("critical", "warning", "warning", "info"), start=1):
        known = severity != "info"
        gain = (
            {"predicted_gain": 0.3 / place, "gain_low": 0.2 / place, "gain_high": 0.4 / place, "gain_of": "step_time"}
            if known
            else {}
        )
        plant.row(
            "findings",
            finding_id=f"planted.{place}",
            place=place,
            severity=severity,
            title=f"finding {place}{word}",
            cause=f"because{word}",
            device_ns=S * (9 - place),
            share=0.1,
            time_ns=S * (9 - place),
            evidence=f"SELECT '{word.replace(chr(39), '')}' AS word",
            fix=f"--flag{word}",
            **gain,
        )
