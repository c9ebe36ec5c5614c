"""Size of a report and the time until it can be read and until every figure is drawn, by number of steps.

    python benchmarks/report.py --steps 500 50000 --repeats 3
    python benchmarks/report.py --run RUN --repeats 3

Without --run, databases are made with that many steps (a repeating pattern of prefill, decode and mixed steps, four kernels
and two idle pieces each, a ledger, a request per twenty steps). Columns: `write` seconds of `stepscope report` from an open
store; `MB` of the file; `readable` s until the browser's load event; `drawn` s until the last figure; `zoom` s until the
timeline shows single steps after a zoom; `cpu` s of the page's process until all is drawn, which other work on the machine
disturbs less. Medians of --repeats. Needs Chromium.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import duckdb

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from browser import browser  # noqa: E402

from analyzers.report.page import page  # noqa: E402
from analyzers.report_model import read_report  # noqa: E402
from traces.store import TraceStore, schema_sql  # noqa: E402

STEP_NS = 10_000_000
MADE = """
INSERT INTO runs BY NAME SELECT 'r' AS run_id, 'made' AS name, 0 AS created_ns, 'ingest' AS source,
'vllm' AS engine, 'cuda' AS device_kind,
    'epoch' AS clock, 0 AS window_start_ns, $n * $step AS window_end_ns;
INSERT INTO steps BY NAME SELECT 'r' AS run_id, 0 AS rank, i AS step_id, i AS seq, 'label' AS source, i AS ledger_seq,
    CASE WHEN i % 20 = 0 THEN 'prefill' WHEN i % 20 = 7 THEN 'mixed' ELSE 'decode' END AS kind,
    i * $step AS host_start_ns, i * $step + 7000000 AS host_end_ns, i * $step AS device_start_ns,
    i * $step + 6000000 + (i * 7919) % 2000000 AS device_end_ns,
    6000000 AS busy_ns, (i * 7919) % 2000000 AS idle_ns, 0 AS unrecorded_ns, 4 AS n_kernels,
    CASE WHEN i % 20 = 0 THEN 6000000 WHEN i % 20 = 7 THEN 4000000 ELSE 0 END AS prefill_ns,
    CASE WHEN i % 20 = 0 THEN 0 WHEN i % 20 = 7 THEN 2000000 ELSE 6000000 END AS decode_ns, 0 AS other_ns,
    CASE WHEN i % 20 = 7 THEN 3000000 END AS interference_ns, CASE WHEN i % 20 IN (0,
    7) THEN 1 ELSE 0 END AS prefill_reqs,
    CASE WHEN i % 20 IN (0, 7) THEN 512 ELSE 0 END AS prefill_tokens,
    CASE WHEN i % 20 = 0 THEN 0 ELSE 1 + i % 32 END AS decode_reqs,
    CASE WHEN i % 20 = 0 THEN 0 ELSE 1 + i % 32 END AS decode_tokens, 1e9 * (1 + i % 50) AS flops,
    1e8 * (1 + i % 9) AS bytes,
    10.0 * (1 + i % 50) / (1 + i % 9) AS intensity, 1.0 AS cost_coverage
    FROM range($n) AS t(i);
INSERT INTO ledger_steps BY NAME SELECT 'r' AS run_id, 1 AS pid, i AS seq, i * $step AS sched_start_ns,
i * $step + 9000000 AS result_end_ns,
    10 AS total_tokens, 1 + i % 32 AS running, i % 5 AS waiting, (i % 1000) / 1000.0 AS kv_usage
    FROM range($n) AS t(i);
INSERT INTO kernels BY NAME SELECT 'r' AS run_id, 0 AS rank, 0 AS device, 7 AS stream, i AS kernel_id,
'kernel' AS kind,
    'kernel_' || (i % 300) AS name, ['gemm', 'attention', 'norm', 'rope'][i % 4 + 1] AS category,
    i // 4 * $step + i % 4 * 1500000 AS start_ns,
    1500000 AS dur_ns, 1500000 AS busy_ns, i // 4 AS step_id, s.prefill_ns // 4 AS prefill_ns,
    s.decode_ns // 4 AS decode_ns, true AS valid,
    2.5e8 * (1 + i % 50) AS flops, 2.5e7 * (1 + i % 9) AS bytes, 'shapes' AS cost_source, ['compute', 'memory',
    'latency', NULL][i % 4 + 1] AS bound,
    0.5 AS roof_fraction, 10.0 AS intensity FROM range(4 * $n) AS t(i) JOIN steps AS s ON s.step_id = i // 4;
INSERT INTO gaps BY NAME SELECT 'r' AS run_id, 0 AS rank, 0 AS device, i AS gap_id,
i // 2 * $step + 6000000 + i % 2 * 2000000 AS start_ns, 2000000 AS dur_ns,
    ['host_launch', 'scheduler'][i % 2 + 1] AS cause, i // 2 AS step_before, i // 2 AS step_after
    FROM range(2 * $n) AS t(i);
INSERT INTO devices BY NAME SELECT 'r' AS run_id, 0 AS rank, 0 AS device, 'NVIDIA H100 80GB HBM3' AS name,
9.9e14 AS peak_flops, 3.35e12 AS peak_bandwidth,
    'datasheet' AS peak_source, 295.0 AS ridge, 0 AS window_start_ns, $n * $step AS window_end_ns,
    6000000 * $n AS busy_ns, 4000000 * $n AS idle_ns, 0 AS unrecorded_ns;
INSERT INTO requests BY NAME SELECT 'r' AS run_id, 'q' || i AS request_id, 'c' || i AS client_request_id,
'control' AS pass, 's' || (i % 50) AS session_id,
    i // 50 AS turn, i * 20 * $step AS arrival_ns, i * 20 * $step + 1000000 AS scheduled_ns,
    i * 20 * $step + 30000000 AS first_token_ns,
    i * 20 * $step + 400000000 AS last_token_ns, i * 20 * $step + 401000000 AS finished_ns,
    512 AS prompt_tokens, 0 AS cached_tokens, 38 AS output_tokens,
    'ok' AS status FROM range($n // 20) AS t(i);
"""


def make(target: Path, steps: int) -> Path:
    """A run database of that many steps."""
    with duckdb.connect(str(target)) as con:
        con.execute(schema_sql())
        for statement in MADE.replace("$n", f"{steps}::BIGINT").replace("$step", f"{STEP_NS}::BIGINT").split(";"):
            if statement.strip():
                con.execute(statement)
    return target


def write(run: Path | str, target: Path) -> float:
    """Write the page; seconds it took."""
    began = time.perf_counter()
    with TraceStore.open(run) as store:
        target.write_text(page(read_report(store)), encoding="utf-8")
    return time.perf_counter() - began


def opened(target: Path) -> tuple[float, float, float, float]:
    """Seconds until readable, until drawn, from a zoom to single steps (0: all are drawn already), of CPU."""
    with browser() as running:
        tab = running.open(target)
        readable = float(tab.run("performance.getEntriesByType('navigation')[0].loadEventStart")) / 1e3
        drawn = float(tab.run("document.documentElement.dataset.readyMs")) / 1e3
        tab.call("Performance.enable")
        metrics = {item["name"]: item["value"] for item in tab.call("Performance.getMetrics")["metrics"]}
        zoom = float(tab.run(
            "(async () => { const node = document.getElementById('plot-timeline'); const end = node.layout.xaxis.range[1];"
                " const began = performance.now();"
            " await Plotly.relayout(node, {'xaxis.range': [end * 0.5, end * 0.505], 'xaxis.autorange': false});"
            " return node.dataset.view?.startsWith('steps') ? performance.now() - began : 0; })()"
        ))  # fmt: skip
        return readable, drawn, zoom / 1e3, float(metrics["ProcessTime"])


def main() -> None:
    """Make, write, open, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="*", default=[500, 50_000])
    parser.add_argument("--run", help="a run database instead of made ones")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runs = [(options.run, options.run)] if options.run else [
            (f"{steps:,} steps", str(make(Path(scratch) / f"{steps}.duckdb", steps))) for steps in options.steps
        ]  # fmt: skip
        print(f"{'run':24}{'write s':>9}{'MB':>7}{'readable s':>12}{'drawn s':>9}{'zoom s':>8}{'cpu s':>8}")
        for name, run in runs:
            target = Path(scratch) / "report.html"
            wrote = statistics.median(write(run, target) for _ in range(options.repeats))
            columns = [
                statistics.median(column)
                for column in zip(*(opened(target) for _ in range(options.repeats)), strict=True)
            ]
            size = target.stat().st_size / 1e6
            print(
                f"{name:24}{wrote:9.2f}{size:7.2f}{columns[0]:12.2f}{columns[1]:9.2f}{columns[2]:8.2f}{columns[3]:8.2f}"
            )


if __name__ == "__main__":
    main()
