"""`stepscope idle`: what it prints, as a table and as JSON, and what it withholds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trace_builder import DECODE, MS, US, TraceBuilder

Run = Callable[..., tuple[int, str, str]]
EXPECTED = """\
window = busy + idle + unrecorded
                     window               busy               idle    unrecorded
  rank 0 device 0  265.0 µs  120.0 µs (45.3 %)  145.0 µs (54.7 %)  0 ns (0.0 %)

idle by cause
  cause           pieces     time  of window      p50      p99  longest
  host_launch          5  71.0 µs     26.8 %  23.0 µs  23.0 µs  23.0 µs
  host_other           2  60.0 µs     22.6 %  30.0 µs  30.0 µs  30.0 µs
  launch_latency       5  10.0 µs      3.8 %   2.0 µs   2.0 µs   2.0 µs
  host_prepare         2   4.0 µs      1.5 %   2.0 µs   2.0 µs   2.0 µs

sizes
  length           pieces      time  of these
  1 µs to 10 µs         9   16.0 µs    11.0 %
  10 µs to 100 µs       5  129.0 µs    89.0 %

what would hide it
  host_launch: 71.0 µs, 23.7 µs per step, host work to remove or overlap
    the thread cannot launch fast enough: CUDA graphs, compilation (fewer and larger kernels), a
    faster CPU core
      69.0 µs        3 ×  in the label of the step
       2.0 µs        2 ×  in call cudaLaunchKernel, operator aten::mm, in the label of the step
  host_other: 60.0 µs, 20.0 µs per step, host work to remove or overlap
    the thread does something no recorded range names: record with stacks to see what
      60.0 µs        2 ×  in no recorded range
  launch_latency: 10.0 µs, 3.3 µs per step, on the device
    a launched activity takes this long to begin: fewer kernels (fusion), or graphs
      10.0 µs        5 ×  next is gemm
  host_prepare: 4.0 µs, 1.3 µs per step, host work to remove or overlap
    inputs are prepared between forward passes: asynchronous scheduling, fewer requests per step
       4.0 µs        2 ×  in the label of the step

longest pieces, at their time in the window
  30.0 µs  host_other  (at 65.0 µs, step 0 to 1)
    between gemm and gemm
    in no recorded range, thread 1
""".splitlines()


def eager(folder: Path, *, labels: bool = True, name: str = "gemm") -> Path:
    """Three steps of 100 µs, each with two kernels of 20 µs; every launch comes 25 µs behind the end of the one before."""
    trace = TraceBuilder(rank=0)
    for step in range(3):
        begin = MS + 100 * step * US
        if labels:
            trace.label(begin, 60 * US, DECODE)
        for number in range(2):
            launched = begin + (2 + 45 * number) * US
            trace.op("aten::mm", launched - US, 3 * US).launch(launched, 10 * step + number + 1, dur=US)
            trace.kernel(launched + 3 * US, 20 * US, 10 * step + number + 1, name=name)
    return trace.write(folder / "trace.json")


def broken_graphs(folder: Path) -> Path:
    """Six graph launches, of which two have kernels."""
    trace = TraceBuilder(rank=0)
    for step in range(6):
        begin = MS * (step + 1)
        trace.label(begin, 500 * US, DECODE).graph_launch(begin + US, step + 1)
        if step in (0, 5):
            trace.kernel(begin + 10 * US, 20 * US, step + 1)
    return trace.write(folder / "trace.json")


def ingested(run: Run, trace: Path, *options: str) -> Path:
    code, _, err = run("ingest", trace, "--out", trace.parent / "run.duckdb", "--quiet", *options)
    assert code == 0, err
    return trace.parent / "run.duckdb"


def as_json(run: Run, *arguments: object) -> dict[str, Any]:
    code, out, err = run("idle", *arguments, "--json")
    assert code == 0, err
    value: dict[str, Any] = json.loads(out)
    return value


def test_the_table(run: Run, tmp_path: Path) -> None:
    path = ingested(run, eager(tmp_path))
    code, out, _ = run("idle", path, "--limit", "1")
    assert code == 0
    assert max(len(line) for line in out.splitlines()) <= 100
    assert out.splitlines() == EXPECTED


def test_json_sums_to_the_window(run: Run, tmp_path: Path) -> None:
    path = ingested(run, eager(tmp_path))
    report = as_json(run, path)
    assert report["version"] == 1 and report["withheld"] == {}
    (device,) = report["devices"]
    assert device["busy_ns"] + device["idle_ns"] + device["unrecorded_ns"] == device["window_ns"] == 265 * US
    assert sum(row["ns"] for row in report["groups"]) == device["idle_ns"] == 145 * US
    assert sum(row["ns"] for row in report["sizes"]) == device["idle_ns"]
    assert sum(row["pieces"] for row in report["groups"]) == sum(row["pieces"] for row in report["sizes"])
    assert {row["name"] for row in report["groups"]} == {row["cause"] for row in report["hiding"]}
    assert sum(row["share"] for row in report["groups"]) == pytest.approx(145 / 265)
    assert len(report["worst"]) == 10 and report["worst"][0]["dur_ns"] == max(row["dur_ns"] for row in report["worst"])


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("by", ["cause", "step-kind", "size"])
def test_every_grouping_sums_to_the_idle_time(run: Run, tmp_path: Path, by: str, labels: bool) -> None:
    """Also in a run without steps, where the database once narrowed the sums to a byte."""
    report = as_json(run, ingested(run, eager(tmp_path, labels=labels)), "--by", by)
    assert sum(row["ns"] for row in report["groups"]) == report["devices"][0]["idle_ns"]
    if by == "step-kind":
        names = {row["name"] for row in report["groups"]}
        assert names == ({"decode", "between steps"} if labels else {"outside steps"})


def test_short_pieces_are_left_out_of_groups_only(run: Run, tmp_path: Path) -> None:
    path = ingested(run, eager(tmp_path))
    report = as_json(run, path, "--min-us", "10")
    assert {row["dur_ns"] >= 10 * US for row in report["worst"]} == {True}
    assert sum(row["ns"] for row in report["groups"]) < report["devices"][0]["idle_ns"] == 145 * US
    code, out, _ = run("idle", path, "--min-us", "10")
    assert code == 0 and "idle by cause, pieces of 10.0 µs and longer" in out
    code, out, _ = run("idle", path, "--min-us", "1000000")
    assert code == 0 and "no idle time, pieces of 1.00 s and longer" in out


def test_the_host_work_that_has_to_go(run: Run, tmp_path: Path) -> None:
    report = as_json(run, ingested(run, eager(tmp_path)))
    row = next(row for row in report["hiding"] if row["cause"] == "host_launch")
    assert row["who"] == "host"
    assert row["per_step_ns"] == round(row["ns"] / 3)
    assert sum(item["ns"] for item in row["evidence"]) == row["ns"]
    assert all("thread" not in item["what"] for item in row["evidence"])


def test_shares_are_withheld_where_graphs_have_no_kernels(run: Run, tmp_path: Path) -> None:
    path = ingested(run, broken_graphs(tmp_path))
    report = as_json(run, path)
    assert report["devices"][0]["idle_ns"] is None and report["devices"][0]["busy_ns"] is None
    assert {row["share"] for row in report["groups"]} <= {None}
    assert any("graph launches" in why for why in report["withheld"].values())
    code, out, err = run("idle", path)
    assert code == 0
    assert "withheld" in out and "shares are withheld, the recording cannot carry them" in out
    assert "only 0 of 4 graph launches" in out or "graph launches" in out
    assert "withheld: " in err
    assert max(len(line) for line in out.splitlines()) <= 100


def test_a_run_that_was_only_linked_says_so(run: Run, tmp_path: Path) -> None:
    path = ingested(run, eager(tmp_path), "--no-analyze")
    code, out, _ = run("idle", path)
    assert code == 0
    assert "not analyzed" in out and "run `stepscope analyze`" in out
    assert run("analyze", path, "--quiet")[0] == 0
    assert "not analyzed" not in run("idle", path)[1]


def test_names_of_a_recording_cannot_write_to_the_terminal(run: Run, tmp_path: Path) -> None:
    hostile = "\x1b[31mred\x07\x1b]0;title\x07 {} {:d} %s '; DROP TABLE gaps; -- " + "x" * 10_000
    path = ingested(run, eager(tmp_path, name=hostile))
    code, out, _ = run("idle", path)
    assert code == 0
    assert "\x1b" not in out and "\x07" not in out
    assert max(len(line) for line in out.splitlines()) <= 100


@pytest.mark.parametrize("value", ["-1", "x", "1e30", "nan"])
def test_a_wrong_length_is_a_usage_error(run: Run, tmp_path: Path, value: str) -> None:
    code, out, err = run("idle", tmp_path / "absent.duckdb", "--min-us", value)
    assert (code, out) == (2, "")
    assert "error: " in err and "--min-us" in err


@pytest.mark.parametrize(
    "arguments",
    [(), ("run.duckdb", "--pool", "2"), ("run.duckdb", "--simulate", "poisson:rate=2"), ("--simulate", "poisson:rate=2", "--by", "size")],
)  # fmt: skip
def test_a_run_and_a_simulation_exclude_each_other(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run("idle", *arguments)
    assert (code, out) == (2, "")
    assert "error: " in err and "--simulate" in err
