"""How often the predicted interval of an agent finding holds the truth where the truth is known.

    python benchmarks/gain_interval.py [--loops 40] [--seed 2]

Random loops of one to six sessions on a made-up engine whose steps follow a law exactly (tests/loop_run.py): once with the
prefix lost on every turn, once with it cached. The first is ingested and predicted from, the second tells the true gain.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from loop_run import Law, Turn, all_tiled, loops, repaired, step_ms

from analyzers.finding import Gain
from analyzers.finding_agents import make


def drawn(draw: random.Random) -> tuple[list[list[Turn]], Law, dict[str, float]]:
    """Sessions, a law, and how the engine is loaded."""
    sessions, turns, output = draw.randint(1, 6), draw.randint(4, 7), draw.randint(3, 30)
    law = Law(
        base=draw.uniform(0.5, 15), token=draw.uniform(0.003, 0.05), pair=draw.choice([0, 1e-5, 5e-5]),
        decode=draw.uniform(0, 1), context=draw.choice([0, 1e-4, 1e-3]),
    )  # fmt: skip
    budget, first, grow = draw.choice([256, 512, 2048, 100_000]), draw.randint(200, 900), draw.randint(40, 250)
    loop = [
        [
            Turn(
                prompt=first + grow * turn + 13 * session, cached=0, output=output,
                lost_until=max(0, first + grow * (turn - 1) - draw.randint(0, 60)) if turn else 0,
            )
            for turn in range(turns)
        ]
        for session in range(sessions)
    ]  # fmt: skip
    return loop, law, {"budget": budget, "tool": draw.uniform(1, 60), "stagger": draw.uniform(0, 40)}


def compared(draw: random.Random, folder: Path) -> tuple[float, Gain | None, int, float]:
    """The true gain, the predicted one, sessions and chunk size."""
    sessions, law, how = drawn(draw)
    before = loops(folder / "before", sessions, law, **how)  # type: ignore[arg-type]
    database = before.ingest()
    run_id = all_tiled(database, before, sessions)
    with duckdb.connect(str(database)) as con:
        found = list(make(con, run_id))
    after = loops(folder / "after", [repaired(turns) for turns in sessions], law, **how)  # type: ignore[arg-type]
    gain = found[0].gain if found else None
    return 1 - step_ms(after) / step_ms(before), gain, len(sessions), how["budget"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=40)
    parser.add_argument("--seed", type=int, default=2)
    options = parser.parse_args()
    draw, inside, errors = random.Random(options.seed), 0, []
    for _ in range(options.loops):
        with tempfile.TemporaryDirectory() as folder:
            truth, gain, sessions, budget = compared(draw, Path(folder))
        if gain is None:
            print(f"{sessions} sessions, chunks of {budget:,}: true {truth:.3f}, nothing predicted", flush=True)
            continue
        held = truth in gain.interval
        inside += held
        errors.append(abs(gain.value - truth))
        print(f"{sessions} sessions, chunks of {budget:>7,}: true {truth:.3f}, predicted {gain.value:.3f} "
              f"({gain.interval.low:.3f} to {gain.interval.high:.3f}){'' if held else '  outside'}", flush=True)  # fmt: skip
    print(f"{inside} of {options.loops} inside; median error {sorted(errors)[len(errors) // 2]:.3f}")


if __name__ == "__main__":
    main()
