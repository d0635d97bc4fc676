# `make up` trains on a mesh of real peer processes, `make test` checks everything; `make fuzz` is for a night: 10 million
# hostile inputs over all decoders and machines (INPUTS, SEED). `make test-lowest` is for a release: the oldest versions
# that pyproject.toml allows.
PYTHON ?= python3
BIN := .venv/bin
LOWEST := .venv-lowest/bin

.PHONY: up test test-lowest fuzz check clean
INPUTS ?= 10000000
SEED ?= 1
# 0: no test beside another. Those marked `alone` have the machine to themselves in any case: moments that they wait for
# would be over before a busy machine tells of them.
WORKERS ?= auto
# Where it forbids that (a container image), each of the tests' processes would compile all of mdl anew.
export PYTHONDONTWRITEBYTECODE =
# What calls most of the libraries; TESTS=tests is everything.
TESTS ?= tests/mdl tests/transport tests/scheduler

up: .venv/installed
	$(BIN)/mdl up -n 4 --data motion --model lenet --epochs 5 --rounds-per-epoch 4 --baselines

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist loadfile --ignore=tests/integration
	$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/integration -m "not alone"
	$(BIN)/pytest tests/integration -m alone

test-lowest: .venv-lowest/installed
	$(LOWEST)/pytest -W default $(TESTS)  # older libraries warn of each other

fuzz: .venv/installed
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED)

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# All but torch, which stays the one of constraints.txt: older ones have not been tried with this target.
.venv-lowest/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/uv pip compile --quiet --python $(LOWEST)/python --resolution lowest-direct --override constraints.txt \
		--extra dev pyproject.toml --output-file .venv-lowest/lowest.txt
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check -c .venv-lowest/lowest.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .venv-lowest build *.egg-info
