"""How often a prediction holds: planted faults and a healthy run, each recorded and proved several times on a real engine.

    python benchmarks/prove.py [--runs 5] [--rounds 3] [--model tiny] [--case NAME …] [--out DIR] [--json FILE]

Every run records a control pass of its own (another seed), takes the finding's prediction from it, and lets
`stepscope prove` run baseline and change in turns. Wanted: the measured gain inside the predicted interval in at least four
of five runs of every fault, and "no difference" on the healthy one. Run it on a machine with nothing else to do: two engines
live at once for the cases with flags, and step times are wall time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COMMAND = [sys.executable, "-c", "from cli import main; main()"]
LOOP = "agent:sessions={sessions},turns=6,system=500,tools=2,tool=180,task=60,observation=160,output=12,tool_wait=0.05,stagger=0.1"
CONTEXT = 1984
# case: (workload, engine arguments, finding to prove)
CASES: dict[str, tuple[str, list[str], str]] = {
    "volatile-system": (LOOP.format(sessions=2) + ",timestamp=head", [], "agents.volatile-system"),
    "evicted": (LOOP.format(sessions=4), [f"num-gpu-blocks-override={CONTEXT // 32 + 1}"], "agents.evicted"),
    "caching-off": (LOOP.format(sessions=2), ["no-enable-prefix-caching"], "agents.caching-off"),
    "healthy": (LOOP.format(sessions=2), [], "none"),
}


def stepscope(*arguments: str) -> str:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"stepscope {arguments[0]} failed: {done.stderr[-2000:]}")
    return done.stdout


def one(case: str, number: int, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A recording and its proof."""
    workload, given, finding = CASES[case]
    run = folder / f"{case}-{number}"
    flags = [word for item in ["block-size=32", f"max-model-len={CONTEXT}", *given] for word in ("--engine-arg", item)]
    stepscope("profile", "--no-trace", "--model", options.model, "--workload", workload, "--seed", str(number), *flags,
              "--out", str(run), "--quiet", "--json")  # fmt: skip
    found = json.loads(stepscope("findings", str(run), "--json"))["findings"]
    names = [row["finding_id"] for row in found]
    if finding != "none" and finding not in names:
        return {"case": case, "run": number, "verdict": "not found", "found": names}
    proof = json.loads(
        stepscope(
            "prove", str(run), finding, "--rounds", str(options.rounds), "--out", f"{run}-proof", "--quiet", "--json"
        )
    )
    inside = proof["gain_low"] is not None and proof["gain_low"] <= proof["measured_gain"] <= proof["gain_high"]
    return {"case": case, "run": number, "found": names, "inside": inside} | {
        key: proof[key] for key in ("verdict", "predicted_gain", "gain_low", "gain_high", "measured_gain", "noise",
                                    "baseline_spread", "changed_spread", "baseline_ns", "changed_ns", "rounds")
    }  # fmt: skip


def shown(row: dict[str, Any]) -> str:
    def percent(name: str) -> str:
        return "–" if row.get(name) is None else f"{100 * row[name]:.1f}"

    interval = "–" if row.get("gain_low") is None else f"{percent('gain_low')} to {percent('gain_high')}"
    return (
        f"{row['case']:<16} {row['run']:>3}  {percent('predicted_gain'):>9}  {interval:>14}  {percent('measured_gain'):>8}  "
        f"{percent('noise'):>6}  {percent('baseline_spread'):>5}  {percent('changed_spread'):>5}  {row['verdict']}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.out or Path(tempfile.mkdtemp(prefix="prove-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{options.model}, {options.rounds} rounds; shares of the engine's step time in %")
    print(f"{'case':<16} run  predicted        interval  measured   noise    A/A    B/B  verdict", flush=True)
    rows = []
    for case in options.case or CASES:
        for number in range(options.runs):
            began = time.monotonic()
            rows.append(one(case, number, options, folder) | {"seconds": round(time.monotonic() - began, 1)})
            print(shown(rows[-1]), flush=True)
    for case in options.case or CASES:
        of_case = [row for row in rows if row["case"] == case]
        good = sum(
            row["verdict"] == "no difference" if case == "healthy" else row.get("inside", False) for row in of_case
        )
        print(
            f"{case}: {good} of {len(of_case)} "
            + ("no difference" if case == "healthy" else "inside the predicted interval")
        )
    if options.json:
        options.json.write_text(json.dumps({"model": options.model, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
