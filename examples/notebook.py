"""A run in Python: any table as a frame, an analyzer's answer, a figure. Cells are marked `# %%`, as notebooks take them.

python examples/notebook.py run.duckdb [figure.html]
"""

# %% Open a run: a database or a run directory; `#run_id` behind it picks one of several.
import sys
from pathlib import Path

import plotly.graph_objects as go
import polars as pl

from analyzers.readings import kernels
from analyzers.report.text import duration, percent
from analyzers.summary import summarize
from traces.store import TraceStore

run = sys.argv[1] if len(sys.argv) > 1 else "run.duckdb"
store = TraceStore.open(run)
print(store.run_id)

# %% Any table of docs/data-dictionary.md as a polars frame. Times are integer ns, unknown is null.
steps = store.table("steps")
decode = steps.filter(pl.col("kind") == "decode")
print(steps.select("seq", "kind", "busy_ns", "prefill_ns", "decode_ns", "bound").head())

# %% SQL, with the run bound to $run_id where the statement names it.
slowest = store.query(
    "SELECT category, name, busy_ns FROM kernels WHERE run_id = $run_id AND valid ORDER BY busy_ns DESC LIMIT 5",
    {"run_id": store.run_id},
)
print(slowest)

# %% What the commands print, as values: `stepscope summary`, `stepscope kernels --by category`.
summary = summarize(store)
for device in summary.devices:
    window_ns = device["window_end_ns"] - device["window_start_ns"]
    busy_ns = device["busy_ns"]
    print(device["name"], duration(busy_ns), "busy:", percent(busy_ns / window_ns if busy_ns is not None else None))
for number, reason in summary.withheld.items():
    print("withheld:", number, reason)
by_category = kernels(store, "category")

# %% A figure: device time of each step, by phase.
timed = steps.filter(pl.col("busy_ns").is_not_null()).sort("seq")
figure = go.Figure(
    [
        go.Bar(name=name, x=timed["seq"].to_list(), y=(timed[f"{name}_ns"] / 1e6).to_list())
        for name in ("prefill", "decode", "other")
    ]
)
figure.update_layout(barmode="stack", xaxis_title="step", yaxis_title="device time, ms")
if len(sys.argv) > 2:
    figure.write_html(Path(sys.argv[2]), include_plotlyjs="directory")

# %%
store.close()
