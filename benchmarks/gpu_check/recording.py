"""What stepscope made of the recorded loop, against what is known of it: steps, graphs, sums, sleeps, FLOPs, roofs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from analyzers.idle_reading import HIDING
from benchmarks.gpu_check.verdict import Figure
from traces.store import TraceStore

HOST_CAUSES = tuple(cause for cause, (who, _) in HIDING.items() if who == "host")
# The operator that ran an activity: on a CPU the activity itself.
_OPERATOR = "CASE WHEN k.kind = 'cpu_op' THEN k.name ELSE k.op_name END"
# A product split over K has a kernel that adds up the parts; what that adds is none of the product's FLOPs.
_PRODUCT = (
    f"{_OPERATOR} IN ('aten::mm', 'aten::matmul', 'aten::linear', 'aten::addmm') AND k.category IN ('gemm', 'logits')"
)
Rows = list[dict[str, Any]]


def of_steps(store: TraceStore, ran: Sequence[dict[str, Any]], *, on_gpu: bool, peaked: str | None) -> list[Figure]:
    """Steps, kinds and sides. `peaked`: why there are no peaks to have sides by."""
    steps = _rows(store, "SELECT * FROM steps WHERE run_id = ? ORDER BY seq, step_id")
    note = f"{len(steps)} of {len(ran)}: {sum(step['kind'] == 'prefill' for step in ran)} prefill, rest decode"
    alike = [
        step["kind"] == each["kind"] and step["label"] == each["label"] for step, each in zip(steps, ran, strict=False)
    ]
    linked = _rows(store, (
        "SELECT count(*) AS n, count(*) FILTER (WHERE step_id IS NULL) AS alone, "
        "count(*) FILTER (WHERE step_link NOT IN ('launch', 'graph')) AS guessed FROM kernels WHERE run_id = ? AND valid "
        "AND start_ns >= (SELECT min(host_start_ns) FROM steps)"
    ))[0]  # fmt: skip
    lost = linked["alone"] + (linked["guessed"] if on_gpu else 0)
    figures = [
        Figure(check="steps.ran", value=len(steps) / len(ran), note=note),
        Figure(check="steps.kinds", value=sum(alike) / len(ran)),
        Figure(
            check="steps.linked", value=1 - lost / linked["n"] if linked["n"] else 0.0,
            note=f"{linked['n']} activities, {linked['alone']} without a step, {linked['guessed']} not by their launch",
        ),
    ]  # fmt: skip
    eager = [step for step, each in zip(steps, ran, strict=False) if not each["graph"]]
    figures.append(_coverage(store, [step["step_id"] for step in eager]))
    for kind, side in (("prefill", "compute"), ("decode", "memory")):
        figures.append(_side(f"steps.{kind}_side", [step for step in eager if step["kind"] == kind], side, peaked))
    return figures


def _coverage(store: TraceStore, steps: Sequence[int]) -> Figure:
    """Of the busy time of steps without graphs, the share of activities with a cost, believed or not; of steps the median,
    as one activity without a cost may have been interrupted for long."""
    row = store.query(
        "SELECT median(share) AS share, min(share) AS least FROM (SELECT sum(busy_ns) FILTER (WHERE flops IS NOT NULL) / sum(busy_ns) "
        "AS share FROM kernels WHERE run_id = ? AND valid AND list_contains(?, step_id) GROUP BY step_id)", [store.run_id, list(steps)],
    ).to_dicts()[0]  # fmt: skip
    note = f"n = {len(steps)}, without graphs, least {row['least'] or 0:.3f}"
    return Figure(check="steps.coverage", value=row["share"] or 0.0, note=note)


def _side(check: str, steps: Rows, side: str, peaked: str | None) -> Figure:
    if peaked is not None or not steps:
        return Figure(check=check, value=None, note=peaked or "no such step was found")
    known = [step["intensity"] for step in steps if step["intensity"] is not None]
    ridge = next((step["ridge"] for step in steps if step["ridge"]), None)
    note = f"n = {len(steps)}"
    if known and ridge:
        note += f", {min(known):.3g} to {max(known):.3g} FLOP/byte, ridge {ridge:.3g}"
    return Figure(check=check, value=sum(step["side"] == side for step in steps) / len(steps), note=note)


def of_graphs(store: TraceStore, ran: Sequence[dict[str, Any]], reason: str | None) -> list[Figure]:
    """Replayed steps. `reason`: why there are none."""
    checks = ("launches", "kernels", "linked", "alike", "eager")
    if reason is not None:
        return [Figure(check=f"graph.{check}", value=None, note=reason) for check in checks]
    steps = _rows(store, "SELECT * FROM steps WHERE run_id = ? ORDER BY seq, step_id")
    replayed = [step for step, each in zip(steps, ran, strict=False) if each["graph"]]
    plain = [step for step, each in zip(steps, ran, strict=False) if not each["graph"] and each["kind"] == "decode"]
    launches = _rows(store, "SELECT launch_id, n_kernels, step_id FROM launches WHERE run_id = ? AND is_graph")
    if not launches or not replayed or not plain:
        return [Figure(check="graph.launches", value=0.0, note="no graph launch was found")]
    kernels = _rows(store, (
        "SELECT count(*) AS n, count(*) FILTER (WHERE k.step_id = l.step_id AND k.step_link = 'graph') AS linked "
        "FROM kernels AS k JOIN launches AS l USING (run_id, launch_id) WHERE k.run_id = ? AND l.is_graph"
    ))[0]  # fmt: skip
    per_graph = [launch["n_kernels"] or 0 for launch in launches]
    per_step = sorted(step["n_kernels"] or 0 for step in plain)[len(plain) // 2]
    typical = sorted(per_graph)[len(per_graph) // 2]
    found = {
        "launches": (sum(step["n_graph_launches"] or 0 for step in replayed) / len(replayed), f"n = {len(replayed)}"),
        "kernels": (sum(count > 0 for count in per_graph) / len(per_graph), f"n = {len(per_graph)}"),
        "linked": (kernels["linked"] / kernels["n"] if kernels["n"] else 0.0, f"n = {kernels['n']}"),
        "alike": (min(per_graph) / max(per_graph) if max(per_graph) else 0.0, f"{min(per_graph)} to {max(per_graph)}"),
        "eager": (typical / per_step if per_step else 0.0, f"{typical} and {per_step}, medians"),
    }
    return [Figure(check=f"graph.{check}", value=value, note=note) for check, (value, note) in found.items()]


def of_sums(store: TraceStore, part: str = "sums") -> list[Figure]:
    """Parts against wholes, in ns; the largest difference either way."""
    device = _rows(store, (
        "SELECT d.window_end_ns - d.window_start_ns AS window_ns, d.busy_ns, d.idle_ns, d.unrecorded_ns, "
        "(SELECT coalesce(sum(dur_ns), 0) FROM gaps AS g WHERE g.run_id = d.run_id AND g.rank = d.rank AND g.device = d.device) "
        "AS pieces_ns FROM devices AS d WHERE d.run_id = ?"
    ))  # fmt: skip
    if not device:
        return [
            Figure(
                check=f"{part}.{'gaps' if part == 'sums' else 'sums'}", value=float("nan"), note="no device was found"
            )
        ]
    window = max((row["busy_ns"] + row["idle_ns"] + row["unrecorded_ns"] - row["window_ns"] for row in device), key=abs)
    pieces = max((row["busy_ns"] + int(row["pieces_ns"]) - row["window_ns"] for row in device), key=abs)
    first = device[0]
    note = ", ".join(f"{name} {first[f'{name}_ns'] / 1e6:.3f} ms" for name in ("busy", "idle", "unrecorded"))
    unrecorded = sum(row["unrecorded_ns"] for row in device) / max(1, sum(row["window_ns"] for row in device))
    if part != "sums":
        return [
            Figure(check=f"{part}.sums", value=float(max(window, pieces, key=abs)), note=note),
            Figure(check=f"{part}.unrecorded", value=unrecorded),
        ]
    steps = _rows(store, (
        "SELECT max(abs(prefill_ns + decode_ns + other_ns - busy_ns)) AS phases, max(abs(compute_ns + memory_ns + latency_ns + "
        "inefficient_ns + comm_ns + unknown_ns - busy_ns)) AS bounds, count(*) AS n FROM steps WHERE run_id = ? AND busy_ns > 0"
    ))[0]  # fmt: skip
    return [
        Figure(check="sums.window", value=float(window), note=note),
        Figure(check="sums.gaps", value=float(pieces)),
        Figure(check="sums.steps", value=_number(steps["phases"]), note=f"n = {steps['n']}"),
        Figure(check="sums.bounds", value=_number(steps["bounds"]), note=f"n = {steps['n']}"),
        Figure(check="sums.unrecorded", value=unrecorded),
    ]


def of_sleeps(store: TraceStore, sleeps: Sequence[dict[str, Any]]) -> list[Figure]:
    """Planted time that gaps give to the host, by place."""
    figures = []
    for check, where in (("sleeps.between", "between steps"), ("sleeps.within", "within a step")):
        spans = [(sleep["start_ns"], sleep["end_ns"]) for sleep in sleeps if sleep["where"] == where]
        landed: dict[str, int] = {}
        for start, end in spans:
            for row in store.query(
                "SELECT cause, sum(least(start_ns + dur_ns, ?) - greatest(start_ns, ?))::BIGINT AS ns FROM gaps "
                "WHERE run_id = ? AND start_ns < ? AND start_ns + dur_ns > ? GROUP BY cause",
                [end, start, store.run_id, end, start],
            ).to_dicts():
                landed[row["cause"]] = landed.get(row["cause"], 0) + row["ns"]
        planted = sum(end - start for start, end in spans)
        found = sum(ns for cause, ns in landed.items() if cause in HOST_CAUSES)
        shares = ", ".join(
            f"{cause} {ns / planted:.3f}" for cause, ns in sorted(landed.items(), key=lambda item: -item[1])
        )
        note = f"{len(spans)} sleeps, {planted / 1e6:.0f} ms: {shares or 'no idle time there'}"
        figures.append(Figure(check=check, value=found / planted if planted else None, note=note))
    return figures


def of_flops(store: TraceStore, loop: dict[str, Any]) -> list[Figure]:
    """FLOPs of products and attention whose operands are known."""
    repeats = loop["repeats"]
    wanted = {f"[[{m},{k}],[{k},{n}]]": 2 * m * k * n * repeats for m, k, n in loop["products"]}
    rows = _rows(store, (
        f"SELECT replace(CAST(k.op_shapes AS VARCHAR), ' ', '') AS shapes, sum(k.flops) AS flops FROM kernels AS k "
        f"WHERE k.run_id = ? AND k.step_id IS NULL AND {_PRODUCT} GROUP BY 1"
    ))  # fmt: skip
    got = {row["shapes"]: row["flops"] for row in rows}
    ratios = [(got.get(shapes) or 0.0) / flops for shapes, flops in wanted.items()]
    note = f"{len(wanted)} shapes, {repeats} times each, {sum(wanted.values()) / 1e12:.4g} TFLOP in all"
    figures = [Figure(check="flops.products", value=_worst(ratios), note=note)]
    for check, condition, key in (
        ("flops.steps", _PRODUCT, "mm_flops"), ("flops.attention", "k.category = 'attention'", "attention_flops"),
    ):  # fmt: skip
        sums = _rows(store, (
            f"SELECT s.seq, s.step_id, sum(k.flops) FILTER (WHERE {condition}) AS flops FROM steps AS s LEFT JOIN kernels AS k "
            "USING (run_id, step_id) WHERE s.run_id = ? GROUP BY ALL ORDER BY s.seq, s.step_id"
        ))  # fmt: skip
        pairs = [(row["flops"], each[key]) for row, each in zip(sums, loop["steps"], strict=False) if not each["graph"]]
        if check == "flops.attention" and all(flops is None for flops, _ in pairs):
            figures.append(
                Figure(check=check, value=None, note="no activity was taken for attention: it ran as products")
            )
            continue
        figures.append(Figure(
            check=check, value=_worst([(flops or 0.0) / known for flops, known in pairs]),
            note=f"{len(pairs)} steps without graphs",
        ))  # fmt: skip
    return figures


def of_roofs(store: TraceStore, loop: dict[str, Any], unsteady: str | None) -> list[Figure]:
    """Shares of roofs. `unsteady`: why the roofs are none to hold anything against."""
    devices = _rows(store, "SELECT peak_source, peak_flops, peak_bandwidth, ridge FROM devices WHERE run_id = ?")
    calibrated = [row["peak_source"] == "calibrated" for row in devices]
    first = devices[0] if devices else {}
    note = "no peaks"
    if first.get("ridge"):
        note = f"{first['peak_flops'] / 1e12:.4g} TFLOP/s, {first['peak_bandwidth'] / 1e9:.4g} GB/s, ridge {first['ridge']:.3g} FLOP/byte"
    figures = [
        Figure(check="roof.calibrated", value=sum(calibrated) / len(calibrated) if calibrated else 0.0, note=note)
    ]
    if unsteady is not None or not first.get("ridge"):
        reason = unsteady or "no peaks"
        return figures + [Figure(check=check, value=None, note=reason) for check in ("roof.large", "roof.most")]
    m, k, n = loop["products"][-1]
    large = store.query(
        f"SELECT median(k.roof_fraction) AS share, count(*) AS n FROM kernels AS k WHERE k.run_id = ? AND k.step_id IS NULL AND {_PRODUCT} "
        "AND replace(CAST(k.op_shapes AS VARCHAR), ' ', '') = ? AND k.flops > 0", [store.run_id, f"[[{m},{k}],[{k},{n}]]"],
    ).to_dicts()[0]  # fmt: skip
    return [
        *figures,
        Figure(check="roof.large", value=_number(large["share"]), note=f"{m} × {k} × {n}, median, n = {large['n']}"),
        most("roof.most", store),
    ]


def most(check: str, store: TraceStore) -> Figure:
    """The highest share of a roof, and whose it is."""
    row = store.query(
        "SELECT max(roof_fraction) AS share, arg_max(coalesce(op_name, name), roof_fraction) AS name, arg_max(dur_ns, roof_fraction) "
        "AS ns, count(*) FILTER (WHERE impossible) AS impossible, count(roof_fraction) AS n FROM kernels WHERE run_id = ? AND valid",
        [store.run_id],
    ).to_dicts()[0]
    note = f"{str(row['name'])[:60]}, {(row['ns'] or 0) / 1e3:.1f} µs; {row['impossible']} of {row['n']} activities above 1.05"
    return Figure(check=check, value=row["share"], note=note if row["n"] else "no activity has a roof")


def _rows(store: TraceStore, sql: str) -> Rows:
    found: Rows = store.query(sql, [store.run_id]).to_dicts()
    return found


def _worst(ratios: Sequence[float]) -> float:
    """The ratio that is farthest from 1; NaN where there are none."""
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=float("nan"))


def _number(value: Any) -> float:
    """NaN, which is in no range, for what the database does not say."""
    return float("nan") if value is None else float(value)
