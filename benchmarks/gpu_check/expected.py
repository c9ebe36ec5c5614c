"""The checks in the order of the table, each with the range its figure has to be in, and why that range."""

from __future__ import annotations

from benchmarks.gpu_check.verdict import Expected

INF = float("inf")
TITLES = {
    "calibration": "Calibration against the datasheet",
    "sensors": "Sensors under a load of known length",
    "gpm": "Activity of units (GPM)",
    "steps": "Steps of a small transformer",
    "graph": "Steps in CUDA graphs",
    "sums": "Parts and wholes",
    "sleeps": "Planted sleeps",
    "flops": "FLOPs",
    "roof": "Roofs",
    "vllm": "A vLLM server under `stepscope profile`",
    "sglang": "SGLang",
}
_CHECKS = (
    Expected(check="calibration.ran", what="rates measured", low=2, high=INF, digits=0),
    # The best libraries reach 0.6 to 0.9 of a dense peak, cards held by their power limit half of it.
    Expected(check="calibration.16bit", what="best 16-bit product / datasheet", low=0.45, high=1.05),
    Expected(check="calibration.fp32", what="best fp32 product / datasheet", low=0.4, high=1.05),
    # torch._scaled_mm and _int_mm are not tuned for every shape and device
    Expected(check="calibration.fp8", what="best fp8 product / datasheet", low=0.25, high=1.05),
    Expected(check="calibration.int8", what="best int8 product / datasheet", low=0.1, high=1.05),
    Expected(check="calibration.bandwidth", what="memory / datasheet", low=0.6, high=1.05),
    # launches back to back are limited by the host; below 0.3 µs nothing was launched
    Expected(check="calibration.launch", what="smallest piece of work", low=0.3, high=40, unit="µs", digits=2),
    Expected(check="sensors.ran", what="samples / due", low=0.7, high=1.15),
    Expected(check="sensors.period", what="time between samples, median", low=80, high=200, unit="ms", digits=1),
    Expected(check="sensors.load", what="device's own busy time / load", low=0.9, high=1.02),
    Expected(check="sensors.power_period", what="power reading changes every", low=0.5, high=1200, unit="ms", digits=1),
    # averages lag by up to a second, so the two are compared over the whole record, rests included
    Expected(check="sensors.energy", what="energy counter / integrated power", low=0.9, high=1.1),
    # a product of 8192² runs at or near the power limit; boards may overshoot it for moments, not for seconds
    Expected(check="sensors.limit", what="counter under load / limit × time", low=0.25, high=1.1),
    Expected(check="sensors.contrast", what="power under load / at rest", low=1.3, high=INF, digits=2),
    Expected(check="sensors.length", what="time above half power / load", low=0.75, high=1.35),
    Expected(check="sensors.utilization", what="utilization under load", low=0.8, high=1),
    Expected(check="sensors.resident", what="samples that see a program", low=0.9, high=1),
    Expected(check="gpm.sm", what="SMs active under load", low=0.5, high=1.02),
    Expected(check="gpm.tensor", what="tensor cores active under load", low=0.15, high=1.02),
    Expected(check="gpm.dram", what="memory active under load", low=0, high=1.02),
    Expected(check="gpm.rest", what="SMs active at rest", low=0, high=0.1),
    Expected(check="steps.ran", what="steps found / run", low=1, high=1),
    Expected(check="steps.kinds", what="of the kind that was run, in order", low=1, high=1),
    Expected(check="steps.linked", what="activities of steps that have one", low=0.98, high=1),
    Expected(check="steps.coverage", what="busy time with known cost, median step", low=0.8, high=1.001),
    Expected(check="steps.prefill_side", what="prefill steps on the compute side", low=1, high=1),
    Expected(check="steps.decode_side", what="decode steps on the memory side", low=1, high=1),
    Expected(check="graph.launches", what="graph launches / replayed step", low=1, high=1),
    Expected(check="graph.kernels", what="graph launches with kernels", low=1, high=1),
    Expected(check="graph.linked", what="their kernels in the launching step", low=1, high=1),
    Expected(check="graph.alike", what="fewest / most kernels of a replay", low=1, high=1),
    Expected(check="graph.eager", what="kernels of a replay / of an eager step", low=0.7, high=1.1),
    Expected(check="sums.window", what="busy + idle + unrecorded − window", low=0, high=0, unit="ns", digits=0),
    Expected(check="sums.gaps", what="busy + pieces − window", low=0, high=0, unit="ns", digits=0),
    Expected(check="sums.steps", what="prefill + decode + other − busy, largest", low=0, high=0, unit="ns", digits=0),
    Expected(check="sums.bounds", what="parts by bound − busy, largest", low=0, high=0, unit="ns", digits=0),
    Expected(check="sums.unrecorded", what="unrecorded / window", low=0, high=0.02),
    Expected(check="sleeps.between", what="between steps, on host causes", low=0.95, high=1.001),
    Expected(check="sleeps.within", what="within steps, on host causes", low=0.95, high=1.001),
    # a cost is divided over its kernels by time, in floating point
    Expected(check="flops.products", what="products / 2·M·K·N, worst", low=1 - 1e-9, high=1 + 1e-9, digits=9),
    Expected(check="flops.steps", what="products of a step / 2·M·K·N, worst", low=1 - 1e-9, high=1 + 1e-9, digits=9),
    Expected(check="flops.attention", what="attention of a step / by hand, worst", low=1 - 1e-9, high=1 + 1e-9, digits=9),
    Expected(check="roof.calibrated", what="devices judged by their calibration", low=1, high=1, digits=0),
    Expected(check="roof.large", what="largest product, share of its roof", low=0.3, high=1.05),
    Expected(check="roof.most", what="highest share of a roof anywhere", low=0, high=1.05),
    Expected(check="vllm.ran", what="exit code", low=0, high=0, digits=0),
    Expected(check="vllm.hook", what="errors of the step ledger", low=0, high=0, digits=0),
    Expected(check="vllm.steps", what="steps recorded", low=5, high=INF, digits=0),
    Expected(check="vllm.kinds", what="kinds among prefill and decode", low=2, high=2, digits=0),
    Expected(check="vllm.sums", what="busy + pieces − window", low=0, high=0, unit="ns", digits=0),
    Expected(check="vllm.unrecorded", what="unrecorded / window", low=0, high=0.1),
    Expected(check="vllm.graphs", what="graph launches with kernels", low=0.99, high=1),
    Expected(check="vllm.decode_side", what="decode steps on the memory side", low=0.9, high=1),
    Expected(check="vllm.most", what="highest share of a roof anywhere", low=0, high=1.05),
    Expected(check="vllm.sensors", what="samples of sensors", low=5, high=INF, digits=0),
    Expected(check="sglang.ran", what="exit code", low=0, high=0, digits=0),
)  # fmt: skip
EXPECTED: dict[str, Expected] = {entry.check: entry for entry in _CHECKS}
