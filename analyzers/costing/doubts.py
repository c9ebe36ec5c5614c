"""What speaks against the costs of a run, as rows of table `health`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

import duckdb
import polars as pl

from analyzers.costs.shape import ModelShape
from traces.store import named_sql

SOURCES_AGREE = 0.05  # of two sources' FLOPs per category
AFFECTED = ["kernels.flops", "kernels.bytes", "steps.flops"]
MUCH_SENT = 0.01  # of device time in collectives without a cost: worth saying
_WHOLE = 1e-4  # how near a whole number
_COMPARED = ("gemm", "logits", "attention", "moe")


def forget(con: duckdb.DuckDBPyConnection, run_id: str, *checks: str) -> None:
    """Remove what an earlier analysis said."""
    con.execute("DELETE FROM health WHERE run_id = ? AND list_contains(?, check_id)", [run_id, list(checks)])


def say(
    con: duckdb.DuckDBPyConnection, run_id: str, check_id: str, message: str, affects: list[str], *,
    ok: bool = False, value: float | None, threshold: float | None,
) -> None:  # fmt: skip
    """Add one row, 'ok' or 'warning'."""
    con.execute(named_sql("roofline_health", "analyzers"), {
        "run_id": run_id, "check_id": check_id, "status": "ok" if ok else "warning", "value": value,
        "threshold": threshold, "affects": json.dumps(affects), "message": message,
    })  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Doubts:
    """Gathers over the blocks of a run what there is to say about its costs; `report` writes it.

    `unclear`: a configuration was given, and how ranks share the model is not known. `ranks` take part in a collective;
    None where that is not known.
    """

    model: ModelShape | None
    unclear: bool = False
    ranks: int | None = None
    _calls: set[int] = field(default_factory=set)  # attention calls per step
    _sources: list[pl.DataFrame] = field(default_factory=list)  # category, flops, flops_model
    _beyond: list[pl.DataFrame] = field(default_factory=list)  # category, cost_source, n, busy_ns, roof_fraction
    _busy_ns: int = 0
    _sent: tuple[int, int] = (0, 0)  # collectives without a cost, and their busy ns
    _fewer: list[pl.DataFrame] = field(default_factory=list)  # n, bytes, expected

    def add_sources(self, rows: pl.DataFrame, direct: pl.DataFrame, modelled: pl.DataFrame) -> None:
        """Compare the FLOPs of activities that operands and configuration both explain, and count layers."""
        working = rows.filter((pl.col("tokens") > 0) & (pl.col("layers") > 0))
        self._calls.update(working["layers"].unique().to_list())
        placed = rows.select("kernel_id", "category", "step_id", "tokens", "captured")
        both = direct.join(modelled, on="kernel_id", suffix="_model").join(placed, on="kernel_id")
        both = _unpadded(both.filter(pl.col("category").is_in(_COMPARED)))
        self._sources.append(both.group_by("category").agg(pl.col("flops", "flops_model").sum()))

    def add_rows(self, costed: pl.DataFrame, judged: pl.DataFrame) -> None:
        """Note activities faster than the device, and experts that uniform routing would read too many of."""
        self._busy_ns += int(judged["busy_ns"].sum())
        sent = judged.filter((pl.col("category") == "comm") & pl.col("bytes").is_null())["busy_ns"]
        self._sent = (self._sent[0] + len(sent), self._sent[1] + int(sent.sum()))
        summed = [pl.len().alias("n"), pl.col("busy_ns").sum(), pl.col("roof_fraction").max()]
        self._beyond.append(judged.filter(pl.col("impossible")).group_by("category", "cost_source").agg(summed))
        expected = costed.filter(pl.col("least_bytes").is_not_null()).select("kernel_id", expected="bytes")
        fewer = judged.join(expected, on="kernel_id").filter(pl.col("bytes") < pl.col("expected"))
        self._fewer.append(fewer.select(pl.len().alias("n"), pl.col("bytes", "expected").sum()))

    def report(self, con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        """Replace what an earlier analysis said."""
        forget(con, run_id, "cost_sources", "impossible_rows", "expert_routing", "collectives")
        if not self._sources:
            return
        self._report_sources(con, run_id)
        self._report_impossible(con, run_id)
        self._report_routing(con, run_id)
        self._report_collectives(con, run_id)

    def _report_sources(self, con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        if self.unclear:
            message = (
                "several ranks took part, and neither the engine nor recorded attention operands say how they share the model, so "
                "its configuration is not used for costs: record with shapes, or give --capture"
            )
            say(con, run_id, "cost_sources", message, AFFECTED, value=0.0, threshold=SOURCES_AGREE)
        elif self.model is not None and self._calls and self.model.layers not in self._calls:
            most = max(self._calls)
            message = (
                f"steps have up to {most} attention calls, the model has {self.model.layers} layers, so nothing of its "
                "configuration can be used: is it the model that ran, and all of it (not a stage of a pipeline)? Give the right "
                "one with --model-config"
            )
            say(con, run_id, "cost_sources", message, AFFECTED, value=most / self.model.layers - 1, threshold=0.0)
        else:
            self._report_flops(con, run_id)

    def _report_flops(self, con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        sums = pl.concat(self._sources).group_by("category").agg(pl.col("flops", "flops_model").sum())
        cells = sums.filter(pl.col("flops") > 0).select("category", "flops", "flops_model").rows()
        off = {str(name): model / shapes - 1 for name, shapes, model in cells}
        if not off:
            return
        apart = ", ".join(f"{name} {100 * x:+.1f} %" for name, x in sorted(off.items()) if abs(x) > SOURCES_AGREE)
        message = "recorded operands and the model's configuration give the same FLOPs"
        if apart:
            message = (
                f"the model's configuration gives other FLOPs than the recorded operands ({apart}): is it the model that ran? "
                "Give the right one with --model-config"
            )
        worst = max(abs(x) for x in off.values())
        say(con, run_id, "cost_sources", message, AFFECTED, ok=not apart, value=worst, threshold=SOURCES_AGREE)

    def _report_impossible(self, con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        beyond = pl.concat(self._beyond)
        if not beyond.height:
            return
        worst = beyond.sort("busy_ns", descending=True).row(0, named=True)
        message = (
            f"{beyond['n'].sum():,} activities would be faster than the device can be, by time first {worst['category']} with up to "
            f"{worst['roof_fraction']:.2f} of its roof (cost from {worst['cost_source']}): peak, operands or model are not right, "
            "so they get no side and no bound. Say what the device can do with --gpu, or --peak-flops and --bandwidth"
        )
        share = float(beyond["busy_ns"].sum()) / max(self._busy_ns, 1)
        say(con, run_id, "impossible_rows", message, ["kernels.side", "kernels.bound"], value=share, threshold=0.0)

    def _report_routing(self, con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        fewer = pl.concat(self._fewer).sum()
        count, moved, expected = fewer.row(0)
        if not count:
            return
        message = (
            f"{count:,} expert kernels took less time than reading the experts that uniform routing reaches: these tokens "
            "route alike. Their bytes are an upper limit, what the device could read at most in that time; how near they came to the "
            "roof is not known, so they have no roof fraction and no bound"
        )
        say(
            con, run_id, "expert_routing", message, ["kernels.bytes", "steps.bytes"], value=1 - moved / expected, threshold=0.0
        )  # fmt: skip

    def _report_collectives(self, con: duckdb.DuckDBPyConnection, run_id: str) -> None:
        count, busy_ns = self._sent
        share = busy_ns / max(self._busy_ns, 1)
        if self.ranks is not None or share < MUCH_SENT:
            return
        message = (
            f"{count:,} collectives ({100 * share:.0f} % of device time) have no bytes: neither the recording (distributedInfo) nor "
            "the engine's facts say how many ranks take part in one, or there are groups of several sizes"
        )
        say(con, run_id, "collectives", message, AFFECTED, value=share, threshold=MUCH_SENT)


def _unpadded(both: pl.DataFrame) -> pl.DataFrame:
    """Without steps whose graph was captured for more rows than the step had tokens: engines pad a batch to the next graph.

    Products grow with their rows, so the ratio of the two sources then makes a whole number of rows, above the tokens.
    """
    ratio = pl.col("flops").sum() / pl.col("flops_model").sum()
    graphs = both.filter(pl.col("captured") & (pl.col("category") == "gemm")).group_by("step_id")
    captured = graphs.agg((ratio * pl.col("tokens").first()).alias("rows"), pl.col("tokens").first())
    whole = (pl.col("rows") - pl.col("rows").round()).abs() < _WHOLE * pl.col("rows")
    padded = captured.filter(whole & (pl.col("rows").round() > pl.col("tokens")))
    return both.join(padded.select("step_id"), on="step_id", how="anti", nulls_equal=True)
