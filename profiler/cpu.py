"""What this machine's processors can do."""

from __future__ import annotations

from pathlib import Path

_BF16 = {"avx512_bf16", "amx_bf16", "bf16"}  # x86, x86 tiles, Arm


def has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether products of bfloat16 have instructions of their own; True where the system does not say.

    Without them they take several times as long as in float32.
    """
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    said = [line.partition(":")[2].split() for line in lines if line.partition(":")[0].strip() in ("flags", "Features")]
    return not said or bool(_BF16 & {flag for flags in said for flag in flags})
