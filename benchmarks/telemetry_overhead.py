"""What sampling sensors costs: CPU time of the sampler's process as a share of one core, by rate and source.

NVML is the stub of the tests (tests/stub_nvml), so this is the cost of our own side: Python, nvidia-ml-py, JSON and
the write. What a real driver adds per call is not in it: run it with --real on a machine with a GPU for that.

    python benchmarks/telemetry_overhead.py --seconds 20
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BOUND = 0.01  # of one core, at 10 Hz


def measure(folder: Path, source: str, hz: float, seconds: float, env: dict[str, str]) -> tuple[float, int, int]:
    """(share of one core while sampling, devices, samples). The start-up is not in it: it comes once."""
    out = folder / f"{source}-{hz:g}-{env.get('STUB_NVML_DEVICES', '')}.jsonl"
    argv = [sys.executable, "-m", "profiler.sensors.main", str(out), "--source", source, "--hz", str(hz)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, env=os.environ | env, cwd=ROOT)
    while process.poll() is None and (not out.exists() or not out.stat().st_size):
        time.sleep(0.02)
    time.sleep(seconds)
    process.communicate(timeout=30)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    samples = [item for item in records if "kind" not in item]
    lasted_s = (samples[-1]["ts_ns"] - samples[0]["ts_ns"]) / 1e9 + 1 / hz
    return records[-1]["cpu_s"] / lasted_s, len(records[0]["devices"]), len(samples)


def main() -> int:
    """Exit 1 where a share at 10 Hz is above the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement")
    parser.add_argument("--real", action="store_true", help="this machine's NVML in place of the stub")
    options = parser.parse_args()
    high = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {} if options.real else {"LD_LIBRARY_PATH": str(_stub(folder))}
        cases = [("cpu", {}), ("nvml", env)] if options.real else [("cpu", {}), *_counts(env)]
        print(f"{'source':<8}{'devices':>8}{'Hz':>6}{'samples':>9}{'share of one core':>19}")
        for source, values in cases:
            for hz in (10.0, 50.0):
                share, devices, samples = measure(folder, source, hz, options.seconds, values)
                judged = hz == 10.0 and devices <= 2
                high |= judged and share > BOUND
                mark = "" if not judged else "  ok" if share <= BOUND else f"  above {BOUND:.0%}"
                print(f"{source:<8}{devices:>8}{hz:>6g}{samples:>9}{share:>18.2%}{mark}")
    return int(high)


def _counts(env: dict[str, str]) -> list[tuple[str, dict[str, str]]]:
    return [("nvml", env | {"STUB_NVML_DEVICES": str(count), "STUB_NVML_KEEP": "1"}) for count in (1, 2, 8)]


def _stub(folder: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        sys.exit("no C compiler: use --real on a machine with a GPU")
    source = ROOT / "tests/stub_nvml/nvml.c"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", str(folder / "libnvidia-ml.so.1"), str(source), "-lm"], check=True
    )
    return folder


if __name__ == "__main__":
    sys.exit(main())
