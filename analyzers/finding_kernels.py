"""Findings of device time: classes of kernels far below their roof, and collectives that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator

from analyzers.bounds import GOOD_ROOF_FRACTION
from analyzers.datasheet import canonical_dtype
from analyzers.finding import Finding, Severity
from analyzers.finding_basis import Basis, finding, gain_between, waits_enough
from analyzers.finding_limits import BEST_ROOF_FRACTION, LEAST_CLASS, USUAL_ROOF_FRACTION
from traces.printable import printable
from traces.rows import first_row
from traces.store import named_sql

_NAME_CHARACTERS = 60  # template names run to kilobytes
_FIXES = {
    "attention": "another attention kernel (vLLM and SGLang: --attention-backend)",
    "moe": "expert kernels tuned for these shapes (vLLM: VLLM_TUNED_CONFIG_FOLDER with the output of its benchmark_moe script; "
    "SGLang: --moe-runner-backend), or expert parallelism (--enable-expert-parallel; --ep-size)",
    "kv_cache": "another attention kernel, which writes the cache itself (--attention-backend), or another page size (--block-size)",
    "logits": "logits for the last token only (no prompt logprobs), and a vocabulary padded to a multiple of 64",
}
_FUSE = "fused kernels (vLLM: -O3 and its fusion passes in --compilation-config; SGLang: --enable-torch-compile)"

_SLOW = (
    "SELECT name, count(*) AS kernels, sum(busy_ns)::BIGINT AS explained_ns, sum(busy_ns * roof_fraction) / sum(busy_ns) AS roof_fraction "
    "FROM kernels WHERE run_id = $run_id AND valid AND busy_ns > 0 AND bound = 'inefficient' AND roof_fraction > 0 "
    "AND NOT coalesce(impossible, false) AND (step_id IS NULL OR step_id NOT IN (SELECT step_id FROM steps WHERE run_id = $run_id "
    "AND trusted = false))"
)
_NARROW = ("fp8", "fp4", "int8")


def of_kernels(run: Basis) -> Iterator[Finding]:
    """Nothing where busy time is withheld."""
    if run.busy_ns <= 0 or not run.trusts("kernels", "devices.busy_ns"):
        return
    if run.trusts("kernels.category"):
        if run.trusts("kernels.flops", "kernels.bytes") and _peaks_known(run):
            yield from _below_roof(run)
        yield from _exposed(run)


def _peaks_known(run: Basis) -> bool:
    known = run.con.execute(
        "SELECT count(*) FROM devices WHERE run_id = ? AND peak_source IS NOT NULL AND peak_flops > 0", [run.run_id]
    )
    return first_row(known) != (0,)


def _below_roof(run: Basis) -> Iterator[Finding]:
    """Per category; the interval goes from half of the roof, which nobody complains about, to the best seen of libraries."""
    shares = {"good": GOOD_ROOF_FRACTION, "usual": USUAL_ROOF_FRACTION, "best": BEST_ROOF_FRACTION}
    for row in run.rows("finding_kernels", **shares).to_dicts():
        if row["busy_ns"] < LEAST_CLASS * run.busy_ns:
            continue
        low, usual, best = (row[f"{each}_ns"] / run.busy_ns for each in shares)
        name, category = printable(row["top_name"] or ""), row["category"]
        quoted = category.replace("'", "''")
        shown = name if len(name) <= _NAME_CHARACTERS else f"{name[:_NAME_CHARACTERS]}…"
        yield finding(
            run, f"kernels.{category.replace('_', '-')}", f"{category} kernels are far below their roof",
            f"{row['kernels']:,} of them, large enough to reach it, reach {row['roof_fraction']:.0%} of it; most of the time is "
            f"{shown}", _gemm_fix(run, row["dtypes"]) if category == "gemm" else _FIXES.get(category, _FUSE),
            f"{_SLOW} AND category = '{quoted}' GROUP BY name ORDER BY explained_ns DESC",
            gain=gain_between(low, usual, best, "busy"), whole_ns=run.busy_ns,
            device_ns=row["busy_ns"],
        )  # fmt: skip


def _gemm_fix(run: Basis, dtypes: list[str]) -> str:
    """What applies to products on this device in these types: a flag for another type would change nothing."""
    tuned = ("AMD: PYTORCH_TUNABLEOP_ENABLED=1; " if run.device_kind == "hip" else "") + "vLLM: -O3"
    found = {canonical_dtype(dtype) for dtype in dtypes}
    other = [dtype for dtype in _NARROW if dtype in found]
    more = f", another kernel for products in {' and '.join(other)}" if other else ""
    return f"tuned matrix products ({tuned}), shapes that are multiples of 128{more}" + (
        " (SGLang: --fp8-gemm-backend)" if "fp8" in found else ""
    )


def _exposed(run: Basis) -> Iterator[Finding]:
    """Collectives with nothing beside them: from what lies above half the link's rate, to all of it hidden behind computing."""
    rows = run.rows("finding_comm")
    kernels, comm_ns, exposed_ns, known_ns = (
        int(rows[name].sum()) for name in ("kernels", "comm_ns", "explained_ns", "roof_known_ns")
    )
    if not waits_enough(exposed_ns, run.busy_ns):
        return
    share = exposed_ns / run.busy_ns
    reached = float((rows["roof_fraction"] * rows["roof_known_ns"]).sum()) / known_ns if known_ns else None
    slack = 0.0 if reached is None else max(0.0, 1 - reached / GOOD_ROOF_FRACTION)
    known = known_ns / comm_ns if comm_ns else 0.0
    low = share * slack * min(1.0, known)
    said = (
        "how near that is to the link's rate is not known"
        if reached is None
        else f"they reach {reached:.0%} of the link's rate"
    )
    yield finding(
        run, "comm.exposed", "the device waits for collectives",
        f"{kernels:,} collectives take {comm_ns / run.busy_ns:.0%} of the busy time, and nothing runs beside "
        f"{exposed_ns / comm_ns:.0%} of that; {said}. Waits for other ranks are in it",
        "fewer ranks per replica (--tensor-parallel-size; SGLang: --tp-size), fused and overlapped collectives (vLLM: no "
        "--disable-custom-all-reduce, enable_async_tp and fuse_allreduce_rms in --compilation-config; SGLang: "
        "--enable-flashinfer-allreduce-fusion, --enable-two-batch-overlap)",
        _plain(named_sql("finding_comm", "analyzers")),
        gain=gain_between(low, (low + share) / 2, share, "busy") if low > 0 else None, whole_ns=run.busy_ns,
        device_ns=exposed_ns, severity=None if low > 0 else Severity.INFO,
    )  # fmt: skip


def _plain(sql: str) -> str:
    """A statement without its header."""
    return "\n".join(line for line in sql.splitlines() if not line.startswith("--"))
