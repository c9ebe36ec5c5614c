"""FLOPs, bytes and bounds: against another tool's tables, between sources, on recordings of five devices."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner

from analyzers.costing.capture import GOOD_ALIGNMENT, align
from analyzers.pipeline import analyze_run
from analyzers.presets import model_config
from cli import Composition, stepscope
from traces.capture import read_captures
from traces.errors import UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.rows import first_row
from traces.store import TraceStore, writing

GPU = Path(__file__).resolve().parents[1].parent / "shared" / "data" / "gpu-traces"
MIB = 1 << 20
TRACES = {
    "vllm_decode_full": ("graph_execution.json.gz", "gpt-oss-20b"),
    "vllm_prefilldecode_piecewise": ("graph_execution.json.gz", "gpt-oss-20b"),
    "sglang_decode": ("sglang_Qwen3-8B_decode.json.gz", "qwen3-8b"),
    "sglang_prefilldecode": ("sglang_Qwen3-8B_prefilldecode.json.gz", "qwen3-8b"),
    "b300_sglang_decode_qwen3_30b_a3b": ("1782799835.6885648-TP-0-DECODE.trace.json.gz", "qwen3-30b-a3b"),
    "b200_vllm_eager_prefill": ("eager_trace.json.gz", None),
    "h100_transformers_qwen1.5_0.5b": ("Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", None),
}
Database = Callable[..., duckdb.DuckDBPyConnection]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """Analyzed samples, read-only, once each: by trace, and whether with its capture or with another model."""
    folder = tmp_path_factory.mktemp("roofline")
    made: dict[tuple[str, bool, str | None], Path] = {}

    def build(name: str, *, capture: bool = False, model: str | None = None) -> duckdb.DuckDBPyConnection:
        file, preset = TRACES[name]
        if not (GPU / name / file).exists():
            pytest.skip(f"sample recording is not here: {GPU / name / file}")
        key = (name, capture, model)
        if key not in made:
            options = {"capture": GPU / name / "capture"} if capture and (GPU / name / "capture").exists() else {}
            finish = Composition().analysis(model_config=model or preset, **options)
            target = folder / f"{len(made)}.duckdb"
            ingest_once([str(GPU / name / file)], target, IngestOptions(finish=finish))
            made[key] = target
        return duckdb.connect(str(made[key]), read_only=True)

    return build


def reference(name: str, table: str) -> list[dict[str, str]]:
    with (GPU / name / "reference" / f"{table}.csv").open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def coverage(con: duckdb.DuckDBPyConnection) -> float:
    """Share of device time with a cost that is possible."""
    row = first_row(con.execute(
        "SELECT sum(busy_ns) FILTER (WHERE flops IS NOT NULL AND bytes IS NOT NULL AND NOT coalesce(impossible, false)) "
        "/ sum(busy_ns) "
        "FROM kernels WHERE valid"
    ))  # fmt: skip
    assert row is not None
    return float(row[0])


@pytest.mark.parametrize("capture", [True, False], ids=["capture", "configuration"])
@pytest.mark.parametrize("name", ["vllm_decode_full", "vllm_prefilldecode_piecewise"])
def test_every_product_equals_the_reference(database: Database, name: str, *, capture: bool) -> None:
    con = database(name, capture=capture)
    for row in reference(name, "GEMM"):
        count = int(row["name_count"])
        found = con.execute(
            "SELECT count(*) FROM kernels WHERE category IN ('gemm', 'logits') AND abs(flops / 1e9 - ?) < 1e-6 "
            "AND abs(bytes / ? - ?) < 1e-6",
            [float(row["GFLOPS_first"]), MIB, float(row["Data Moved (MB)_first"])],
        ).fetchall()  # fmt: skip
        assert found == [(count,)], row["name"]


@pytest.mark.parametrize("capture", [True, False], ids=["capture", "configuration"])
@pytest.mark.parametrize(("name", "gflop", "mib"), [
    ("vllm_decode_full", 0.902529024, 108.08984375), ("vllm_prefilldecode_piecewise", 65.010180096, 211.826171875),
])  # fmt: skip
def test_attention_equals_the_reference_but_for_windows(
    database: Database, name: str, gflop: float, mib: float, *, capture: bool
) -> None:
    # a full layer may be two kernels: split over the context, then summed up
    layers = database(name, capture=capture).execute(
        "SELECT sum(flops) / 1e9, sum(bytes) / ?, bool_or(name LIKE '%\\_3d' ESCAPE '\\') FROM (SELECT *, sum(CASE WHEN name LIKE "
        "'kernel_unified%' THEN 1 ELSE 0 END) OVER (ORDER BY start_ns) AS layer FROM kernels WHERE category = 'attention') "
        "GROUP BY layer ORDER BY layer", [MIB],
    ).fetchall()  # fmt: skip
    assert len(layers) == 24
    whole, windowed = layers[1::2], layers[0::2]
    assert {(round(flops, 6), round(size, 6)) for flops, size, _ in whole} == {(round(gflop, 6), round(mib, 6))}
    assert all(flops < gflop / 3 and size < mib for flops, size, _ in windowed)
    if name == "vllm_decode_full":  # 32 requests that see 128 tokens each
        assert {round(flops * 1e9) for flops, _, _ in windowed} == {2 * 64 * 32 * 128 * 128}


@pytest.mark.parametrize("capture", [True, False], ids=["capture", "configuration"])
@pytest.mark.parametrize("name", list(TRACES)[:4])
def test_four_traces_of_one_device_are_covered(database: Database, name: str, *, capture: bool) -> None:
    con = database(name, capture=capture)
    assert coverage(con) >= 0.95
    assert con.execute("SELECT count(*) FROM kernels WHERE impossible").fetchall() == [(0,)]
    assert con.execute("SELECT min(cost_coverage) >= 0.95 FROM steps").fetchall() == [(True,)]
    sources = {
        row[0] for row in con.execute("SELECT DISTINCT cost_source FROM kernels WHERE flops IS NOT NULL").fetchall()
    }
    assert sources <= {"shapes", "capture", "model"}
    assert ("capture" in sources) == (capture and name != "sglang_prefilldecode")


@pytest.mark.parametrize("name", ["vllm_decode_full", "vllm_prefilldecode_piecewise", "sglang_decode"])
def test_capture_and_configuration_agree_per_category(database: Database, name: str) -> None:
    # of generated elementwise kernels no configuration tells anything
    sql = (
        "SELECT category, sum(flops) FROM kernels WHERE valid AND category <> 'elementwise' AND flops > 0 GROUP BY ALL"
    )
    with_capture, without = (dict(database(name, capture=capture).execute(sql).fetchall()) for capture in (True, False))
    assert {"gemm", "logits", "attention", "norm", "rope"} <= set(without)
    assert without == {category: pytest.approx(flops, rel=0.05) for category, flops in with_capture.items()}


@pytest.mark.parametrize("name", list(TRACES)[:5])
def test_operands_and_configuration_agree(database: Database, name: str) -> None:
    con = database(name, capture=True)
    status = con.execute("SELECT status FROM health WHERE check_id = 'cost_sources'").fetchall()
    assert status == ([] if name.startswith("b300") else [("ok",)])


@pytest.mark.parametrize(("name", "model", "told"), [
    ("sglang_prefilldecode", "llama-3.1-8b", "36 attention calls, the model has 32 layers"),
    ("vllm_prefilldecode_piecewise", "qwen3-8b", "24 attention calls, the model has 36 layers"),
])  # fmt: skip
def test_the_wrong_model_is_noticed(database: Database, name: str, model: str, told: str) -> None:
    con = database(name, model=model)
    rows = con.execute("SELECT status, message FROM health WHERE check_id = 'cost_sources'").fetchall()
    assert [status for status, _ in rows] == ["warning"] and told in rows[0][1]


def test_the_wrong_widths_are_noticed(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(model_config("qwen3-8b") | {"intermediate_size": 11008}))
    con = database("sglang_prefilldecode", model=str(path))
    rows = con.execute("SELECT status, message FROM health WHERE check_id = 'cost_sources'").fetchall()
    assert [status for status, _ in rows] == ["warning"] and "gemm -" in rows[0][1]


def test_experts_that_route_alike_are_not_impossible(database: Database) -> None:
    con = database("b300_sglang_decode_qwen3_30b_a3b")
    assert coverage(con) >= 0.90
    assert con.execute(
        "SELECT status, value > 0, contains(message, 'an upper limit') FROM health WHERE check_id = 'expert_routing'"
    ).fetchall() == [("warning", True, True)]
    (told,) = con.execute("SELECT message FROM health WHERE check_id = 'expert_routing'").fetchall()[0]
    refuted = con.execute(
        "SELECT count(*) FROM kernels WHERE category = 'moe' AND bytes > 0 AND roof_fraction IS NULL AND bound IS NULL AND NOT "
        "coalesce(impossible, false)"
    ).fetchall()
    assert told.startswith(f"{refuted[0][0]:,} expert kernels")
    sides = con.execute("SELECT DISTINCT side FROM kernels WHERE name LIKE 'bmm\\_%' ESCAPE '\\'").fetchall()
    assert sides == [("memory",)]


def test_one_rank_of_eight(database: Database, tmp_path: Path) -> None:
    config = model_config("gpt-oss-20b")
    config |= {
        "num_hidden_layers": 36,
        "num_local_experts": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    con = database("b200_vllm_eager_prefill", model=str(path))
    assert coverage(con) >= 0.90
    assert con.execute("SELECT status FROM health WHERE check_id = 'cost_sources'").fetchall() == [("ok",)]
    assert con.execute("SELECT DISTINCT bound FROM kernels WHERE category = 'comm'").fetchall() == [("comm",)]
    # the label does not say what the prompt's tokens attend to, so attention has no cost
    assert con.execute("SELECT count(flops) FROM kernels WHERE category = 'attention'").fetchall() == [(0,)]


def test_without_a_model_there_are_shapes_and_a_hint(database: Database) -> None:
    con = database("h100_transformers_qwen1.5_0.5b")
    assert con.execute("SELECT DISTINCT cost_source FROM kernels WHERE cost_source IS NOT NULL").fetchall() == [
        ("shapes",)
    ]
    path = first_row(con.execute("SELECT path FROM duckdb_databases() WHERE path IS NOT NULL"))
    assert path is not None
    con.close()
    result = CliRunner().invoke(stepscope, ["roofline", path[0]])
    assert result.exit_code == 0, result.output
    assert "--model-config" in result.output


@pytest.mark.parametrize("name", list(TRACES))
def test_parts_make_the_whole(database: Database, name: str) -> None:
    con = database(name, capture=True)
    bad = con.execute(
        "SELECT count(*) FROM steps WHERE unknown_ns < 0 OR unknown_ns + compute_ns + memory_ns + latency_ns + inefficient_ns "
        "+ comm_ns <> busy_ns"
    ).fetchall()
    assert bad == [(0,)]
    bad = con.execute(
        "SELECT count(*) FROM kernels WHERE (impossible AND (side IS NOT NULL OR bound IS NOT NULL)) "
        "OR (roof_fraction > 1.05) <> impossible OR (flops IS NULL) <> (cost_source IS NULL) OR (side IS NOT NULL AND intensity IS NULL)"
    ).fetchall()
    assert bad == [(0,)]
    sums = con.execute(
        "SELECT s.flops, sum(k.flops) FROM steps AS s JOIN kernels AS k USING (run_id, step_id) WHERE k.valid GROUP BY s.step_id, s.flops"
    ).fetchall()
    assert all(step == pytest.approx(kernels) for step, kernels in sums)


@pytest.mark.parametrize("by", ["kernel", "category", "step", "phase"])
def test_the_command_fits_a_terminal(database: Database, by: str) -> None:
    con = database("vllm_prefilldecode_piecewise", capture=True)
    path = first_row(con.execute("SELECT path FROM duckdb_databases() WHERE path IS NOT NULL"))
    assert path is not None
    con.close()
    text = CliRunner().invoke(stepscope, ["roofline", path[0], "--by", by])
    assert text.exit_code == 0, text.output
    assert max(len(line) for line in text.output.splitlines()) <= 100
    assert "ridge 246 FLOP/byte (datasheet)" in text.output and "50 % of the roof" in text.output
    data = json.loads(CliRunner().invoke(stepscope, ["roofline", path[0], "--by", by, "--json"]).output)
    phases = {row["phase"]: row for row in data["phases"]}
    assert phases["prefill"]["flops"] + phases["decode"]["flops"] == pytest.approx(phases["all"]["flops"], rel=1e-3)
    assert phases["prefill"]["side"] == "compute" and phases["decode"]["side"] == "memory"
    assert 0 < phases["prefill"]["mfu_wall"] <= phases["prefill"]["mfu"] < 1
    assert sum(data["sources"].values()) == pytest.approx(data["coverage"])


def test_another_device_for_one_reading(database: Database) -> None:
    con = database("vllm_decode_full")
    path = first_row(con.execute("SELECT path FROM duckdb_databases() WHERE path IS NOT NULL"))
    assert path is not None
    con.close()
    read = CliRunner().invoke(
        stepscope, ["roofline", path[0], "--json", "--peak-flops", "100T", "--bandwidth", "1TB/s"]
    )
    data = json.loads(read.output)
    assert (data["devices"][0]["ridge"], data["devices"][0]["peak_source"]) == (100.0, "user")
    assert data["impossible"] > 0  # the logits alone move 4.2 TB/s
    named = json.loads(CliRunner().invoke(stepscope, ["roofline", path[0], "--json", "--gpu", "H100-SXM5"]).output)
    assert named["devices"][0]["peak_bandwidth"] == 3.35e12
    unknown = CliRunner().invoke(stepscope, ["roofline", path[0], "--gpu", "nonesuch"], standalone_mode=False)
    assert isinstance(unknown.exception, UsageProblem)
    with TraceStore.open(path[0]) as store:
        assert store.query("SELECT DISTINCT peak_source FROM devices")["peak_source"].to_list() == ["datasheet"]


def test_a_capture_of_something_else_is_refused(database: Database, tmp_path: Path) -> None:
    source = database("sglang_decode")
    path = first_row(source.execute("SELECT path FROM duckdb_databases() WHERE path IS NOT NULL"))
    assert path is not None
    source.close()
    copy = tmp_path / "copy.duckdb"
    copy.write_bytes(Path(path[0]).read_bytes())
    with duckdb.connect(str(copy)) as con:
        run = first_row(con.execute("SELECT run_id FROM runs"))
        assert run is not None
        share = align(con, run[0], read_captures(GPU / "vllm_decode_full" / "capture"))
        assert share == 0.0
        row = con.execute(
            "SELECT status, value < ? FROM health WHERE check_id = 'capture_alignment'", [GOOD_ALIGNMENT]
        ).fetchall()
        assert row == [("warning", True)]
        assert con.execute("SELECT count(op_name) FROM kernels WHERE in_graph").fetchall() == [(0,)]
    with pytest.raises(UsageProblem, match="does not exist"):
        read_captures(tmp_path / "nowhere")
    with pytest.raises(UsageProblem, match="no graph-capture trace"):
        read_captures(GPU / "h100_transformers_qwen1.5_0.5b")


CPU = GPU.parent / "engine-traces"


@pytest.mark.parametrize(
    ("trace", "least"),
    [("vllm_cpu/tiny_detailed_shapes.pt.trace.json.gz", 0.95), ("sglang_cpu/detailed-TP-0.trace.json.gz", 0.90)],
)
def test_cpu_engines_by_their_operators(trace: str, least: float, tmp_path: Path) -> None:
    if not (CPU / trace).exists():
        pytest.skip(f"sample recording is not here: {CPU / trace}")
    target = tmp_path / "cpu.duckdb"
    finish = Composition().analysis(peak_flops="0.4T", bandwidth="30GB/s")
    ingest_once([str(CPU / trace)], target, IngestOptions(finish=finish))
    with duckdb.connect(str(target), read_only=True) as con:
        assert coverage(con) >= least
        assert con.execute("SELECT DISTINCT side FROM steps WHERE kind = 'decode' AND flops > 0").fetchall() == [
            ("memory",)
        ]
        # an operator that computes through others has no cost of its own, however many segments it has
        twice = con.execute(
            "SELECT count(*) FROM kernels WHERE name IN ('aten::linear', 'aten::matmul', 'aten::scaled_dot_product_attention', "
            "'vllm::unified_attention_with_output') AND flops > 0"
        ).fetchall()
        assert twice == [(0,)]


def test_nothing_is_known_and_the_command_says_so(tmp_path: Path) -> None:
    trace = CPU / "vllm_cpu/tiny_detailed_shapes.pt.trace.json.gz"
    if not trace.exists():
        pytest.skip(f"sample recording is not here: {trace}")
    target = tmp_path / "cpu.duckdb"
    ingest_once([str(trace)], target, IngestOptions(finish=Composition().analysis()))
    with duckdb.connect(str(target), read_only=True) as con:
        verdicts = con.execute(
            "SELECT count(side), count(bound), count(roof_fraction), count(flops) > 0 FROM kernels"
        ).fetchall()
        assert verdicts == [(0, 0, 0, True)]
        assert con.execute(
            "SELECT count(side), count(ridge), bool_and(unknown_ns = busy_ns) FROM steps"
        ).fetchall() == [(0, 0, True)]
    text = CliRunner().invoke(stepscope, ["roofline", str(target)])
    assert text.exit_code == 0, text.output
    assert "--peak-flops" in text.output and "--model-config" in text.output


def test_a_recorded_model_that_is_not_understood_is_said(tmp_path: Path) -> None:
    trace = CPU / "vllm_cpu/tiny_detailed_shapes.pt.trace.json.gz"
    if not trace.exists():
        pytest.skip(f"sample recording is not here: {trace}")
    target = tmp_path / "cpu.duckdb"
    ingest_once([str(trace)], target, IngestOptions(finish=Composition().analysis()))
    with writing(target) as con:
        changed = {"model_config": model_config("tiny") | {"model_type": "a_new_one"}}
        con.execute("UPDATE runs SET config = json_merge_patch(config, ?::JSON)", [json.dumps(changed)])
    analyze_run(str(target))
    hints = json.loads(CliRunner().invoke(stepscope, ["roofline", str(target), "--json"]).stdout)["hints"]
    told = [hint for hint in hints if "a_new_one" in hint]
    assert len(told) == 1 and "--model-config" in told[0] and "recorded operands only" in told[0]
    analyze_run(str(target), model_config("tiny"))
    hints = json.loads(CliRunner().invoke(stepscope, ["roofline", str(target), "--json"]).stdout)["hints"]
    assert not any("model_type" in hint or "the model is not known" in hint for hint in hints)
