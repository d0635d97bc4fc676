# `make up` trains on a mesh of real peer processes, `make test` checks everything; `make fuzz` is for a night: 10 million
# hostile inputs over all decoders and machines (INPUTS, SEED).
PYTHON ?= python3
BIN := .venv/bin

.PHONY: up test fuzz check clean
INPUTS ?= 10000000
SEED ?= 1
# Two: one for the tests of real processes, which run one after the other and take the longest, one for all others; 0: no
# test beside another.
WORKERS ?= 2

up: .venv/installed
	$(BIN)/mdl up -n 4 --data motion --model lenet --epochs 5 --rounds-per-epoch 4 --baselines

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist loadfile

fuzz: .venv/installed
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED)

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build *.egg-info
