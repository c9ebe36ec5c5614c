"""Environment variables that change how an engine runs: which are recorded, and which may be shown."""

from __future__ import annotations

import re
from collections.abc import Mapping

# Of engines, of the libraries they compute with, and of what allocates their memory.
_READ_BY_ENGINES = (
    "VLLM_", "SGLANG_", "SGL_", "CUDA_", "NCCL_", "OMP_", "KMP_", "GOMP_", "MKL_", "TORCH", "PYTORCH_", "TRITON_",
    "FLASHINFER_", "CUBLAS", "CUDNN_", "HIP_", "HSA_", "ROCR_", "RCCL_", "MALLOC_", "LD_PRELOAD",
)  # fmt: skip
_SECRET = re.compile(r"(?:^|(?<!per)[-_.])(?:key|token|secret|password|passwd|credentials?)$", re.IGNORECASE)
_LONGEST = 4096  # characters of a value; longer ones are no settings


def looks_secret(name: str) -> bool:
    """Whether a variable or flag of this name holds something that must not be shown."""
    return _SECRET.search(name) is not None


def may_be_shown(name: str) -> bool:
    """Whether the variable `name` is known to be a setting and not a secret."""
    return name.startswith(_READ_BY_ENGINES) and not looks_secret(name)


def engine_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Those of `environment` that engines read, by name; what may be a secret is left out."""
    return {
        name: environment[name] for name in sorted(environment)
        if may_be_shown(name) and len(environment[name]) <= _LONGEST
    }  # fmt: skip
