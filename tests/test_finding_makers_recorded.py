"""Findings of a recording: what is planted in its tables is found with the numbers planted, and nothing without it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from energy_plant import LOW, RUN, Plant
from finding_evidence import assert_explained
from test_roofline import GPU, TRACES

from analyzers import energy, finding_engine
from analyzers.finding import AtMost, Finding, Proof, Severity
from analyzers.finding_decode import accepted_tokens
from analyzers.finding_limits import FRONTEND_FLOOR_NS, GRAPH_GAP_NS, MOST_GRAPH_GAP_NS
from analyzers.presets import model_config
from cli import Composition
from traces.ingest import IngestOptions, ingest_once

MS = 1_000_000
H100 = {"name": "NVIDIA H100 80GB HBM3", "peak_flops": 989e12, "peak_bandwidth": 3.35e12, "peak_source": "datasheet"}


class Recorded(Plant):
    """A run on one GPU, a step after another."""

    def __init__(self, **config: Any) -> None:
        super().__init__()
        known = {"engine_args": [], "workload": {"spec": "batch:n=4"}} | config
        self.con.execute("UPDATE runs SET engine = 'vllm', config = ?", [json.dumps(known)])
        self.at = self.n_steps = self.n_gaps = self.n_kernels = 0
        self.busy = 0

    def step(self, busy: int, *, idle: int = 0, cause: str = "host_launch", times: int = 1, **values: Any) -> Recorded:
        """`idle` ns of `cause` before the activity of each of `times` steps; columns of `steps` in `values`."""
        for _ in range(times):
            if idle:
                self.gap(idle, cause, step_after=self.n_steps)
            start = self.at
            self.row("steps", **{
                "rank": 0, "step_id": self.n_steps, "kind": "decode", "busy_ns": busy, "idle_ns": idle, "n_kernels": 100,
                "graph_mode": "none", "device_start_ns": start, "device_end_ns": start + busy, "trusted": True,
            } | values)  # fmt: skip
            self.at, self.n_steps, self.busy = self.at + busy, self.n_steps + 1, self.busy + busy
        return self

    def gap(self, dur: int, cause: str, **values: Any) -> Recorded:
        row = {"rank": 0, "device": 0, "gap_id": self.n_gaps, "start_ns": self.at, "dur_ns": dur, "cause": cause}
        self.row("gaps", **row | values)
        self.at, self.n_gaps = self.at + dur, self.n_gaps + 1
        return self

    def kernel(self, dur: int, category: str, *, start: int = 0, **values: Any) -> Recorded:
        self.row("kernels", **{
            "rank": 0, "device": 0, "stream": 7, "kernel_id": self.n_kernels, "kind": "kernel", "name": f"{category}_kernel",
            "category": category, "start_ns": start, "dur_ns": dur, "busy_ns": dur, "valid": True,
        } | values)  # fmt: skip
        self.n_kernels += 1
        return self

    def found(self, *, device: dict[str, Any] | None = None, busy: int | None = None) -> dict[str, Finding]:
        """Closes the window; findings that are shown, whose evidence returns rows."""
        busy = self.busy if busy is None else busy
        self.row(
            "devices", rank=0, device=0, window_start_ns=0, window_end_ns=max(self.at, busy), busy_ns=busy,
            idle_ns=max(self.at - busy, 0), unrecorded_ns=0, **H100 if device is None else device,
        )  # fmt: skip
        made = list(finding_engine.make(self.con, RUN))
        assert len({finding.finding_id for finding in made}) == len(made)
        shown = {finding.finding_id: finding for finding in made if finding.shown}
        for finding in shown.values():
            evidence = finding.evidence.replace("$run_id", f"'{RUN}'")
            assert_explained(self.con, finding.finding_id, evidence, finding.device_ns, finding.energy_j)
            said = f"{finding.title}; {finding.cause}"
            assert "bound by" not in said or "latency" in said, "the side of the roofline is no bound"
        return shown


def interval(finding: Finding) -> tuple[float, float, float, str]:
    assert finding.gain is not None
    return finding.gain.interval.low, finding.gain.value, finding.gain.interval.high, finding.gain.of


def withhold(run: Recorded, *names: str) -> Recorded:
    run.row("health", check_id="x", status="withheld", affects=json.dumps(names), message="planted")
    return run


def test_graphs_that_are_off() -> None:
    run = Recorded(engine_args=["enforce-eager", "dtype=bfloat16"]).step(2 * MS, idle=MS, times=10)
    finding = run.found()["host.graphs-off"]
    whole, kernels = 30 * MS, 1000
    low, value, high, of = interval(finding)
    assert (low, value) == ((10 * MS - kernels * MOST_GRAPH_GAP_NS) / whole, (10 * MS - kernels * GRAPH_GAP_NS) / whole)
    assert (high, of) == (10 * MS / whole, "step_time")
    assert (finding.device_ns, finding.share) == (10 * MS, pytest.approx(1 / 3))
    assert finding.proof == Proof(without=("enforce-eager",))


def test_graphs_off_by_default_cannot_be_proved_by_a_flag() -> None:
    assert Recorded().step(2 * MS, idle=MS, times=10).found()["host.graphs-off"].proof is None


def test_launches_that_keep_up_are_no_finding() -> None:
    assert Recorded().step(20 * MS, idle=MS // 2, times=10).found() == {}


def test_steps_outside_graphs() -> None:
    run = Recorded().step(2 * MS, graph_mode="full", times=10).step(2 * MS, idle=2 * MS, times=3)
    made = run.found()
    assert set(made) == {"host.outside-graphs"}
    assert "in 3 decode steps" in made["host.outside-graphs"].cause and "10 others" in made["host.outside-graphs"].cause


def test_prompts_bound_by_launches() -> None:
    low, value, high, _ = interval(
        Recorded().step(MS, idle=3 * MS, kind="prefill", prefill_tokens=9).found()["host.launches"]
    )
    assert (low, value, high) == (0.375, 0.5625, 0.75)


@pytest.mark.parametrize(
    ("mode", "cause"), [("none", "scheduler"), ("full", "sampling_output"), ("full", "host_launch")]
)
def test_work_between_steps(mode: str, cause: str) -> None:
    run = Recorded().step(2 * MS, idle=MS, cause=cause, graph_mode=mode, times=10)
    finding = run.found()["host.between-steps"]
    low, _, high, of = interval(finding)
    assert (low, high, of) == (1 / 6 if cause == "host_launch" else 1 / 3, 1 / 3, "window")
    assert finding.device_ns == 10 * MS, "all of the wait, though only half of it may go away"


def test_a_host_that_was_slowed_while_it_was_recorded_promises_no_gain() -> None:
    """Without a control pass nobody knows where the gain begins: unknown, not 0, and not what a quick host would have."""
    run = Recorded(with_stack=1, record_shapes=1).step(MS, idle=3 * MS, kind="prefill", prefill_tokens=9)
    finding = run.found()["host.launches"]
    assert (finding.gain, finding.at_most, finding.severity) == (None, AtMost(high=0.75), Severity.WARNING)
    assert "stacks and operator shapes were recorded" in finding.cause and "the profiler's" in finding.cause
    assert finding.time_ns == finding.device_ns == 3 * MS
    assert finding.row(RUN, 1)[10:14] == (None, None, 0.75, "step_time")
    quiet = Recorded(with_stack=0, record_shapes="no").step(MS, idle=3 * MS, kind="prefill", prefill_tokens=9)
    assert quiet.found()["host.launches"].gain is not None


@pytest.mark.parametrize(("longer", "low"), [(1.5, 1 - 1.5 * (1 - 0.375)), (1.0, 0.375), (0.9, 0.375)])
def test_a_control_pass_tells_how_much_of_a_wait_is_the_profilers(longer: float, low: float) -> None:
    """Steps took 1.5 times as long: a wait of half of that may be all of it, or none."""
    run = slowed(Recorded(record_shapes=True).step(MS, idle=3 * MS, kind="prefill", prefill_tokens=9), longer)
    finding = run.found()["host.launches"]
    assert interval(finding)[0] == pytest.approx(low) and interval(finding)[2] == 0.75
    assert ("1.50 times as long" in finding.cause) == (longer > 1)
    usual = 1 - longer * (1 - 0.5625)
    assert interval(finding)[1] == pytest.approx((0.5625 + usual) / 2 if longer > 1 else 0.5625)


def test_a_wait_that_may_all_be_the_profilers_is_no_finding() -> None:
    run = slowed(Recorded(record_shapes=True).step(MS, idle=3 * MS, kind="prefill", prefill_tokens=9), 2.0)
    assert run.found() == {}


def slowed(run: Recorded, longer: float) -> Recorded:
    """A ledger with a step of the control pass, and a recorded one that took `longer` times as long."""
    run.con.execute("UPDATE runs SET window_start_ns = 1000000000, window_end_ns = 2000000000")
    for number, (name, start, dur) in enumerate((("control", 0, MS), ("profiled", 1_000 * MS, round(longer * MS)))):
        run.row(
            "ledger_steps", pid=1, seq=number, sched_start_ns=start, sched_end_ns=start, result_start_ns=start + dur,
            result_end_ns=start + dur, total_tokens=9, **{"pass": name},
        )  # fmt: skip
    return run


def test_no_more_is_hidden_than_the_device_is_busy() -> None:
    _, _, high, _ = interval(
        Recorded().step(MS, idle=9 * MS, cause="scheduler", times=10).found()["host.between-steps"]
    )
    assert high == 0.1


def test_scheduling_beside_the_device_is_no_finding() -> None:
    run = Recorded(engine_facts={"async_scheduling": True}).step(2 * MS, idle=MS, cause="scheduler", times=10)
    assert run.found() == {}


def test_waits_of_a_cpu_engine_or_that_are_withheld_are_no_finding() -> None:
    run = Recorded().step(2 * MS, idle=MS, times=10)
    run.con.execute("UPDATE runs SET device_kind = 'cpu'")
    assert run.found() == {}
    for name in ("gaps", "gaps.cause", "devices.idle_ns", "steps.idle_ns", "devices", "steps"):
        assert withhold(Recorded().step(2 * MS, idle=MS, times=10), name).found() == {}, name


def test_untrusted_steps_are_in_no_finding() -> None:
    run = Recorded().step(2 * MS, idle=MS, times=10, trusted=False)
    assert run.found() == {}


def decode(run: Recorded, step_ms: float = 10, batch: int = 8, context: int = 1000, **values: Any) -> Recorded:
    """Decode steps in graphs, on the memory side."""
    return run.step(
        round(step_ms * MS), graph_mode="full", times=20, side="memory", decode_reqs=batch, decode_tokens=batch,
        decode_kv_tokens=batch * context, memory_ns=round(step_ms * MS), **values,
    )  # fmt: skip


def test_decode_that_waits_for_memory() -> None:
    """Weights of 15 GB at 3.35 TB/s are 4.5 ms of the 5 ms of a step: half as many bytes, or twice as many requests."""
    config = dict(model_config("qwen3-8b"))
    made = decode(Recorded(model_config=config), 5).found()
    assert set(made) == {"decode.small-batch", "decode.fp8-weights", "decode.speculation", "decode.fp8-cache"}
    low, value, high, _ = interval(made["decode.fp8-weights"])
    weights_ms = 2 * 6.95e9 / 3.35e12 * 1e3  # all but the embedding and the head, which stay in 16 bits
    assert low == pytest.approx(weights_ms / 2 / 5, rel=0.02) and low < value < high < 0.51
    assert made["decode.fp8-weights"].proof == Proof(engine_args=("quantization=fp8",))
    low, value, high, _ = interval(made["decode.small-batch"])
    assert 0.4 < low < value < high < 0.51
    assert made["decode.speculation"].severity is Severity.WARNING, "it depends on what is accepted"
    assert made["decode.fp8-weights"].device_ns == 100 * MS
    low, *_ = interval(made["decode.speculation"])
    assert low < 1 - 1 / accepted_tokens(0.3, 3)


@pytest.mark.parametrize("change", [
    {"side": "compute"}, {"trusted": False}, {"decode_tokens": 16}, {"kind": "other"},
])  # fmt: skip
def test_decode_that_does_not_wait_for_memory(change: dict[str, Any]) -> None:
    run = Recorded(model_config=dict(model_config("qwen3-8b")))
    values = {"side": "memory", "decode_reqs": 8, "decode_tokens": 8, "decode_kv_tokens": 8000} | change
    assert run.step(5 * MS, graph_mode="full", times=20, **values).found() == {}


def test_nothing_from_a_model_that_cannot_be_the_one_that_ran() -> None:
    config = dict(model_config("qwen3-8b"))
    assert decode(Recorded(model_config=config), 1).found() == {}, "faster than its weights can be read"
    assert decode(Recorded(model_config={"model_type": "odd"}), 5).found() == {}
    assert decode(Recorded(), 5).found() == {}
    assert decode(Recorded(model_config=config), 5).found(device={"name": "?"}) == {}
    shared = Recorded(model_config=config, engine_facts={"pipeline_parallel_size": 2})
    assert decode(shared, 5).found() == {}
    refused = decode(Recorded(model_config=config), 5)
    refused.row("health", check_id="expert_routing", status="warning", affects="[]", message="planted")
    assert refused.found() == {}


def test_nothing_is_promised_of_drafts_where_steps_are_far_from_their_roof() -> None:
    """What a step takes beyond its roof may grow with the tokens: then four of them cost four times as much."""
    config = dict(model_config("qwen3-8b"))
    far = decode(Recorded(model_config=config), 12).found()
    assert "decode.speculation" not in far and "decode.small-batch" in far
    low, value, high, _ = interval(far["decode.small-batch"])
    assert "of their roof" in far["decode.small-batch"].cause and "Assumed" in far["decode.small-batch"].cause
    assert low < 0.25 < value < high, "at the lower end the rest grows with the batch"
    assert not any("waits for memory" in finding.title for finding in far.values())


def test_quantized_weights_are_not_advised_again() -> None:
    config = dict(model_config("qwen3-8b"))
    made = decode(Recorded(model_config=config, engine_facts={"quantization": "fp8"}), 5).found()
    assert "decode.fp8-weights" not in made and "decode.small-batch" in made
    again = decode(Recorded(model_config=config, engine_args=["speculative-config={}"]), 5).found()
    assert "decode.speculation" not in again


def test_a_large_batch_is_no_finding() -> None:
    run = decode(Recorded(model_config=dict(model_config("qwen3-8b"))), 60, batch=256, context=4000)
    assert "decode.small-batch" not in run.found()


def prefill(run: Recorded, side: str = "compute", **values: Any) -> Recorded:
    run.step(100 * MS, kind="prefill", graph_mode="full", prefill_ns=100 * MS, prefill_tokens=8000, side=side)
    half = {"side": side, "dtype": "bfloat16", "roof_fraction": 0.8, "step_id": 0, "bound": side}
    run.kernel(70 * MS, "gemm", prefill_ns=70 * MS, **half | values)
    return run.kernel(30 * MS, "attention", prefill_ns=30 * MS, **half)


def test_prefill_bound_by_computing() -> None:
    made = prefill(Recorded()).found()
    assert set(made) == {"prefill.fp8", "prefill.prompts"}
    low, value, high, of = interval(made["prefill.fp8"])
    assert (low, high, of) == (pytest.approx(0.7 * 0.8 / 2, rel=0.01), pytest.approx(0.7 / 2, rel=0.01), "step_time")
    assert made["prefill.fp8"].device_ns == 70 * MS
    low, value, high, _ = interval(made["prefill.prompts"])
    assert (low, high) == (pytest.approx(0.1), pytest.approx(0.1 + 0.09 * 0.3)) and low < value < high


def test_prefill_that_waits_for_memory_or_is_quantized() -> None:
    assert prefill(Recorded(), side="memory").found() == {}
    assert "prefill.fp8" not in prefill(Recorded(), dtype="fp8").found()
    assert "prefill.fp8" not in prefill(Recorded(engine_facts={"quantization": "fp8"})).found()
    assert "prefill.fp8" not in prefill(Recorded()).found(device=H100 | {"name": "NVIDIA A100-SXM4-80GB"}), "has no fp8"
    assert prefill(withhold(Recorded(), "steps.kind", "steps.prefill_ns")).found() == {}


def mixed(run: Recorded, interference: int = 30 * MS, times: int = 5, tokens: int = 4000) -> Recorded:
    return run.step(
        10 * MS + interference, kind="mixed", graph_mode="full", times=times, decode_reqs=8, decode_tokens=8,
        prefill_tokens=tokens, interference_ns=interference,
    )  # fmt: skip


def test_long_prefills_that_delay_decoding() -> None:
    made = mixed(Recorded().step(10 * MS, graph_mode="full", decode_reqs=8, times=5)).found()
    assert set(made) == {"prefill.interference"}
    finding = made["prefill.interference"]
    assert "--max-num-batched-tokens 1024;" in finding.fix, "a third of the chunk doubles the step; rounded down"
    away = 0.75 * (1 - 1024 / 4000)
    assert interval(finding) == (pytest.approx(0.7 * away), pytest.approx(away), 0.75, "token_intervals")
    assert (finding.device_ns, finding.proof) == (150 * MS, None)


def test_small_delays_are_no_finding() -> None:
    assert mixed(Recorded().step(10 * MS, graph_mode="full", times=5), interference=4 * MS).found() == {}
    assert mixed(Recorded().step(10 * MS, graph_mode="full", times=500), times=1).found() == {}, "too rare"
    assert mixed(Recorded().step(10 * MS, graph_mode="full", times=5), tokens=32).found() == {}, "chunks are small"


def test_kernels_below_their_roof() -> None:
    run = Recorded().kernel(60, "gemm", bound="inefficient", roof_fraction=0.25, name="<b>slow</b>" + "x" * 5000)
    run.kernel(30, "moe", bound="memory", roof_fraction=0.6).kernel(10, "norm", bound="latency", roof_fraction=0.1)
    made = run.found(busy=100)
    assert set(made) == {"kernels.gemm"}
    assert interval(made["kernels.gemm"]) == (
        pytest.approx(0.6 * 0.5), pytest.approx(0.6 * (1 - 0.25 / 0.65)), pytest.approx(0.6 * (1 - 0.25 / 0.8)), "busy",
    )  # fmt: skip
    assert len(made["kernels.gemm"].cause) < 300 and made["kernels.gemm"].device_ns == 60


@pytest.mark.parametrize(("dtype", "flag"), [("bf16", False), (None, False), ("fp8", True), ("float8_e4m3fn", True)])
def test_a_flag_for_products_in_fp8_is_told_where_there_are_some(dtype: str | None, flag: bool) -> None:
    run = Recorded().kernel(60, "gemm", bound="inefficient", roof_fraction=0.25, dtype=dtype)
    fix = run.found(busy=100)["kernels.gemm"].fix
    assert ("--fp8-gemm-backend" in fix) == flag and "TUNABLEOP" not in fix, "that is for AMD"


def test_kernels_of_an_unknown_roof_or_withheld_or_impossible() -> None:
    slow = {"bound": "inefficient", "roof_fraction": 0.25}
    assert Recorded().kernel(60, "gemm", **slow).found(device={"name": "?"}, busy=100) == {}
    assert Recorded().kernel(60, "gemm", **slow | {"impossible": True}).found(busy=100) == {}
    assert Recorded().kernel(60, "gemm", **slow | {"valid": False}).found(busy=100) == {}
    assert Recorded().kernel(4, "gemm", **slow).found(busy=100) == {}, "too little time"
    for name in ("kernels", "devices.busy_ns", "kernels.category", "kernels.flops", "kernels.bytes"):
        assert withhold(Recorded().kernel(60, "gemm", **slow), name).found(busy=100) == {}, name


def exposed(run: Recorded) -> Recorded:
    """40 ns of collectives, 15 of them beside a product; 60 + 25 busy."""
    run.kernel(60, "gemm", start=0, bound="compute", roof_fraction=0.9)
    run.kernel(20, "comm", start=50, roof_fraction=0.25, bound="comm")
    run.kernel(15, "comm", start=70, stream=8, roof_fraction=0.25, bound="comm")
    return run.kernel(5, "comm", start=20, stream=8, roof_fraction=0.25, bound="comm")


def test_collectives_that_nothing_hides() -> None:
    made = exposed(Recorded()).found(busy=85)
    assert set(made) == {"comm.exposed"}
    finding = made["comm.exposed"]
    assert finding.device_ns == 25, "60 to 85"
    assert interval(finding) == (
        pytest.approx(0.5 * 25 / 85),
        pytest.approx(0.75 * 25 / 85),
        pytest.approx(25 / 85),
        "busy",
    )


def test_hidden_collectives_are_no_finding_and_those_at_the_links_rate_are_only_told() -> None:
    assert Recorded().kernel(60, "gemm").kernel(40, "comm", start=10).found(busy=60) == {}
    told = Recorded().kernel(60, "gemm").kernel(40, "comm", start=60, roof_fraction=0.7).found(busy=100)["comm.exposed"]
    assert (told.severity, told.gain) == (Severity.INFO, None)
    assert "not known" in Recorded().kernel(40, "comm").found(busy=40)["comm.exposed"].cause


def test_a_device_that_waits_for_the_frontend() -> None:
    run = Recorded().step(100 * MS, graph_mode="full")
    for _ in range(4):
        run.gap(25 * MS, "frontend")
    low, _, high, of = interval(run.found()["frontend.input"])
    assert (low, high, of) == ((100 * MS - 4 * FRONTEND_FLOOR_NS) / (200 * MS), 0.5, "window")


def test_a_quick_frontend_is_no_finding() -> None:
    run = Recorded().step(1000 * MS, graph_mode="full").gap(25 * MS, "frontend")
    assert run.found() == {}
    assert withhold(Recorded().step(MS).gap(25 * MS, "frontend"), "gaps.cause").found() == {}


@pytest.mark.parametrize(("late_ms", "count", "told"), [(80, 20, True), (2, 20, False), (80, 3, False)])
def test_a_client_that_is_late(late_ms: int, count: int, told: bool) -> None:
    run = Recorded()
    for number in range(count):
        at = number * MS
        run.row("requests", request_id=str(number), planned_ns=at, arrival_ns=at + late_ms * MS, status="ok")
        run.row("requests", request_id=f"{number}b", arrival_ns=at, status="ok")  # planned for no time
        run.row(
            "requests",
            request_id=f"{number}w",
            planned_ns=at,
            arrival_ns=at + 900 * MS,
            status="ok",
            **{"pass": "warmup"},
        )
    made = run.found()
    assert set(made) == ({"client.late"} if told else set())
    if told:
        assert made["client.late"].gain is None and "of 20 requests" in made["client.late"].cause


def sensed(seconds: int, idle: int) -> Recorded:
    run = Recorded()
    busy = {"sm_active": 0.6, "power_w": 300.0, "resident": True}
    low = {**LOW, "power_w": 100.0, "resident": True}
    run.samples([{"t": t, **(low if t < idle else busy)} for t in range(seconds + 1)])
    run.con.execute(f"SET VARIABLE run_id = '{RUN}'")
    energy.fill(run.con, RUN)
    return run


def test_devices_that_are_loaded_and_idle() -> None:
    finding = sensed(100, 60).found()["energy.execution-idle"]
    low, value, high, of = interval(finding)
    assert finding.energy_j == pytest.approx(60 * 100, rel=0.05)
    assert of == "energy" and 0 < low < value < high < 0.5
    assert "60% of the time" in finding.cause


def test_devices_that_are_hardly_idle_or_withheld() -> None:
    assert sensed(100, 5).found() == {}
    assert withhold(sensed(100, 60), "telemetry", "execution_idle").found() == {}
    told = withhold(sensed(100, 60), "telemetry.power_w", "telemetry.energy_j").found()["energy.execution-idle"]
    assert (told.severity, told.gain, told.energy_j) == (Severity.INFO, None, None)


def test_an_empty_run_has_none() -> None:
    assert Recorded().found() == {}
    bare = duckdb.connect()
    bare.execute((Path(__file__).parents[1] / "traces" / "schema.sql").read_text())
    bare.execute("INSERT INTO runs (run_id) VALUES ('r')")
    assert list(finding_engine.make(bare, "r")) == []


def test_hostile_times_and_names_raise_nothing() -> None:
    run = Recorded(model_config=dict(model_config("qwen3-8b")))
    run.step(1, kind=None, graph_mode=None).step(
        1 << 40, decode_reqs=0, decode_tokens=0, decode_kv_tokens=None, side=None
    )
    run.step(5, kind="mixed", decode_reqs=1, prefill_tokens=0, interference_ns=-4).gap(1, "'; DROP TABLE steps; --")
    run.kernel(1, "it's", bound="inefficient", roof_fraction=1e-300).kernel(0, "comm").kernel(
        7, "comm", roof_fraction=0.0
    )
    run.row("requests", request_id="x'", planned_ns=-(1 << 60), arrival_ns=1 << 60, status="ok")
    run.found()


SAMPLES: dict[str, set[str]] = {
    "vllm_decode_full": {"decode.small-batch", "decode.fp8-cache", "kernels.moe", "kernels.gemm"},
    "vllm_prefilldecode_piecewise": {"prefill.prompts", "prefill.interference", "kernels.moe", "kernels.gemm"},
    "sglang_decode": {
        "decode.small-batch",
        "decode.fp8-weights",
        "decode.fp8-cache",
        "kernels.gemm",
    },
    "sglang_prefilldecode": {"prefill.prompts", "prefill.fp8", "kernels.gemm"},
    "b300_sglang_decode_qwen3_30b_a3b": {"host.between-steps"},
    "b200_vllm_eager_prefill": {"host.launches", "comm.exposed"},
    "h100_transformers_qwen1.5_0.5b": {"kernels.elementwise", "kernels.attention"},
}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], duckdb.DuckDBPyConnection]:
    folder = tmp_path_factory.mktemp("findings")

    def analyzed(name: str) -> duckdb.DuckDBPyConnection:
        file, preset = TRACES[name]
        if not (GPU / name / file).exists():
            pytest.skip(f"sample recording is not here: {GPU / name / file}")
        capture = GPU / name / "capture"
        options = {"capture": capture} if capture.exists() else {}
        finish = Composition().analysis(model_config=preset, **options)
        ingest_once([str(GPU / name / file)], folder / f"{name}.duckdb", IngestOptions(finish=finish))
        return duckdb.connect(str(folder / f"{name}.duckdb"), read_only=True)

    return analyzed


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_have_these_findings_and_no_others(
    sample: Callable[[str], duckdb.DuckDBPyConnection], name: str
) -> None:
    con = sample(name)
    rows = con.execute(
        "SELECT finding_id, evidence, gain_low, predicted_gain, gain_high, gain_of, device_ns, energy_j FROM findings ORDER BY place"
    ).fetchall()
    assert {row[0] for row in rows} == SAMPLES[name]
    for finding_id, evidence, low, value, high, of, device_ns, energy_j in rows:
        assert_explained(con, finding_id, evidence, device_ns, energy_j)
        assert value is None or 0 < low <= value <= high <= 1
        if finding_id.startswith("host."):  # both were recorded with stacks and shapes
            assert (low, value) == (None, None) and 0 < high <= 1
        if name == "sglang_decode":  # idle time is withheld, so the step time is not known
            assert of == "busy"
