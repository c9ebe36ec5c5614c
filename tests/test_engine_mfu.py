"""vLLM's own estimate of a step (`--enable-mfu-metrics`) against ours, on a real run: where they differ, and by what.

docs/roofline-vs-vllm.md says the same in words. A step's difference is the causal triangle, what vLLM leaves out, and
nothing else; so most comparisons are exact.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from engine_llama import ENGINE_MARKS, EngineRun
from ledger_oracle import records_of, scheduled

from analyzers.costs.attention import PhaseLoad, load_of_requests
from analyzers.costs.cost import Cost
from analyzers.costs.model import step_cost
from analyzers.costs.shape import ModelShape, model_shape
from analyzers.costs.weights import weight_counts

pytestmark = [*ENGINE_MARKS, pytest.mark.quiet]

LIMIT = 0.03
THEIRS = ("gemm", "attention", "logits")  # categories of which vLLM counts operations
LEFT_OUT = ("norm", "activation", "rope", "sampling", "embedding", "kv_cache")
STEPS = """
    SELECT s.seq, s.kind, s.flops, s.prefill_reqs, s.prefill_tokens, s.prefill_kv_tokens, s.prefill_qq, s.prefill_qk,
        s.decode_reqs, s.decode_tokens, s.decode_kv_tokens, s.decode_qk, q.scheduled, l.pass
    FROM steps AS s
    JOIN (
        SELECT step_id, map(list(request_id ORDER BY request_id), list(new_tokens ORDER BY request_id)) AS scheduled
        FROM step_requests GROUP BY step_id
    ) AS q USING (step_id)
    JOIN ledger_steps AS l ON l.seq = s.seq
    ORDER BY s.seq
"""
Step = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def model(llama_run: EngineRun) -> ModelShape:
    config = json.loads(llama_run.rows("SELECT config FROM runs")[0]["config"])
    return model_shape(config["model_config"], dtype=config["dtype"])


@pytest.fixture(scope="module")
def steps(llama_run: EngineRun) -> list[Step]:
    """Recorded steps, each with vLLM's estimate of it."""
    rows = llama_run.rows(STEPS)
    theirs = [line for line in llama_run.estimates if any("-profiled-" in name for name in line["scheduled"])]
    assert len(theirs) == len(rows) > 30
    paired = list(zip(rows, theirs, strict=True))
    assert all(row["scheduled"] == line["scheduled"] for row, line in paired)
    assert {row["kind"] for row in rows} == {"prefill", "mixed", "decode"}
    return paired


def loads(row: dict[str, Any]) -> tuple[PhaseLoad, PhaseLoad]:
    prefill, decode = (
        PhaseLoad(
            reqs=row[f"{phase}_reqs"], tokens=row[f"{phase}_tokens"], kv_tokens=row[f"{phase}_kv_tokens"],
            qq=row["prefill_qq"] if phase == "prefill" else row["decode_tokens"], qk=row[f"{phase}_qk"],
            sampled_rows=row[f"{phase}_reqs"], prompts=phase == "prefill",
        )
        for phase in ("prefill", "decode")
    )  # fmt: skip
    return prefill, decode


def costs(model: ModelShape, row: dict[str, Any]) -> dict[str, Cost]:
    return {category: step_cost(model, category, *loads(row)) for category in THEIRS + LEFT_OUT}


def triangle(model: ModelShape, qq: float, tokens: float = 0) -> float:
    """Operations on pairs that the causal mask leaves out: vLLM multiplies each prompt's tokens with all of it.

    A step's prompts lose q²/2; with `tokens` it is (q² − q)/2, which is exact."""
    return model.layers * 2 * model.heads_q * (model.dim_qk + model.dim_v) * (qq - tokens) / 2


def flops(found: dict[str, Cost], categories: tuple[str, ...]) -> float:
    return float(sum(float(found[category].flops) for category in categories))


def apart(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / theirs


def test_operations_are_equal_step_by_step_but_for_the_triangle(steps: list[Step], model: ModelShape) -> None:
    for row, line in steps:
        found = costs(model, row)
        masked = triangle(model, row["prefill_qq"])
        theirs = line["totals"][0]
        assert flops(found, THEIRS) + masked == pytest.approx(theirs, rel=1e-9), row["seq"]
        assert flops(found, THEIRS + LEFT_OUT) + masked == pytest.approx(theirs, rel=LIMIT)
        assert 0 < flops(found, LEFT_OUT) < 0.002 * theirs, "what vLLM leaves out hardly counts"


def test_each_part_is_equal(steps: list[Step], model: ModelShape) -> None:
    for row, line in steps:
        found, parts = costs(model, row), line["flops"]
        linear = parts["attn.qkv_proj"] + parts["attn.out_proj"] + parts["ffn.dense_ffn"]
        assert float(found["gemm"].flops) == pytest.approx(linear, rel=1e-9)
        assert float(found["logits"].flops) == pytest.approx(parts["unembed.unembed"], rel=1e-9)
        masked = triangle(model, row["prefill_qq"])
        attention = parts["attn.attn_qk"] + parts["attn.attn_av"]
        assert float(found["attention"].flops) + masked == pytest.approx(attention, rel=1e-9)


def test_operations_of_the_recorded_kernels_agree(steps: list[Step], model: ModelShape) -> None:
    """From the operands of what really ran, not from the configuration."""
    for row, line in steps:
        masked = triangle(model, row["prefill_qq"])
        assert row["flops"] + masked == pytest.approx(line["totals"][0], rel=LIMIT), row["seq"]


def test_without_the_discount_a_long_prefill_would_not_agree(steps: list[Step], model: ModelShape) -> None:
    """The comparison can fail: the triangle is 9 % of this prompt's operations, and none of a decode's."""
    longest, line = max(steps, key=lambda pair: int(pair[0]["prefill_qq"]))
    assert longest["prefill_tokens"] > 1000
    assert apart(flops(costs(model, longest), THEIRS), line["totals"][0]) > 2 * LIMIT
    assert all(
        apart(flops(costs(model, row), THEIRS), line["totals"][0]) < 1e-9
        for row, line in steps
        if row["kind"] == "decode"
    )


def test_bytes_are_equal_but_for_three_things(steps: list[Step], model: ModelShape) -> None:
    """vLLM counts no output of attention and only the writing of the cache; norms, rotation, sampling and embedding not
    at all."""
    size = model.activation_bytes
    for row, line in steps:
        found = costs(model, row)
        tokens = row["prefill_tokens"] + row["decode_tokens"]
        output = tokens * model.heads_q * model.dim_v * size * model.layers
        kept = tokens * model.kv_width * model.kv_bytes * model.layers
        same = sum(float(found[name].bytes) for name in ("gemm", "attention", "logits", "activation"))
        read, written = line["totals"][1:]
        assert same - output + kept == pytest.approx(read + written, rel=1e-9), row["seq"]
        assert float(found["kv_cache"].bytes) == pytest.approx(2 * line["written"]["attn.kv_cache"], rel=1e-9)
        if row["kind"] == "decode":
            assert apart(sum(float(cost.bytes) for cost in found.values()), read + written) < LIMIT


def test_iterations_without_tokens_read_nothing(llama_run: EngineRun, model: ModelShape) -> None:
    """vLLM runs one after the last request, and counts all weights for it."""
    empty = [line for line in llama_run.estimates if not line["requests"]]
    weights = weight_counts(model, tied=False)
    assert empty
    for line in empty:
        flops_of_none, read, written = line["totals"]
        assert (flops_of_none, written) == (0, 0)
        assert read == (weights.linear + weights.head) * model.activation_bytes
    assert sum(float(step_cost(model, name).bytes) for name in THEIRS + LEFT_OUT) == 0


@pytest.mark.parametrize("name", ["control", "profiled"])
def test_the_published_counter_grows_by_our_sum(llama_run: EngineRun, model: ModelShape, name: str) -> None:
    """`vllm:estimated_flops_per_gpu_total` around a pass, against the ledger's steps of that pass."""
    of_pass = {row["seq"] for row in llama_run.rows(f"SELECT seq FROM ledger_steps WHERE pass = '{name}'")}
    rows = [row for row in scheduled(records_of(llama_run.run_dir)) if row["seq"] in of_pass]
    assert len(of_pass) > 30
    ours = masked = 0.0
    for seq in of_pass:
        new = np.array([row["new"] for row in rows if row["seq"] == seq])
        before = np.array([row["computed"] for row in rows if row["seq"] == seq])
        load = load_of_requests(new, before)
        ours += sum(float(step_cost(model, category, load).flops) for category in THEIRS)
        masked += triangle(model, float((new * new).sum()), float(new.sum()))
    grown = llama_run.published("vllm:estimated_flops_per_gpu_total", before=f"{name}-before", after=f"{name}-after")
    assert ours + masked == pytest.approx(grown, rel=1e-6)
