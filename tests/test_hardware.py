"""Devices: the catalogue against its source cell by cell, finding a device, and the peaks a run is measured against."""

from __future__ import annotations

import csv
import json
import re
import time
from pathlib import Path
from typing import Any

import duckdb
import isal.igzip
import pytest

from analyzers.costs.roof import Peaks
from analyzers.datasheet import Device
from analyzers.hardware import (
    PeakOverride,
    canonical_dtype,
    catalogue,
    fill_devices,
    find_device,
    flops_of,
    main_dtype,
    named_device,
    parse_rate,
    peak_override,
    peaks_of,
)
from traces.calibration import Calibration, MatrixRate, MemoryRate, store_calibration
from traces.errors import UsageProblem
from traces.store import schema_sql

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"
needs_table = pytest.mark.skipif(not (SHARED / "hardware.csv").exists(), reason="../shared/data/hardware.csv is absent")
needs_traces = pytest.mark.skipif(not (SHARED / "gpu-traces").exists(), reason="../shared/data/gpu-traces is absent")

RENAMED = {"GB200(per GPU)": "GB200", "GB300(per GPU)": "GB300", "B200-HGX": "B200", "B300-HGX": "B300"}
CELLS = {
    "bf16_tflops": "bf16", "fp16_tflops": "fp16", "fp8_tflops": "fp8", "int8_tops": "int8", "fp4_tflops": "fp4",
    "tf32_tflops": "tf32", "fp32_tflops": "fp32",
}  # fmt: skip
OTHER_CELLS = {"mem_bw_gbs": "bandwidth", "gpu_link_gbs_bidir": "link", "tdp_w": "tdp_w", "mem_gb": "memory"}


def by_name(name: str) -> Device:
    return next(item for item in catalogue() if item.name == name)


def table() -> list[tuple[Device, dict[str, str]]]:
    with (SHARED / "hardware.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"MI250X": "MI250X-GCD", **RENAMED}
    return [(by_name(names.get(row["gpu"], row["gpu"])), row) for row in rows]


@needs_table
def test_every_device_of_the_source_is_there_and_no_other() -> None:
    assert sorted(device.name for device, _ in table()) == sorted(device.name for device in catalogue())


@needs_table
def test_every_rate_is_the_sources_dense_one() -> None:
    for device, row in table():
        part = 0.5 if device.name == "MI250X-GCD" else 1.0  # of the module's two dies
        for column, dtype in CELLS.items():
            wanted = float(row[column]) * 1e12 * part if row[column] else None
            assert device.flops.get(dtype) == (None if wanted is None else pytest.approx(wanted)), (device.name, dtype)
        assert device.bandwidth == pytest.approx(float(row["mem_bw_gbs"]) * 1e9 * part), device.name
        if "units" not in device.remarks:
            assert device.units == (int(float(row["units"]) * part) if row["units"] else None), device.name
        assert device.tdp_w == float(row["tdp_w"]) * part, device.name
        if device.checked == "clock":  # the clock that confirms it
            rate = float(row["units"]) * float(row["f16_flops_per_clk_unit"]) * float(row["clock_ghz"]) * 1e9
            assert device.flops["fp16"] == pytest.approx(rate * part, rel=0.01), device.name


def test_units_of_the_l4_follow_from_its_boost_clock() -> None:
    """The source has 60 units and needs an odd clock for the sheet's rate; with 58 it is the 2.04 GHz it names."""
    l4 = named_device("L4")
    assert l4.units == 58 and "units" in l4.remarks
    assert l4.flops["fp16"] == pytest.approx(58 * 1024 * 2.04e9, rel=0.005)


@needs_table
def test_every_flagged_cell_is_marked_or_decided() -> None:
    for device, row in table():
        for cell in filter(None, row["unverified_cells"].split(";")):
            assert {**CELLS, **OTHER_CELLS}[cell] in device.uncertain, (device.name, cell)
        for part in filter(None, row["conflict_cells"].split(";")):
            cell = {**CELLS, **OTHER_CELLS}.get(part.strip().partition("(")[0])
            if cell is not None:
                assert cell in device.remarks, (device.name, cell)


def test_no_sparse_rate_slipped_in() -> None:
    """A sparse rate is twice the dense one, so it would break the ratios between types that the hardware has."""
    for device in catalogue():
        sixteen = device.flops["fp16"]
        assert device.flops.get("bf16", sixteen) == sixteen
        for dtype, ratio in (("tf32", 0.5), ("fp8", 2.0)):
            if dtype in device.flops:
                assert device.flops[dtype] == pytest.approx(ratio * sixteen, rel=0.015), (device.name, dtype)
    assert (named_device("H100-SXM").flops["bf16"], named_device("H200-SXM").flops["fp8"]) == (989.4e12, 1978.9e12)
    assert named_device("B200").flops["fp4"] == 9e15


@pytest.mark.parametrize(
    ("name", "memory", "units", "vendor", "device"),
    [
        ("NVIDIA H100 80GB HBM3", 85_018_279_936, 132, "nvidia", "H100-SXM5"),
        ("NVIDIA B200", 191_503_138_816, 148, "nvidia", "B200"),
        ("NVIDIA B300 SXM6 AC", 287_416_123_392, 148, "nvidia", "B300"),
        ("AMD Instinct MI300X", 206_141_652_992, 304, "amd", "MI300X"),
        ("Tesla T4", None, None, None, "T4"),
        ("Tesla V100-SXM2-16GB", 16_945_512_448, 80, "nvidia", "V100-SXM2"),
        ("NVIDIA L4", 23_580_639_232, 58, "nvidia", "L4"),
        ("NVIDIA L4", 23_580_639_232, 29, "nvidia", None),  # not all its units
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 5_100_273_664, 14, "nvidia", None),
        ("AMD Instinct MI300X", 25_769_803_776, 38, "amd", None),  # one of eight partitions
        ("NVIDIA GeForce RTX 3080", 10_736_893_952, 68, "nvidia", None),
        ("NVIDIA GeForce RTX 3090 Ti", None, None, "nvidia", None),
        ("AMD EPYC", None, None, None, None),
        ("", 206_141_652_992, 304, "amd", "MI300X"),
        (None, 206_141_652_992, 304, None, "MI300X"),
        ("", 274_861_129_728, 304, "amd", "MI325X"),
        ("", 85_018_279_936, 132, "nvidia", "H100-SXM5"),
        ("", 206_141_652_992, 304, "nvidia", None),
        ("", 42_298_834_944, 108, "nvidia", None),  # two variants of the A100 with 40 GB
        ("", 206_141_652_992, None, "amd", None),
        ("", None, 304, "amd", None),
        (None, None, None, None, None),
    ],
)
def test_a_device_is_found_or_it_is_not(
    name: str | None, memory: int | None, units: int | None, vendor: str | None, device: str | None
) -> None:
    found = find_device(name, memory, units, vendor)
    assert (found and found.name) == device


def test_every_driver_name_means_one_device() -> None:
    for device in catalogue():
        for name in device.driver_names:
            assert find_device(name) is device, name


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("H100-SXM5", "H100-SXM5"), ("h100 sxm", "H100-SXM5"), ("NVIDIA H100 80GB HBM3", "H100-SXM5"),
        ("A100-40GB", "A100-40GB-SXM4"), ("mi300x", "MI300X"), ("AMD Instinct MI300X", "MI300X"), ("b200", "B200"),
        ("RTX 4090", "RTX-4090"), ("l40s", "L40S"), ("l4", "L4"), ("MI250X", "MI250X-GCD"), ("mi325", "MI325X"),
    ],
)  # fmt: skip
def test_a_user_names_a_device(name: str, device: str) -> None:
    assert named_device(name).name == device


def test_an_unknown_gpu_lists_what_is_known_and_what_is_near() -> None:
    with pytest.raises(UsageProblem, match=r"unknown GPU MI300Z; known: V100-SXM2, .*RX-9070-XT") as caught:
        named_device("MI300Z")
    assert "MI300X" in caught.value.hint and "--peak-flops" in caught.value.hint


def test_one_of_several_is_not_guessed() -> None:
    with pytest.raises(UsageProblem, match="may be one of several") as caught:
        named_device("H100")
    assert caught.value.hint == "say which: H100-PCIe, H100-SXM5, H100-NVL"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("990T", 990e12), ("990 TFLOP/s", 990e12), ("989.4tflops", 989.4e12), ("3.35TB/s", 3.35e12), ("312e12", 312e12),
        ("1.3P", 1.3e15), ("20GB/s", 20e9), ("1GiB/s", float(1 << 30)), ("3350 GB/s", 3.35e12),
    ],
)  # fmt: skip
def test_rates_with_units(text: str, rate: float) -> None:
    assert parse_rate(text, "--bandwidth") == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "5 apples", "-3T", "0T", "nan", "990", "3.35"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(UsageProblem, match="--peak-flops"):
        parse_rate(text, "--peak-flops")


def test_peaks_by_type() -> None:
    h100, v100, mi210 = named_device("H100-SXM"), named_device("V100-SXM2"), named_device("MI210")
    assert peaks_of(h100, "c10::BFloat16") == Peaks(flops_per_s=989.4e12, bytes_per_s=3350e9)
    assert peaks_of(h100, "fp8_e4m3") == Peaks(flops_per_s=1978.9e12, bytes_per_s=3350e9)
    assert (flops_of(h100, "float"), flops_of(h100, "tf32")) == pytest.approx((66.9e12, 494.7e12))
    assert flops_of(mi210, "float32") == 45.3e12  # its matrix units take 32 bits
    assert peaks_of(v100, "bfloat16") is None
    assert peaks_of(h100, "fp4") is None
    assert peaks_of(h100, "complex64") is None
    assert peaks_of(h100, None) is None


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("torch.bfloat16", "bf16"), ("c10::BFloat16", "bf16"), ("c10::Half", "fp16"), ("float", "fp32"), ("TF32", "tf32"),
        ("c10::Float8_e4m3fnuz", "fp8"), ("signed char", "int8"), ("mxfp4", "fp4"), ("auto", None), ("long int", None),
        ("", None), (None, None),
    ],
)  # fmt: skip
def test_spellings_of_types(name: str | None, dtype: str | None) -> None:
    assert canonical_dtype(name) == dtype


# Peaks of a run

H100_FACTS = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_018_279_936, "numSms": 132}
MI300X_FACTS = [{"id": i, "name": "", "totalGlobalMem": 206_141_652_992, "numSms": 304} for i in range(8)]


class Run:
    """A database with one run of one device."""

    def __init__(
        self, *, name: str | None = None, vendor: str | None = None, device: int = 0, dtype: str | None = None,
        source: str = "ingest", **config: Any,
    ) -> None:  # fmt: skip
        self.con = duckdb.connect()
        self.con.execute(schema_sql())
        self.con.execute(
            "INSERT INTO runs (run_id, source, dtype, config) VALUES ('r', ?, ?, ?)",
            [source, dtype, json.dumps(config)],
        )
        self.con.execute(
            "INSERT INTO devices (run_id, rank, device, name, vendor) VALUES ('r', 0, ?, ?, ?)", [device, name, vendor]
        )

    def gemm(self, busy_ns: int, op_dtypes: list[str] | None = None, name: str = "gemm", category: str = "gemm") -> Run:
        self.con.execute(
            "INSERT INTO kernels (run_id, rank, device, kernel_id, kind, name, category, start_ns, dur_ns, busy_ns, "
            "op_dtypes, valid) VALUES ('r', 0, 0, 0, 'kernel', ?, ?, 0, ?, ?, ?, true)",
            [name, category, busy_ns, busy_ns, None if op_dtypes is None else json.dumps(op_dtypes)],
        )
        return self

    def peaks(self, override: PeakOverride | None = None) -> tuple[Any, ...]:
        fill_devices(self.con, "r", override or PeakOverride())
        return self.column("peak_flops, peak_bandwidth, peak_source, ridge")

    def column(self, names: str) -> tuple[Any, ...]:
        row = self.con.execute(f"SELECT {names} FROM devices").fetchone()
        assert row is not None
        return row


def calibration(**changes: Any) -> Calibration:
    values: dict[str, Any] = {
        "created_ns": time.time_ns(), "device_kind": "cpu", "device_name": "AMD EPYC", "threads": 1, "bind": "auto",
        "torch_version": "2", "short": False, "launch_ns": 1700.0, "others_cpu": 0.0, "quiet": True,
        "matrix": (MatrixRate(dtype="bf16", m=1, k=1, n=1, best=400e9, median=390e9, spread=0.1, repeats=9),),
        "memory": (
            MemoryRate(operation="read", working_set_bytes=1 << 28, best=20e9, median=19e9, spread=0.1, repeats=9),
        ),
    }  # fmt: skip
    return Calibration(**{**values, **changes})


def test_a_named_device_has_its_datasheets_peaks() -> None:
    run = Run(name="NVIDIA H100 80GB HBM3", vendor="nvidia", dtype="bfloat16", deviceProperties=[H100_FACTS])
    assert run.peaks() == (989.4e12, 3350e9, "datasheet", pytest.approx(295.34, rel=1e-4))


def test_a_nameless_device_with_an_unlisted_number_is_found_by_what_all_of_them_are() -> None:
    run = Run(vendor="amd", device=9, dtype="bfloat16", deviceProperties=MI300X_FACTS)
    assert run.peaks()[:3] == (1307.4e12, 5325e9, "datasheet")
    assert run.column("name, memory_bytes") == ("AMD Instinct MI300X", 206_141_652_992)
    assert run.peaks()[:3] == (1307.4e12, 5325e9, "datasheet")  # and again, by the name it has now


def test_an_unlisted_number_among_different_devices_stays_unknown() -> None:
    run = Run(vendor="amd", device=9, dtype="bfloat16", deviceProperties=[MI300X_FACTS[0], {**H100_FACTS, "id": 1}])
    assert run.peaks() == (None, None, None, None)
    assert run.column("name, memory_bytes") == (None, None)


@pytest.mark.parametrize("config", [{}, {"deviceProperties": None}, {"deviceProperties": [3, "x"]}])
def test_an_unknown_device_has_no_peaks(config: dict[str, Any]) -> None:
    assert Run(dtype="bfloat16", **config).peaks() == (None, None, None, None)


def test_an_unknown_type_has_bandwidth_and_no_ridge() -> None:
    run = Run(name="NVIDIA H100 80GB HBM3", vendor="nvidia").gemm(10)
    assert run.peaks() == (None, 3350e9, "datasheet", None)


def test_what_a_user_gives_wins() -> None:
    run = Run(name="NVIDIA H100 80GB HBM3", vendor="nvidia", dtype="bfloat16")
    assert run.peaks(peak_override(peak_flops="500T")) == (500e12, 3350e9, "user", pytest.approx(500e12 / 3350e9))
    assert run.peaks(peak_override(gpu="H200-SXM"))[:3] == (989.4e12, 4800e9, "datasheet")
    assert run.peaks(peak_override(gpu="H200-SXM", bandwidth="4TB/s"))[:3] == (989.4e12, 4e12, "user")
    assert Run().peaks(peak_override(peak_flops="1T", bandwidth="10GB/s")) == (1e12, 1e10, "user", 100.0)


def test_type_by_operands_weighed_by_time() -> None:
    run = Run().gemm(10, ["float", "float"]).gemm(30, ["c10::BFloat16", "c10::BFloat16", "", "Scalar"])
    run.gemm(500, ["c10::Half"], category="norm")
    assert main_dtype(run.con, "r") == "bf16"


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x32x512_MI16x16x1", "bf16"),
        ("Cijk_Alik_Bljk_HHS_BH_Bias_HA_S_SAV_UserArgs_MT16x32x512_MI16x16x1", "fp16"),
        ("nvjet_sm103_tst_32x64_64x16_4x1_v_bz_splitK_TNN", "bf16"),
        ("nvjet_hsh_192x8_64x8_4x1_v_bz_TNT", "fp16"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "fp16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "fp8"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "fp32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688tf32gemm_128x128>", "tf32"),
        ("gemv_of_something", None),
    ],
)
def test_type_by_kernel_name(name: str, dtype: str | None) -> None:
    assert main_dtype(Run().gemm(10, name=name).con, "r") == dtype


def test_type_of_the_run_then_of_its_kernels_then_of_its_model() -> None:
    config = {"model_config": {"torch_dtype": "float16"}}
    assert main_dtype(Run(dtype="bfloat16", **config).gemm(1, ["float"]).con, "r") == "bf16"
    assert main_dtype(Run(dtype="auto", **config).gemm(1, ["float"]).con, "r") == "fp32"
    assert main_dtype(Run(**config).con, "r") == "fp16"


def test_a_run_carries_its_own_calibration() -> None:
    run = Run(name="AMD EPYC", vendor="cpu", dtype="bfloat16", calibration=calibration().to_dict())
    assert run.peaks() == (400e9, 20e9, "calibrated", 20.0)


def test_this_machines_calibration_is_for_runs_made_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store_calibration(calibration())
    cpu: dict[str, Any] = {"name": "AMD EPYC", "vendor": "cpu", "dtype": "bfloat16"}
    assert Run(source="profile", **cpu).peaks()[2] == "calibrated"
    assert Run(source="ingest", **cpu).peaks() == (None, None, None, None)
    assert Run(source="profile", **{**cpu, "name": "another"}).peaks()[2] is None


def test_a_run_is_judged_by_its_own_number_of_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store_calibration(calibration())
    two = MatrixRate(dtype="bf16", m=1, k=1, n=1, best=800e9, median=790e9, spread=0.1, repeats=9)
    cpu: dict[str, Any] = {"name": "AMD EPYC", "vendor": "cpu", "dtype": "bfloat16", "source": "profile"}
    bound = Run(**cpu, engine_env={"VLLM_CPU_OMP_THREADS_BIND": "0-1"})
    assert bound.peaks()[0] is None
    store_calibration(calibration(bind="0-1", threads=2, matrix=(two,)))
    assert bound.peaks()[0] == 800e9
    assert Run(**cpu).peaks()[0] == 400e9


def test_a_calibrated_gpu_beats_its_datasheet() -> None:
    measured = calibration(device_kind="cuda", device_name="NVIDIA H100 80GB HBM3", bind=None, threads=None)
    run = Run(name="NVIDIA H100 80GB HBM3", vendor="nvidia", dtype="bfloat16", calibration=measured.to_dict())
    assert run.peaks()[:3] == (400e9, 20e9, "calibrated")


@needs_traces
@pytest.mark.parametrize(
    ("path", "device"),
    [
        ("vllm_decode_full/graph_execution.json.gz", "MI300X"),
        ("vllm_prefilldecode_piecewise/graph_execution.json.gz", "MI300X"),
        ("sglang_decode/sglang_Qwen3-8B_decode.json.gz", "MI300X"),
        ("b200_vllm_eager_prefill/eager_trace.json.gz", "B200"),
        ("h100_transformers_qwen1.5_0.5b/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz", "H100-SXM5"),
        ("b300_sglang_decode_qwen3_30b_a3b/1782799835.6885648-TP-0-DECODE.trace.json.gz", "B300"),
    ],
)
def test_devices_of_the_sample_traces(path: str, device: str) -> None:
    with isal.igzip.open(SHARED / "gpu-traces" / path, "rb") as file:
        match = re.search(rb'"deviceProperties":\s*(\[.*?\])', file.read(), re.DOTALL)
    assert match is not None
    run = Run(device=77, dtype="bfloat16", deviceProperties=json.loads(match[1]))
    peaks = run.peaks()
    assert peaks[:3] == (named_device(device).flops["bf16"], named_device(device).bandwidth, "datasheet")
