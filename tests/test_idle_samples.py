"""Causes of idle time in real recordings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cli import Composition
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore

MS = 1_000_000
DATA = Path(__file__).resolve().parents[1].parent / "shared" / "data"
B200 = "gpu-traces/b200_vllm_eager_prefill/eager_trace.json.gz"
SGLANG = (
    "gpu-traces/sglang_decode/sglang_Qwen3-8B_decode.json.gz",
    "gpu-traces/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz",
)
VLLM = (
    "gpu-traces/vllm_decode_full/graph_execution.json.gz",
    "gpu-traces/vllm_prefilldecode_piecewise/graph_execution.json.gz",
)
SAMPLES: tuple[tuple[str, ...], ...] = (
    (B200,), ("gpu-traces/b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz",),
    ("gpu-traces/h100_transformers_qwen1.5_0.5b/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",),
    (SGLANG[0],), (SGLANG[1],), SGLANG, (VLLM[0],), (VLLM[1],),
    ("nsys/h100_2gpu_1s.sqlite",), ("nsys/healthy_1pct.sqlite",), ("nsys/mock.sqlite",),
    ("engine-traces/vllm_cpu/tiny_simple_stacks.pt.trace.json.gz",), ("engine-traces/vllm_cpu/server_agent3turns.pt.trace.json.gz",),
    ("engine-traces/sglang_cpu/engine-TP-0.trace.json.gz",),
)  # fmt: skip
Database = Callable[..., Path]


def causes(path: Path) -> dict[str, int]:
    """ns by cause."""
    with TraceStore.open(path) as store:
        return dict(store.query("SELECT cause, sum(dur_ns)::BIGINT FROM gaps GROUP BY cause").iter_rows())


@pytest.mark.parametrize(
    "names", SAMPLES, ids=lambda names: "+".join(Path(name).parent.name + "-" + Path(name).stem[:12] for name in names)
)
def test_every_idle_nanosecond_has_a_cause(names: tuple[str, ...], sample_database: Database) -> None:
    with TraceStore.open(sample_database(*names)) as store:
        devices = store.query(
            "SELECT d.rank, d.device, any_value(window_end_ns - window_start_ns) AS window_ns, any_value(busy_ns) AS busy_ns, "
            "any_value(idle_ns) AS idle_ns, coalesce(sum(g.dur_ns), 0)::BIGINT AS gap_ns, "
            "coalesce(sum(g.dur_ns) FILTER (WHERE g.cause <> 'unrecorded'), 0)::BIGINT AS caused_ns "
            "FROM devices AS d LEFT JOIN gaps AS g USING (rank, device) GROUP BY d.rank, d.device"
        )  # fmt: skip
        loose = store.query("SELECT * FROM gaps WHERE cause IS NULL OR detail IS NULL OR dur_ns <= 0")
        inside = store.query(
            "SELECT g.gap_id FROM gaps AS g JOIN kernels AS k ON k.valid AND k.rank = g.rank AND k.device = g.device "
            "AND k.start_ns < g.start_ns + g.dur_ns AND k.start_ns + k.dur_ns > g.start_ns"
        )
    assert devices.height
    for row in devices.to_dicts():
        assert row["busy_ns"] + row["gap_ns"] == row["window_ns"]
        assert row["caused_ns"] == row["idle_ns"]
    assert (loose.height, inside.height) == (0, 0)


@pytest.mark.parametrize(("name", "idle_ns"), [(VLLM[0], 25_473), (VLLM[1], 380_624)])
def test_gaps_inside_graphs_are_launch_latency(name: str, idle_ns: int, sample_database: Database) -> None:
    """The device was never out of launched work; totals as in the other tool's table, see test_sample_traces."""
    assert causes(sample_database(name)) == {"launch_latency": idle_ns}


def test_waits_for_work_outside_a_slice_stay_unrecorded(sample_database: Database) -> None:
    decode, prefill, both = (causes(sample_database(*names)) for names in ((SGLANG[0],), (SGLANG[1],), SGLANG))
    assert decode["unrecorded"] == 463_257_096 and prefill["unrecorded"] == both["unrecorded"] == 493_244_129
    idle_ns = sum(both.values()) - both["unrecorded"]
    assert 997_756_886 - 502_575_557 - both["unrecorded"] == idle_ns < 2 * MS


def test_eager_launching_is_what_the_b200_waits_for(tmp_path: Path) -> None:
    """73 ms of idle in 84 ms, and with stacks the frames behind them."""
    if not (DATA / B200).exists():
        pytest.skip("sample recordings are not here")
    path = tmp_path / "run.duckdb"
    ingest_once([str(DATA / B200)], path, IngestOptions(stacks=True, finish=Composition().analysis()))
    found = causes(path)
    assert sum(found.values()) == 72_890_696
    assert found["host_launch"] + found["host_prepare"] > 0.95 * sum(found.values())
    assert found["launch_latency"] + found["dependency"] > 0.99 * (
        sum(found.values()) - found["host_launch"] - found["host_prepare"]
    )
    with TraceStore.open(path) as store:
        (named,) = store.query(
            "SELECT sum(dur_ns) FILTER (WHERE contains(detail, 'frame ') AND contains(detail, '.py(')) / sum(dur_ns) AS frames, "
            "sum(dur_ns) FILTER (WHERE contains(detail, '_prepare_inputs') OR contains(detail, 'block_table.py')) > 0 AS preparing "
            "FROM gaps WHERE cause IN ('host_launch', 'host_prepare')"
        ).to_dicts()
        (step,) = store.query("SELECT bound FROM steps").to_dicts()
    assert named["frames"] > 0.95 and named["preparing"]
    assert step["bound"] == "host"
