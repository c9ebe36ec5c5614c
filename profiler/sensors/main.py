"""The sampler as a process: `python -m profiler.sensors.main OUT --source nvml --hz 10`.

It ends when its standard input is closed, so it outlives nobody: also a session that was killed closes it.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from pathlib import Path

from profiler.sensors.sampler import DEFAULT_HZ, sample
from profiler.sensors.source import SensorProblem, Source


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 after sampling, 3 where there is nothing to sample, 4 where the file cannot be written."""
    options = _parse(arguments)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # ctrl-C ends the session, and the session ends us
    try:
        file = os.open(options.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        sample(_source(options), file, None if options.hz == "max" else float(options.hz), _closed_within)
    except SensorProblem as problem:
        print(problem, file=sys.stderr)  # noqa: T201 - a process's only way to say it
        return 3
    except OSError as error:
        print(f"{options.out}: {error.strerror}", file=sys.stderr)  # noqa: T201
        return 4
    return 0


def _source(options: argparse.Namespace) -> Source:
    if options.source == "nvml":
        from profiler.sensors.nvml import NvmlSource

        return NvmlSource(options.visible)
    from profiler.sensors.host import HostSource

    return HostSource(options.root)


def _closed_within(seconds: float) -> bool:
    """Whether standard input ends within `seconds`; waits that long otherwise."""
    end = time.monotonic() + seconds
    while True:
        readable, _, _ = select.select([0], [], [], max(0.0, end - time.monotonic()))
        if not readable:
            return False
        if not os.read(0, 4096):
            return True


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m profiler.sensors.main", description=__doc__)
    parser.add_argument("out", type=Path, help="file to append to")
    parser.add_argument("--source", choices=("nvml", "cpu"), required=True)
    parser.add_argument("--hz", default=str(DEFAULT_HZ), help="samples a second, or max")
    parser.add_argument("--visible", help="CUDA_VISIBLE_DEVICES of the engine")
    parser.add_argument("--root", type=Path, default=Path("/"), help="where proc and sys are")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
