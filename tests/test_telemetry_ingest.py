"""Sensor logs in a run: beside a trace, in a run directory, several of one device, and alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from engine_harness import profile_stub
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_builder import MS, RunBuilder, S, TraceBuilder

from cli import Composition, stepscope
from traces.errors import StepscopeError
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore

START_NS = 1_700_000_000 * S


def own(path: Path, samples: Sequence[dict[str, Any]], *, source: str = "nvml", devices: Sequence[int] = (0,)) -> Path:
    """A file as the sampler writes it."""
    header = {"stepscope_telemetry": 1, "kind": "header", "source": source,
              "devices": [{"device": device, "name": "A GPU"} for device in devices]}  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(item, separators=(",", ":")) + "\n" for item in [header, *samples]))
    return path


def smi(path: Path, rows: Sequence[tuple[int, int, str]], *, shift_h: int = 0) -> Path:
    """(time in ns, device, power) as nvidia-smi writes it."""
    lines = ["timestamp, index, power.draw [W]"]
    for ts_ns, device, power in rows:
        at = datetime.fromtimestamp(ts_ns // S + shift_h * 3600, tz=UTC)
        lines.append(f"{at:%Y/%m/%d %H:%M:%S}.{ts_ns % S // MS:03d}, {device}, {power}")
    path.write_text("\n".join(lines) + "\n")
    return path


def trace(path: Path, *, rank: int = 0, device: int = 0, world_size: int = 1) -> Path:
    builder = TraceBuilder(rank=rank, world_size=world_size, base_ns=START_NS)
    for number in range(5):
        at = number * S
        builder.label(at, S // 2).launched(at + MS, at + 2 * MS, 100 * MS, number, device=device)
    return builder.write(path)


def rows_of(target: Path, sql: str) -> list[dict[str, Any]]:
    with TraceStore.open(target) as store:
        return store.query(sql).to_dicts()


def ingest(target: Path, *paths: Path, **options: Any) -> Path:
    ingest_once([str(path) for path in paths], target, IngestOptions(finish=Composition().analysis(), **options))
    return target


def command(*arguments: object) -> Any:
    return CliRunner().invoke(stepscope, [str(item) for item in arguments])


def test_alone_it_is_a_run(tmp_path: Path) -> None:
    log = smi(tmp_path / "power.csv", [(START_NS + second * S, 0, f"{second} W") for second in range(5)])
    ended = command("ingest", log, "-o", tmp_path / "run.duckdb", "--quiet")
    assert ended.exit_code == 0, ended.output
    (run,) = rows_of(tmp_path / "run.duckdb", "SELECT * FROM runs")
    assert (run["device_kind"], run["clock"], run["engine"]) == ("cuda", "epoch", "unknown")
    assert (run["window_start_ns"], run["window_end_ns"]) == (START_NS, START_NS + 4 * S)
    (sensor,) = rows_of(tmp_path / "run.duckdb", "SELECT * EXCLUDE run_id FROM sensors")
    assert sensor == {
        "rank": 0, "device": 0, "source": "nvidia-smi", "name": None, "uuid": None, "samples": 5, "period_ns": S,
        "power_period_ns": S, "power_limit_w": None, "fields": '["power_w"]',
    }  # fmt: skip
    power = rows_of(tmp_path / "run.duckdb", "SELECT power_w, energy_j, resident FROM telemetry ORDER BY ts_ns")
    assert power == [{"power_w": float(second), "energy_j": None, "resident": None} for second in range(5)]
    assert rows_of(tmp_path / "run.duckdb", "SELECT role, format FROM sources") == [
        {"role": "telemetry", "format": "nvidia-smi"}
    ]


def test_beside_a_trace_with_its_rank(tmp_path: Path) -> None:
    paths = [trace(tmp_path / f"rank{rank}.json", rank=rank, device=rank, world_size=2) for rank in (0, 1)]
    rows = [(START_NS + second * S, device, "100 W") for second in range(5) for device in (0, 1, 2)]
    target = ingest(tmp_path / "run.duckdb", *paths, smi(tmp_path / "power.csv", rows))
    found = rows_of(target, "SELECT DISTINCT rank, device FROM telemetry ORDER BY device")
    assert found == [{"rank": 0, "device": 0}, {"rank": 1, "device": 1}, {"rank": 0, "device": 2}]
    checks = {row["check_id"]: row for row in rows_of(target, "SELECT * FROM health WHERE check_id LIKE 'telemetry%'")}
    assert {key: row["status"] for key, row in checks.items()} == {
        "telemetry_power": "ok", "telemetry_overlap": "ok", "telemetry_notes": "warning",
    }  # fmt: skip
    assert "taken as UTC" in checks["telemetry_notes"]["message"]


def test_a_log_in_local_time_is_found_out_and_mended(tmp_path: Path) -> None:
    recorded = trace(tmp_path / "rank0.json")
    log = smi(tmp_path / "power.csv", [(START_NS + second * S, 0, "100 W") for second in range(5)], shift_h=-7)
    target = ingest(tmp_path / "run.duckdb", recorded, log)
    (check,) = rows_of(target, "SELECT status, message FROM health WHERE check_id = 'telemetry_overlap'")
    assert check["status"] == "warning" and "7.00 h behind it" in check["message"]
    assert check["message"].endswith("--utc-offset -07:00")
    ended = command("ingest", recorded, log, "-o", tmp_path / "two.duckdb", "--quiet", "--utc-offset", "-07:00")
    assert ended.exit_code == 0
    checks = rows_of(
        tmp_path / "two.duckdb", "SELECT check_id, status FROM health WHERE check_id LIKE 'telemetry%' ORDER BY 1"
    )
    assert [tuple(row.values()) for row in checks] == [("telemetry_overlap", "ok"), ("telemetry_power", "ok")]


def test_a_run_directory_without_a_power_sensor(tmp_path: Path) -> None:
    folder = RunBuilder(start_ns=START_NS).step(
        0, 50 * MS, [{"id": "a", "new": 8, "computed": 0, "prompt": 8}]
    ).write(tmp_path / "run")  # fmt: skip
    own(folder / "telemetry" / "telemetry.jsonl",
        [{"ts_ns": START_NS + n * 10 * MS, "device": 0, "cpu_util": 0.5} for n in range(6)], source="cpu")  # fmt: skip
    target = ingest(tmp_path / "run.duckdb", folder)
    found = rows_of(target, "SELECT count(*) AS n, count(power_w) AS p, avg(cpu_util) AS u FROM telemetry")
    assert found == [{"n": 6, "p": 0, "u": 0.5}]
    (check,) = rows_of(target, "SELECT status, value, message FROM health WHERE check_id = 'telemetry_power'")
    assert (check["status"], check["value"]) == ("ok", 0.0) and "RAPL cannot be read" in check["message"]
    (run,) = rows_of(target, "SELECT device_kind FROM runs")
    assert run == {"device_kind": "cpu"}


def test_each_column_comes_from_the_best_log_that_has_it(tmp_path: Path) -> None:
    """Ours has power, dmon has activity, nvidia-smi has nothing that the others lack; a node's CPU is another device."""
    ours = own(
        tmp_path / "telemetry.jsonl", [{"ts_ns": START_NS + n * S, "device": 0, "power_w": 100.0} for n in range(3)]
    )
    dmon = tmp_path / "a.dmon"
    lines = [f"{START_NS // S + n}.5 GPU 0 777 0.{n}" for n in range(3)]
    dmon.write_text("\n".join(["#Entity POWER SMACT", "ID W", *lines]) + "\n")
    other = smi(tmp_path / "b.csv", [(START_NS + n * S, 0, "888 W") for n in range(3)])
    node = tmp_path / "node.prom"
    node.write_text('node_cpu_seconds_total{cpu="0",mode="user"} 5 1700000000000\n')
    target = ingest(tmp_path / "run.duckdb", ours, dmon, other, node)
    found = rows_of(target, "SELECT ts_ns - 1700000000000000000 AS t, power_w, sm_active FROM telemetry ORDER BY 1")
    assert [tuple(row.values()) for row in found] == [
        (0, 100.0, None), (S // 2, None, 0.0), (S, 100.0, None), (3 * S // 2, None, 0.1), (2 * S, 100.0, None),
        (5 * S // 2, None, 0.2),
    ]  # fmt: skip
    sensors = rows_of(target, "SELECT source, samples, fields FROM sensors ORDER BY source")
    assert [tuple(row.values()) for row in sensors] == [
        ("cpu", 0, "[]"), ("dcgm", 3, '["sm_active"]'), ("nvidia-smi", 0, "[]"), ("nvml", 3, '["power_w"]'),
    ]  # fmt: skip


def test_the_same_samples_twice_count_once(tmp_path: Path) -> None:
    log = [(START_NS + n * S, 0, "5 W") for n in range(4)]
    target = ingest(tmp_path / "run.duckdb", smi(tmp_path / "a.csv", log), smi(tmp_path / "b.csv", log[1:]))
    assert rows_of(target, "SELECT count(*) AS n FROM telemetry") == [{"n": 4}]


def test_two_machines_are_not_one(tmp_path: Path) -> None:
    """Both have a GPU 0: they are told apart by its uuid, and the second is left out and said."""
    for number, name in enumerate(("a", "b")):
        lines = [f"2023/11/14 22:13:2{second}.000, 0, GPU-{name}, {100 + number} W" for second in range(3)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["timestamp, index, uuid, power.draw [W]", *lines]) + "\n")
    target = ingest(tmp_path / "run.duckdb", tmp_path / "a.csv", tmp_path / "b.csv")
    assert rows_of(target, "SELECT power_w, count(*) AS n FROM telemetry GROUP BY 1") == [{"power_w": 100.0, "n": 3}]
    assert rows_of(target, "SELECT uuid, samples FROM sensors") == [{"uuid": "GPU-a", "samples": 3}]
    (check,) = rows_of(target, "SELECT message FROM health WHERE check_id = 'telemetry_notes'")
    assert "b.csv: its device 0 (GPU-b) is another one" in check["message"]


def test_cpu_shares_from_counters_of_several_scrapes(tmp_path: Path) -> None:
    for number, (busy, idle) in enumerate([(10, 90), (20, 180), (20, 180), (5, 5)]):
        lines = [f"# stepscope scraped_ns={START_NS + number * S}"]
        lines += [
            f'node_cpu_seconds_total{{cpu="0",mode="{mode}"}} {value}'
            for mode, value in (("user", busy), ("idle", idle))
        ]
        (tmp_path / f"{number}.prom").write_text("\n".join(lines) + "\n")
    target = ingest(tmp_path / "run.duckdb", *sorted(tmp_path.glob("*.prom")))
    found = rows_of(target, "SELECT cpu_util, power_w FROM telemetry ORDER BY ts_ns")
    assert [row["cpu_util"] for row in found] == [None, 0.1, None, None], (
        "nothing passed, and a counter set back: not known"
    )
    assert rows_of(target, "SELECT device_kind FROM runs") == [{"device_kind": "cpu"}]


WRAP_J = 2**32 / 1000


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.integers(0, 1_000_000_000), min_size=1, max_size=12),
    start=st.integers(0, 2**32 - 1),
    reset=st.integers(1, 12),
)
def test_counters_of_other_logs_are_unwrapped(tmp_path: Path, steps: list[int], start: int, reset: int) -> None:
    """A counter of 32 bits in mJ that wraps; and one that is set back to zero once."""
    totals = [start + sum(steps[:number]) for number in range(len(steps) + 1)]
    wrapping = [total % 2**32 for total in totals]
    back = (
        [total - (totals[reset] if number >= reset else 0) for number, total in enumerate(totals)]
        if reset < len(totals)
        else totals
    )
    path = tmp_path / "energy.prom"
    path.write_text("".join(
        f'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{gpu="{gpu}"}} {value} {1_700_000_000_000 + 1000 * number}\n'
        for gpu, series in ((0, wrapping), (1, back)) for number, value in enumerate(series)
    ))  # fmt: skip
    target = tmp_path / "run.duckdb"
    target.unlink(missing_ok=True)
    ingest_once([str(path)], target, IngestOptions())
    for device, expected in ((0, naive_total(wrapping)), (1, naive_total(back))):
        found = [
            row["energy_j"]
            for row in rows_of(target, f"SELECT energy_j FROM telemetry WHERE device = {device} ORDER BY ts_ns")
        ]
        assert found == pytest.approx([item / 1000 for item in expected], abs=1e-3)
        assert all(a <= b for a, b in pairwise(found))
    if all(a >= 2**31 or a <= b for a, b in pairwise(wrapping)):  # wrapped from its upper half only
        assert naive_total(wrapping) == [total - start + wrapping[0] for total in totals]


def naive_total(series: list[int]) -> list[int]:
    total, offset = [series[0]], 0
    for before, now in pairwise(series):
        if now < before:
            offset += 2**32 if 2**31 <= before <= 2**32 else before
        total.append(now + offset)
    return total


def test_a_counter_is_as_exact_as_mj(tmp_path: Path) -> None:
    """Ten years at 700 W are 2.2e14 mJ: a double holds them."""
    value = 220_752_000_000_123
    path = own(tmp_path / "telemetry.jsonl", [{"ts_ns": START_NS, "device": 0, "energy_j": value / 1000}])
    target = ingest(tmp_path / "run.duckdb", path)
    (row,) = rows_of(target, "SELECT energy_j FROM telemetry")
    assert math.isclose(row["energy_j"] * 1000, value, abs_tol=0.1)


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("2024/01/31 12:34:56.789, 0, 12 W\n", 3, "has no header line"),
        ("timestamp, index, power.draw [W]\n", 5, "without a single usable event"),
        ("timestamp, index, power.draw [W]\nnever, 0, 5 W\n", 5, "without a single usable event"),
    ],
)
def test_logs_that_hold_nothing(tmp_path: Path, text: str, code: int, says: str) -> None:
    path = tmp_path / "power.csv"
    path.write_text(text)
    with pytest.raises(StepscopeError, match=says) as problem:
        ingest(tmp_path / "run.duckdb", path)
    assert problem.value.exit_code == code
    assert not (tmp_path / "run.duckdb").exists()


def test_a_log_that_cannot_be_read_beside_a_trace_is_said(tmp_path: Path) -> None:
    path = tmp_path / "power.csv"
    path.write_text("2024/01/31 12:34:56.789, 0, 12 W\n")
    report = ingest_once([str(trace(tmp_path / "rank0.json")), str(path)], tmp_path / "run.duckdb", IngestOptions())
    ((name, why),) = report.skipped
    assert name == "power.csv" and "has no header line" in why


def test_an_unknown_offset_is_a_usage_problem(tmp_path: Path) -> None:
    log = smi(tmp_path / "power.csv", [(START_NS, 0, "5 W")])
    ended = command("ingest", log, "-o", tmp_path / "run.duckdb", "--utc-offset", "Mars")
    assert isinstance(ended.exception, StepscopeError) and ended.exception.exit_code == 2


def test_a_trace_named_telemetry_is_a_trace(tmp_path: Path) -> None:
    target = ingest(tmp_path / "run.duckdb", trace(tmp_path / "telemetry.rank0.json"))
    assert rows_of(target, "SELECT count(*) AS n FROM kernels") == [{"n": 5}]


def test_a_profile_run_samples_and_says_what(tmp_path: Path) -> None:
    ended = profile_stub(tmp_path, "--telemetry-hz", "25")
    assert ended.code == 0, ended.err
    records = [json.loads(line) for line in (ended.run_dir / "telemetry" / "telemetry.jsonl").read_text().splitlines()]
    assert records[0]["hz"] == 25.0 and records[-1]["kind"] == "end"
    telemetry = ended.manifest["telemetry"]
    assert isinstance(telemetry, dict) and telemetry["source"] in ("cpu", "rapl") and telemetry["hz"] == 25.0
    warnings = ended.manifest["warnings"]
    assert isinstance(warnings, list) and not any("telemetry" in text for text in warnings)
    first, last = records[1]["ts_ns"], records[-2]["ts_ns"]
    passes = ended.manifest["passes"]
    assert isinstance(passes, list) and first < passes[0]["start_ns"] < passes[-1]["end_ns"] < last
    assert sum("cpu_util" in item for item in records) >= 10
