"""The sampler's process against a real NVML client and a stub driver whose energy is a known function of time."""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from nvml_stub import S, build, busy_share, energy_j, environment, library_path, sampled

from profiler.sensors.counters import Rate, Unwrapped
from profiler.sensors.visible import visible_indices
from profiler.telemetry import Telemetry, parse_hz
from traces.errors import UsageProblem
from traces.ingest import IngestOptions, ingest_once
from traces.store import TraceStore

HZ = 50.0
LASTS_S = 5.0  # until behind the wrap (3.5 s), the reset (3 s) and the loss (4.5 s), which count from nvmlInit


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A file of the sampler."""

    path: Path
    records: list[dict[str, Any]]
    warnings: list[str]
    t0_ns: int

    @property
    def header(self) -> dict[str, Any]:
        return self.records[0]

    def samples(self, device: int) -> list[dict[str, Any]]:
        return [item for item in self.records if "kind" not in item and item["device"] == device]

    def notices(self, kind: str) -> list[dict[str, Any]]:
        return [item for item in self.records if item.get("kind") == kind]

    def at_s(self, sample: dict[str, Any]) -> float:
        return (sample["ts_ns"] - self.t0_ns) / S


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def run(stub: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    path = tmp_path_factory.mktemp("run") / "telemetry" / "telemetry.jsonl"
    start = path.parent.parent / "t0"
    with environment(LD_LIBRARY_PATH=library_path(stub), STUB_NVML_T0=str(start)):
        warnings = sampled(Telemetry(path, device_kind="cuda", hz=HZ), LASTS_S)
    return Recorded(path=path, records=json_lines(path), warnings=warnings, t0_ns=int(start.read_text()))


def test_energy_of_a_counter_that_wraps(run: Recorded) -> None:
    samples = run.samples(0)
    first, last = samples[0], samples[-1]
    assert run.at_s(first) < 3.4 and run.at_s(last) > 4.6, "the counter wrapped in between"
    truth = energy_j(run.at_s(last)) - energy_j(run.at_s(first))
    assert last["energy_j"] - first["energy_j"] == pytest.approx(truth, rel=0.01)
    assert all(a["energy_j"] <= b["energy_j"] for a, b in pairwise(samples))
    assert first["energy_j"] < 2**32 / 1000 < last["energy_j"]


def test_energy_of_a_slow_sensor(run: Recorded) -> None:
    """Between the first and the last change that was seen, each a quarter of a second after the one before."""
    changes = [b for a, b in pairwise(run.samples(1)) if a["energy_j"] != b["energy_j"]]
    assert len(changes) >= 10
    first, last = changes[0], changes[-1]
    truth = energy_j(run.at_s(last)) - energy_j(run.at_s(first))
    assert last["energy_j"] - first["energy_j"] == pytest.approx(truth, rel=0.01)
    assert statistics.median(b["ts_ns"] - a["ts_ns"] for a, b in pairwise(changes)) == pytest.approx(0.25 * S, rel=0.15)


def test_periods_of_the_power_readings_are_measured(run: Recorded) -> None:
    quick, slow, _ = (item["power_period_ns"] for item in run.header["devices"])
    assert quick == pytest.approx(0.02 * S, rel=0.25)
    assert slow == pytest.approx(0.25 * S, rel=0.15)


def test_a_device_that_vanishes_ends_its_series_and_the_rest_goes_on(run: Recorded) -> None:
    ends = {device: run.at_s(run.samples(device)[-1]) for device in (0, 1, 2)}
    assert 4.3 < ends[2] <= 4.6 < ends[0] and ends[1] > 4.6
    (gone,) = run.notices("gone")
    assert (gone["device"], gone["text"]) == (2, "GPU is lost; its series ends")
    assert "telemetry of device 2: GPU is lost; its series ends" in run.warnings


def test_a_counter_that_is_set_back_goes_on_from_where_it_was(run: Recorded) -> None:
    samples = run.samples(2)
    assert all(a["energy_j"] <= b["energy_j"] for a, b in pairwise(samples))
    truth = energy_j(run.at_s(samples[-1])) - energy_j(run.at_s(samples[0]))
    longest_s = max(b["ts_ns"] - a["ts_ns"] for a, b in pairwise(samples)) / S
    found = samples[-1]["energy_j"] - samples[0]["energy_j"]
    assert truth - 400 * longest_s - 1 <= found <= truth + 1, "lost is what came between two samples"
    assert [notice["device"] for notice in run.notices("reset")] == [2]
    assert sum("started anew" in text for text in run.warnings) == 1


def test_an_unsupported_field_is_said_once_and_never_filled(run: Recorded) -> None:
    assert all("temperature_c" not in item for item in run.samples(1))
    assert all(item["temperature_c"] == 61 for item in run.samples(0))
    said = [item for item in run.notices("unsupported") if "temperature_c" in item["columns"]]
    assert [(item["device"], item["text"]) for item in said] == [(1, "Not Supported; not asked again")]
    assert not any("Not Supported" in text for text in run.warnings), "what a device never had is no warning"


def test_gpm_where_there_is_gpm(run: Recorded) -> None:
    measured = [item for item in run.samples(0) if "sm_active" in item]
    assert len(measured) > 25, "ten a second, whatever the rate of the rest"
    truth = busy_share(run.at_s(measured[0]), run.at_s(measured[-1]))
    weighed = [(item, (item["ts_ns"] - before["ts_ns"]) / S) for before, item in pairwise(measured)]
    mean = sum(item["sm_active"] * length for item, length in weighed) / sum(length for _, length in weighed)
    assert mean == pytest.approx(0.9 * truth, abs=0.02)
    assert all(item["tensor_active"] == pytest.approx(item["sm_active"] * 5 / 9, abs=1e-5) for item in measured)
    assert all(item["dram_active"] == pytest.approx(item["sm_active"] * 7 / 9, abs=1e-5) for item in measured)
    assert all(item["pcie_bytes_s"] == item["pcie_tx_bytes_s"] + item["pcie_rx_bytes_s"] for item in measured)
    assert all("fp16_active" not in item for item in run.samples(0)), "not a number is not known"
    for device in (1, 2):
        assert not any("sm_active" in item or "tensor_active" in item for item in run.samples(device))


def test_links_without_gpm(run: Recorded) -> None:
    samples = run.samples(1)
    sent = [item["nvlink_tx_bytes_s"] for item in samples if "nvlink_tx_bytes_s" in item]
    assert len(sent) == len(samples) - 1 and statistics.median(sent) == pytest.approx(3e6 * 1024, rel=0.05)
    pcie = [item for item in samples if "pcie_tx_bytes_s" in item]
    assert 3 <= len(pcie) <= 8, "once a second, and told once"
    assert all((item["pcie_tx_bytes_s"], item["pcie_rx_bytes_s"]) == (500_000, 250_000) for item in pcie)


def test_the_other_columns(run: Recorded) -> None:
    for item in run.samples(0):
        assert item["power_w"] in (200.0, 400.0) and item["power_instant_w"] - item["power_w"] < 201
        assert (item["sm_clock_mhz"], item["mem_clock_mhz"]) == (1980, 2619)
        assert (item["throttle"], item["memory_used_bytes"]) == ("sw_power_cap,sw_thermal", 1 << 30)
        assert item["mem_util"] == 0.4 and item["sm_util"] in (0.0, 1.0)
    assert {item["throttle"] for item in run.samples(1)} == {""}
    assert [{item["resident"] for item in run.samples(device)} for device in (0, 1, 2)] == [{True}, {True}, {False}]
    first = run.header["devices"][0]
    assert (first["name"], first["uuid"], first["power_limit_w"]) == ("Stub GPU", "GPU-00", 700.0)


def test_sampling_keeps_its_rate_and_costs_little(run: Recorded) -> None:
    spaces = [b["ts_ns"] - a["ts_ns"] for a, b in pairwise(run.samples(0))]
    assert statistics.median(spaces) == pytest.approx(S / HZ, rel=0.1)
    (end,) = run.notices("end")
    ticks = len(run.samples(0))
    # at 10 Hz; a margin of five to the bound that benchmarks/telemetry_overhead.py measures
    assert end["cpu_s"] / ticks * 10 < 0.05


def test_the_file_is_ingested(run: Recorded, tmp_path: Path) -> None:
    target = tmp_path / "run.duckdb"
    ingest_once([str(run.path)], target, IngestOptions())
    with TraceStore.open(target) as store:
        rows = store.query(
            "SELECT device, count(*) AS n, max(energy_j) - min(energy_j) AS j FROM telemetry GROUP BY 1 ORDER BY 1"
        )
        for device, count, joules in rows.iter_rows():
            samples = run.samples(device)
            assert count == len(samples)
            assert joules == pytest.approx(samples[-1]["energy_j"] - samples[0]["energy_j"], abs=1e-6)
        sensors = store.query("SELECT * FROM sensors ORDER BY device")
        assert sensors["source"].to_list() == ["nvml"] * 3 and sensors["rank"].to_list() == [0] * 3
        assert sensors["power_period_ns"][1] == run.header["devices"][1]["power_period_ns"]
        assert "temperature_c" not in json.loads(sensors["fields"][1])
        assert {"tensor_active", "energy_j", "resident"} <= set(json.loads(sensors["fields"][0]))
        facts = store.query("SELECT device_kind, clock, window_end_ns - window_start_ns AS ns FROM runs")
        assert facts.row(0)[:2] == ("cuda", "epoch") and facts["ns"][0] > 3 * S
        notes = store.query("SELECT message FROM health WHERE check_id = 'telemetry_notes'")["message"][0]
        assert "device 2: GPU is lost" in notes


def test_as_fast_as_the_sensor_in_a_container(stub: Path, tmp_path: Path) -> None:
    """No process is listed; the memory in use tells that the device is held, where the driver's own is not in it."""
    path = tmp_path / "telemetry.jsonl"
    with environment(LD_LIBRARY_PATH=library_path(stub), STUB_NVML_SYSTEM_PIDS="1"):
        warnings = sampled(Telemetry(path, device_kind="cuda", hz=None, visible="1,0"), 0.5)
    records = json_lines(path)
    assert warnings == []
    assert 40 <= records[0]["hz"] <= 60
    assert [(item["device"], item["index"], item["uuid"]) for item in records[0]["devices"]] == [
        (0, 1, "GPU-11"), (1, 0, "GPU-00"),
    ]  # fmt: skip
    held = {device: {r["resident"] for r in records if "kind" not in r and r["device"] == device} for device in (0, 1)}
    assert held == {0: {False}, 1: {True}}


def test_no_driver_is_a_warning(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path / "t" / "telemetry.jsonl", device_kind="cuda")
    with environment(LD_LIBRARY_PATH=str(tmp_path)):
        if subprocess.run(["sh", "-c", "ldconfig -p | grep -q libnvidia-ml"], check=False).returncode == 0:
            pytest.skip("this machine has NVML")
        telemetry.start()
        time.sleep(0.1)
        (warning,) = telemetry.stop()
    assert warning.startswith("no telemetry: NVML:")
    assert telemetry.stop() == [] and telemetry.facts() == {}


def test_switched_off_there_is_nothing(tmp_path: Path) -> None:
    telemetry = Telemetry(tmp_path / "t" / "telemetry.jsonl", device_kind="cpu", hz=parse_hz("off"))
    telemetry.start()
    assert telemetry.stop() == [] and telemetry.facts() == {}
    assert list(tmp_path.iterdir()) == []


def test_a_killed_sampler_leaves_all_but_its_last_sample(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    argv = [sys.executable, "-m", "profiler.sensors.main", str(path), "--source", "cpu", "--hz", "20"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while (not path.exists() or path.read_bytes().count(b"\n") < 12) and time.monotonic() < deadline:
        time.sleep(0.05)
    killed_ns = time.time_ns()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()
    samples = json_lines(path)[1:]
    assert killed_ns - samples[-1]["ts_ns"] < S
    with path.open("ab") as file:
        file.write(b'{"ts_ns":17959957835')  # torn
    report = ingest_once([str(path)], tmp_path / "run.duckdb", IngestOptions())
    assert report.files[0].kept == {"telemetry": len(samples)}
    assert sum(report.files[0].dropped.values()) == 1


def test_the_sampler_ends_with_its_session(tmp_path: Path) -> None:
    """Whoever started it is killed: nothing is left behind."""
    path = tmp_path / "telemetry.jsonl"
    script = (
        "import os, sys, time; from pathlib import Path; from profiler.telemetry import Telemetry\n"
        f"t = Telemetry(Path({str(path)!r}), device_kind='cpu', hz=20); t.start()\n"
        "print(t._process.pid, flush=True); time.sleep(60)"
    )
    session = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert session.stdout is not None
    sampler = int(session.stdout.readline())
    deadline = time.monotonic() + 30
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    session.kill()
    session.wait()
    session.stdout.close()
    while Path(f"/proc/{sampler}").exists() and time.monotonic() < deadline:
        if Path(f"/proc/{sampler}/stat").read_text().split(") ")[1].startswith("Z"):
            break  # ended; nobody has collected it
        time.sleep(0.05)
    else:
        assert not Path(f"/proc/{sampler}").exists()
    assert path.stat().st_size


@pytest.mark.parametrize(("text", "hz"), [("10", 10.0), ("0", 0.0), ("off", 0.0), ("max", None), (" 0.5", 0.5)])
def test_rates(text: str, hz: float | None) -> None:
    assert parse_hz(text) == hz


@pytest.mark.parametrize("text", ["-1", "1000", "nan", "inf", "fast", "", "0.01"])
def test_rates_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageProblem, match="cannot sample sensors"):
        parse_hz(text)


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), ("1", [1]), ("0,7,1", [0]), ("1,1,2", [1]), ("-1", []),
        ("GPU-bb", [1]), ("GPU-a", [0]), ("GPU-", []), ("MIG-GPU-aa/1/0", [0, 1, 2]), ("nonsense", []), ("２", []),
    ],
)  # fmt: skip
def test_devices_that_the_engine_sees(setting: str | None, indices: list[int]) -> None:
    assert visible_indices(["GPU-aa", "GPU-bb", None], setting) == indices


def test_counters() -> None:
    wrapping = Unwrapped(100)
    assert [wrapping.total(item) for item in (70, 90, 10, 60, 5)] == [70, 90, 110, 160, 205]
    assert (wrapping.wraps, wrapping.resets) == (2, 0)
    set_back = Unwrapped(1000)
    assert [set_back.total(item) for item in (70, 90, 10, 60)] == [70, 90, 100, 150]
    assert (set_back.wraps, set_back.resets) == (0, 1)
    assert [Unwrapped(None).total(item) for item in (3,)] == [3]
    rate = Rate()
    assert [rate.per_second(*item) for item in ((5, 0), (25, 2 * S), (20, 3 * S), (21, 3 * S), (31, 4 * S))] == [
        None, 10.0, None, None, 10.0,
    ]  # fmt: skip
