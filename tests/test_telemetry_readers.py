"""Sensor logs of other tools: values, units, times, devices, and what is wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import string
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from traces.clock import utc_offset_ns
from traces.errors import UnreadableInput, UsageProblem
from traces.readers.base import ReadOptions, ReadReport
from traces.readers.telemetry import TelemetryReader
from traces.sniff import pick_reader

S = 1_000_000_000
MIB = 1 << 20


class Columns:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.tables: defaultdict[str, list[pa.Table]] = defaultdict(list)

    def append(self, table: str, data: pa.Table) -> None:
        self.tables[table].append(data)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows without the columns that are NULL."""
        kept = [row for data in self.tables[table] for row in data.to_pylist()]
        return [{k: v for k, v in row.items() if v is not None and k not in ("src", "source")} for row in kept]


def read(path: Path, text: str | bytes, reader: str, **options: Any) -> tuple[Columns, ReadReport]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    picked = pick_reader(path)
    assert picked.name == reader
    sink = Columns()
    return sink, picked.read(path, 3, sink, ReadOptions(**options))


def epoch_ns(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * S  # type: ignore[arg-type]


SMI_COLUMNS = (  # query, value of GPU 0, value of GPU 1
    ("timestamp", "2024/01/31 12:34:56.789", "2024/01/31 12:34:56.790"),
    ("index", "0", "1"),
    ("name", "NVIDIA H100", "NVIDIA H100"),
    ("uuid", "GPU-aa", "GPU-bb"),
    ("pci.bus_id", "00000000:07:00.0", "00000000:08:00.0"),
    ("power.draw [W]", "123.45 W", "[N/A]"),
    ("power.draw.instant [W]", "200.00 W", "[Not Supported]"),
    ("utilization.gpu [%]", "75 %", "ERR!"),
    ("utilization.memory [%]", "20 %", "0 %"),
    ("clocks.current.sm [MHz]", "1980 MHz", "[Unknown Error]"),
    ("clocks.current.memory [MHz]", "2619 MHz", "2619 MHz"),
    ("memory.used [MiB]", "1024 MiB", "5 MiB"),
    ("temperature.gpu", "61", "[GPU is lost]"),
    ("clocks_throttle_reasons.active", "0x0000000000000024", "Not Active"),
    ("power.limit [W]", "700.00 W", "650.00 W"),
)
SMI = "".join(", ".join(line) + "\n" for line in zip(*SMI_COLUMNS, strict=True))


def test_smi_with_units(tmp_path: Path) -> None:
    sink, report = read(tmp_path / "log.csv", SMI, "nvidia-smi")
    at = epoch_ns(2024, 1, 31, 12, 34, 56) + 789_000_000
    assert sink.rows("telemetry") == [
        {"device": 0, "ts_ns": at, "power_w": 123.45, "power_instant_w": 200.0, "sm_util": 0.75, "mem_util": 0.2,
         "sm_clock_mhz": 1980.0, "mem_clock_mhz": 2619.0, "memory_used_bytes": 1024 * MIB, "temperature_c": 61.0,
         "throttle": "sw_power_cap,sw_thermal"},
        {"device": 1, "ts_ns": at + 1_000_000, "mem_util": 0.0, "mem_clock_mhz": 2619.0, "memory_used_bytes": 5 * MIB},
    ]  # fmt: skip
    assert sink.rows("sensors") == [
        {"device": 0, "name": "NVIDIA H100", "uuid": "GPU-aa", "power_limit_w": 700.0},
        {"device": 1, "name": "NVIDIA H100", "uuid": "GPU-bb", "power_limit_w": 650.0},
    ]
    assert (report.kept, report.dropped, report.truncated) == ({"telemetry": 2}, {}, None)
    assert "taken as UTC" in report.meta["notes"][0]


def test_smi_without_units_is_the_same(tmp_path: Path) -> None:
    header, *rest = SMI.splitlines(keepends=True)
    bare = "".join(rest)
    for unit in (" W", " %", " MHz", " MiB"):
        bare = bare.replace(unit, "")
    plain, _ = read(tmp_path / "bare.csv", header + bare, "nvidia-smi")
    with_units, _ = read(tmp_path / "units.csv", SMI, "nvidia-smi")
    assert plain.rows("telemetry") == with_units.rows("telemetry")


def test_smi_with_neither_units_nor_their_names(tmp_path: Path) -> None:
    """As a script writes it that makes its own header."""
    text = "timestamp,index,power.draw,utilization.gpu,memory.used\n2024-01-31T12:34:56,0,5,50,1\n"
    sink, _ = read(tmp_path / "log.txt", text, "nvidia-smi")
    assert sink.rows("telemetry") == [
        {
            "device": 0,
            "ts_ns": epoch_ns(2024, 1, 31, 12, 34, 56),
            "power_w": 5.0,
            "sm_util": 0.5,
            "memory_used_bytes": MIB,
        }
    ]


def test_smi_times_in_a_stated_zone(tmp_path: Path) -> None:
    text = "timestamp, power.draw [W]\n2024/01/31 12:00:00.000, 5 W\n"
    sink, report = read(tmp_path / "log.csv", text, "nvidia-smi", utc_offset_ns=utc_offset_ns("+02:00"))
    assert sink.rows("telemetry")[0]["ts_ns"] == epoch_ns(2024, 1, 31, 10)
    assert "notes" not in report.meta


def test_smi_appended_to_itself_and_cut_off(tmp_path: Path) -> None:
    """Started several times into one file: headers in between; the last line is torn."""
    _, report = read(tmp_path / "log.csv", SMI.replace("\n", "\r\n") * 3 + "2024/01/31 12:3", "nvidia-smi")
    assert report.kept == {"telemetry": 6}
    assert report.dropped == {"line with another number of fields": 1}


@pytest.mark.parametrize("name", ["log.csv.gz", "log.csv.zst"])
def test_smi_compressed_and_damaged(tmp_path: Path, name: str) -> None:
    header, first, second = SMI.splitlines(keepends=True)
    many = (header + (first + second) * 20_000).encode()
    packed = gzip.compress(many) if name.endswith("gz") else zstandard.ZstdCompressor().compress(many)
    whole, report = read(tmp_path / name, packed, "nvidia-smi")
    assert report.kept == {"telemetry": 40_000} and report.truncated is None
    _, cut = read(tmp_path / name, packed[: len(packed) // 2], "nvidia-smi")
    assert 0 < cut.kept["telemetry"] < 40_000
    if name.endswith("gz"):
        assert cut.truncated == "the compressed data ends too early"
    assert whole.rows("sensors")


def test_smi_devices_by_uuid_or_bus_in_order_of_appearance(tmp_path: Path) -> None:
    text = "timestamp, uuid, power.draw [W]\n" + "".join(
        f"2024/01/31 12:00:0{second}.000, GPU-{name}, {second} W\n" for second in (1, 2) for name in ("zz", "aa")
    )
    sink, _ = read(tmp_path / "log.csv", text, "nvidia-smi")
    assert [(row["device"], row["power_w"]) for row in sink.rows("telemetry")] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert [(row["device"], row["uuid"]) for row in sink.rows("sensors")] == [(0, "GPU-zz"), (1, "GPU-aa")]


def test_smi_reasons_one_by_one(tmp_path: Path) -> None:
    names = ("clocks_event_reasons.sw_power_cap", "clocks_event_reasons.hw_thermal_slowdown")
    said = ("Active, Not Active", "Not Active, Not Active", "[N/A], [N/A]")
    lines = [f"2024/01/31 12:00:0{second}.000, 0, {item}" for second, item in enumerate(said)]
    text = "\n".join([f"timestamp, index, {', '.join(names)}", *lines])
    sink, _ = read(tmp_path / "log.csv", text, "nvidia-smi")
    assert [row.get("throttle") for row in sink.rows("telemetry")] == ["sw_power_cap", "", None]


def test_smi_power_average_before_the_one_of_unknown_kind(tmp_path: Path) -> None:
    lines = ["2024/01/31 12:00:00.000, 5 W, 6 W", "2024/01/31 12:00:01.000, 5 W, [N/A]"]
    text = "\n".join(["timestamp, power.draw [W], power.draw.average [W]", *lines])
    sink, _ = read(tmp_path / "log.csv", text, "nvidia-smi")
    assert [row["power_w"] for row in sink.rows("telemetry")] == [6.0, 5.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2024/01/31 12:34:56.789, 0, 123.45 W, 75 %\n", "has no header line"),
        ("0, 43.2 W, 5 %\n", "has no header line"),
        ("index, power.draw [W]\n0, 5 W\n", "has no column `timestamp`"),
        (
            "timestamp, power.draw [W]\n2024/01/31 12:00:00.000, 5 W\n2024/01/31 12:00:00.000, 6 W\n",
            "no column that tells the GPUs apart",
        ),
        (
            "timestamp, power.draw [W]\n"
            + "".join(f"2024/01/31 12:00:0{second}.00{gpu}, 5 W\n" for second in range(9) for gpu in (0, 1)),
            "no column that tells the GPUs apart",
        ),
    ],
)
def test_smi_that_cannot_be_read_says_how_to_record_it(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UnreadableInput, match=says) as problem:
        read(tmp_path / "log.csv", text, "nvidia-smi")
    assert "record it with" in problem.value.hint or "--format=csv" in problem.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,log\n",
        "name,value\na,1\n",
    ],
)
def test_other_csv_files_are_none_of_ours(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(UnreadableInput, match="has no format that stepscope reads"):
        pick_reader(path)


CELL = st.one_of(
    st.floats(0, 999, allow_nan=False).map(lambda x: f"{x:.2f} W"), st.sampled_from(["[N/A]", "ERR!", "", "5 furlongs"]),
    st.text(string.printable.replace(",", "").replace("\n", "").replace("\r", ""), max_size=12),
)  # fmt: skip


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(st.integers(0, 3), CELL, CELL), max_size=20))
def test_smi_equals_a_naive_reading(tmp_path: Path, rows: list[tuple[int, str, str]]) -> None:
    text = "timestamp, index, power.draw [W], power.draw.instant [W]\n" + "".join(
        f"2024/01/31 12:00:{second:02d}.000, {device}, {one}, {two}\n" for second, (device, one, two) in enumerate(rows)
    )
    sink, _ = read(tmp_path / "log.csv", text, "nvidia-smi")

    def naive(cell: str) -> float | None:
        number, _, unit = cell.strip().partition(" ")
        try:
            value = float(number)
        except ValueError:
            return None
        plain = all(char in "0123456789.+-eE" for char in number) and number[0] != "." and number[-1] != "."
        factor = {"": 1.0, "W": 1.0, "mW": 1e-3, "kW": 1e3}.get(unit.strip())
        return value * factor if plain and factor and 0 <= value * factor <= 1e5 else None

    lines = [line.split(",") for line in text.split("\n")[1:] if line]
    expected = [(int(cells[1]), naive(cells[2]), naive(cells[3])) for cells in lines]
    found = [(row["device"], row.get("power_w"), row.get("power_instant_w")) for row in sink.rows("telemetry")]
    assert [device for device, *_ in found] == [device for device, *_ in expected]
    for (_, *ours), (_, *theirs) in zip(found, expected, strict=True):
        assert [a is None for a in ours] == [b is None for b in theirs] and ours == pytest.approx(theirs)


DMON = """#Entity   POWER   TOTEC   GPUTL   SMACT   TENSO   DRAMA   FBUSD   PCITX   NVLRX
ID        W       mJ
GPU 0     100.5   5000    90      0.800   0.400   0.500   1024    1000    N/A
GPU 1     99.0    7000    N/A     N/A     N/A     N/A     10      5       7
GPU-I 0   N/A     N/A     N/A     0.1     0.1     0.1     N/A     N/A     N/A
#Entity   POWER   TOTEC   GPUTL   SMACT   TENSO   DRAMA   FBUSD   PCITX   NVLRX
ID        W       mJ
GPU 0     101.5   6000    91      0.900   0.500   0.600   1024    1000    N/A
GPU 1     98.0    8000    N/A     N/A     N/A     N/A     10      5       7
"""
FIRST_GPU = {"device": 0, "power_w": 100.5, "energy_j": 5.0, "sm_util": 0.9, "sm_active": 0.8, "tensor_active": 0.4,
             "dram_active": 0.5, "memory_used_bytes": 1024 * MIB, "pcie_tx_bytes_s": 1000.0}  # fmt: skip


def test_dmon_without_times_ends_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "dcgm.txt"
    path.write_text(DMON)
    os.utime(path, ns=(0, 1_700_000_000 * S))
    sink = Columns()
    report = pick_reader(path).read(path, 0, sink, ReadOptions(sensor_interval_ns=S // 10))
    rows = sink.rows("telemetry")
    assert [(row["device"], row["ts_ns"] - 1_700_000_000 * S) for row in rows] == [
        (0, -S // 10), (1, -S // 10), (0, 0), (1, 0),
    ]  # fmt: skip
    assert {key: value for key, value in rows[0].items() if key != "ts_ns"} == FIRST_GPU
    assert set(rows[1]) == {
        "device",
        "ts_ns",
        "power_w",
        "energy_j",
        "memory_used_bytes",
        "pcie_tx_bytes_s",
        "nvlink_rx_bytes_s",
    }
    assert report.dropped == {"entity that is no GPU": 1}
    assert report.meta["notes"] == [
        "its lines have no times: 2 samples were laid out 0.1 s apart, the last one at the file's modification time"
    ]


@pytest.mark.parametrize(
    ("prefix", "ns", "noted"),
    [
        ("2024-01-31T12:34:56.250 ", epoch_ns(2024, 1, 31, 12, 34, 56) + S // 4, True),
        ("2024/01/31 12:34:56.25 ", epoch_ns(2024, 1, 31, 12, 34, 56) + S // 4, True),
        ("2024-01-31T12:34:56.250Z ", epoch_ns(2024, 1, 31, 12, 34, 56) + S // 4, False),
        ("1706704496.25 ", 1_706_704_496 * S + S // 4, False),
        ("1706704496 ", 1_706_704_496 * S, False),
    ],
)
def test_dmon_with_times_before_its_lines(tmp_path: Path, prefix: str, ns: int, noted: bool) -> None:
    text = "".join(prefix + line for line in DMON.splitlines(keepends=True)[:3])
    sink, report = read(tmp_path / "dcgm.txt", text, "dcgm")
    assert sink.rows("telemetry") == [FIRST_GPU | {"ts_ns": ns}]
    assert bool(report.meta.get("notes")) == noted


def test_dmon_in_its_older_spelling_and_with_changing_fields(tmp_path: Path) -> None:
    text = "# Entity  POWER\n      Id\n  GPU 0  5\n# Entity  SMACT  POWER\n      Id\n  GPU 0  0.5  6\n  GPU 0  0.6\n"
    sink, report = read(tmp_path / "dcgm.txt", text, "dcgm")
    rows = sink.rows("telemetry")
    assert [(row["power_w"], row.get("sm_active")) for row in rows] == [(5.0, None), (6.0, 0.5)]
    assert report.dropped == {"line with another number of fields": 1}


def test_dmon_without_a_field_we_know(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="no field that stepscope reads: XYZZY"):
        read(tmp_path / "dcgm.txt", "#Entity XYZZY\nGPU 0 5\n", "dcgm")


LABELS = 'gpu="1",UUID="GPU-bb",device="nvidia1",modelName="NVIDIA L40S",Hostname="h"'


def test_dcgm_exporter(tmp_path: Path) -> None:
    scrape = f"""# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 35.686
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{{{LABELS}}} 5551899580
DCGM_FI_DEV_GPU_UTIL{{{LABELS}}} 12
DCGM_FI_DEV_FB_USED{{{LABELS}}} 10
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{{{LABELS}}} 0.25
DCGM_FI_PROF_PCIE_TX_BYTES{{{LABELS}}} 2000
DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{{{LABELS}}} 4
DCGM_FI_DEV_POWER_MGMT_LIMIT{{{LABELS}}} 350
DCGM_FI_DEV_XID_ERRORS{{{LABELS}}} 0
DCGM_FI_DEV_POWER_USAGE{{gpu="x"}} 3
DCGM_FI_DEV_POWER_USAGE{{gpu=1}} 3
DCGM_FI_PROF_SM_ACTIVE{{gpu="1",GPU_I_ID="3"}} 0.5
"""
    text = f"# stepscope scraped_ns={5 * S}\n{scrape}# stepscope scraped_ns={6 * S}\n{scrape}"
    sink, report = read(tmp_path / "dcgm.prom", text, "prometheus")
    row = {"device": 1, "power_w": 35.686, "energy_j": 5551899.58, "sm_util": 0.12, "memory_used_bytes": 10 * MIB,
           "tensor_active": 0.25, "pcie_tx_bytes_s": 2000.0, "throttle": "sw_power_cap"}  # fmt: skip
    assert sink.rows("telemetry") == [row | {"ts_ns": 5 * S}, row | {"ts_ns": 6 * S}]
    assert sink.rows("sensors") == [{"device": 1, "name": "NVIDIA L40S", "uuid": "GPU-bb", "power_limit_w": 350.0}]
    assert report.dropped == {"no device": 2, "no sample": 2, "activity of a slice of a GPU": 2}
    assert "notes" not in report.meta


def test_exporter_times_of_the_samples_and_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "one.prom"
    path.write_text(f"DCGM_FI_DEV_POWER_USAGE{{{LABELS}}} 5 1700000000123\nDCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 60\n")
    os.utime(path, ns=(0, 1_700_000_009 * S))
    sink = Columns()
    report = pick_reader(path).read(path, 0, sink, ReadOptions())
    assert sink.rows("telemetry") == [
        {"device": 1, "ts_ns": 1_700_000_000_123_000_000, "power_w": 5.0},
        {"device": 1, "ts_ns": 1_700_000_009 * S, "temperature_c": 60.0},
    ]
    assert "modification time" in report.meta["notes"][0]


def test_node_exporter(tmp_path: Path) -> None:
    modes = {"user": 10.0, "system": 5.0, "idle": 80.0, "iowait": 3.0, "steal": 2.0, "guest": 4.0}
    lines = [
        f'node_cpu_seconds_total{{cpu="{cpu}",mode="{mode}"}} {value}'
        for cpu in (0, 1)
        for mode, value in modes.items()
    ]
    lines += [
        'node_rapl_package_joules_total{index="0"} 100',
        'node_rapl_dram_joules_total{index="0"} 20',
        "node_load1 3",
    ]
    sink, _ = read(tmp_path / "node.prom", f"# stepscope scraped_ns={S}\n" + "\n".join(lines), "prometheus")
    assert sink.rows("telemetry") == [
        {"device": 0, "ts_ns": S, "energy_j": 120.0, "cpu_busy_s": 30.0, "cpu_total_s": 200.0}
    ]
    assert sink.tables["sensors"][0]["source"].to_pylist() == ["rapl"]


def test_the_servers_own_metrics_stay_metrics(tmp_path: Path) -> None:
    path = tmp_path / "control-after.prom"
    path.write_text("# stepscope scraped_ns=5\nvllm:num_requests_running 1\nprocess_cpu_seconds_total 5\n")
    assert pick_reader(path).name == "metrics"


def test_values_that_no_sensor_can_mean_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    samples = [
        {"ts_ns": 1, "device": 0, "power_w": -1, "energy_j": -5.0, "sm_util": 1.5, "tensor_active": 1.04, "throttle": 7},
        {"ts_ns": 2, "device": 0, "power_w": 4294967.0, "memory_used_bytes": -1, "resident": "yes", "temperature_c": -40},
        {"ts_ns": 2**63, "device": 0}, {"ts_ns": 3, "device": -1}, {"ts_ns": 4}, {"ts_ns": -4, "device": 0},
        {"ts_ns": 5, "device": 0, "sm_util": 1e400, "power_w": 3}, ["no record"], 7, {"ts_ns": 6, "device": 1.5},
    ]  # fmt: skip
    header = {"stepscope_telemetry": 1, "kind": "header", "source": "nvml", "devices": [
        {"device": 0, "name": 5, "power_limit_w": float("inf"), "power_period_ns": -3}, {"device": "0"}, 4,
    ]}  # fmt: skip
    text = "\n".join(json.dumps(item, separators=(",", ":")) for item in [header, *samples])
    sink, report = read(path, text + '\n{"kind":', "telemetry")
    assert sink.rows("telemetry") == [
        {"device": 0, "ts_ns": 1, "tensor_active": 1.0}, {"device": 0, "ts_ns": 2, "temperature_c": -40.0},
        {"device": 0, "ts_ns": 5, "power_w": 3.0},
    ]  # fmt: skip
    assert sink.rows("sensors") == [{"device": 0}]
    assert report.kept["telemetry"] + sum(report.dropped.values()) == len(samples) + 1


def test_a_file_of_another_version(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="another version of stepscope"):
        read(tmp_path / "telemetry.jsonl", '{"stepscope_telemetry":2,"kind":"header"}\n', "telemetry")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200), cut=st.integers(0, 400))
def test_damage_of_our_own_file_costs_lines_only(tmp_path: Path, data: bytes, cut: int) -> None:
    line = b'{"ts_ns":%d,"device":0,"power_w":5.0}\n'
    good = [line % number for number in range(1, 21)]
    text = (
        b'{"stepscope_telemetry":1,"kind":"header","source":"cpu","devices":[]}\n' + b"".join(good[:10]) + data + b"\n"
    )
    text += b"".join(good[10:])
    path = tmp_path / "telemetry.jsonl"
    path.write_bytes(text[: len(text) - cut])
    sink = Columns()
    TelemetryReader().read(path, 0, sink, ReadOptions())
    kept = pl.DataFrame(sink.rows("telemetry"), schema={"ts_ns": pl.Int64}, strict=False)["ts_ns"].to_list()
    whole = text[: len(text) - cut].count(b'"power_w":5.0}')
    assert sum(1 <= ts <= 20 for ts in kept) >= min(whole, 20) - 1


@pytest.mark.parametrize(("text", "minutes"), [("+02:00", 120), ("-07", -420), ("0530", 330), ("UTC+1", 60), ("+0", 0)])
def test_offsets(text: str, minutes: int) -> None:
    assert utc_offset_ns(text) == minutes * 60 * S


@pytest.mark.parametrize("text", ["", "Berlin", "+15:00", "+02:60", "2.5"])
def test_offsets_that_cannot_be(text: str) -> None:
    with pytest.raises(UsageProblem, match="cannot read the offset"):
        utc_offset_ns(text)
