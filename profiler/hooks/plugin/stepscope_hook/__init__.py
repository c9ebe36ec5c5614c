"""Stepscope inside the engine: standard library only, and nothing here may raise into the engine.

Found through the engine's plugin entry points because this folder is prepended to PYTHONPATH; switched on by
STEPSCOPE_LEDGER_DIR. Without that variable `register` does nothing at all.
"""

from __future__ import annotations

import os


def register() -> None:
    """Entry point of `vllm.general_plugins`: called once in every engine process."""
    if not os.environ.get("STEPSCOPE_LEDGER_DIR"):
        return
    try:
        from . import ledger, vllm_hooks

        try:
            ledger.fail_if_asked("register")
            vllm_hooks.install()
        except Exception as error:
            ledger.error("register", error)
    except Exception:
        pass  # not even the ledger can be written: the engine comes first, and the session notices the absence
