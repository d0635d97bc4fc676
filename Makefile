# `make up` trains on a mesh of real peer processes. `make test` checks everything but what is marked `slow` or `alone`,
# which is `make test-slow`, before a change lands, and what is marked `long`, which is `make test-long`, for each night.
# `make fuzz` is for a night, too: 10 million hostile inputs over all decoders and machines (INPUTS, SEED), and a
# million messages of whole conversations (MESSAGES).
# `make test-arm` runs mdl on the emulated processors of a Raspberry Pi 3 and 4 (docs/raspberry-pi.md).
# `make test-lowest` is for a release: the oldest versions that pyproject.toml allows. `make lock` writes requirements.lock
# anew. `make dist` makes what a release consists of, `make test-container` tries its container.
PYTHON ?= python3
BIN := .venv/bin
LOWEST := .venv-lowest/bin

# What torch brings by itself, on machines whose build of it has CUDA.
OF_TORCH := torch triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
	nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
	nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx

.PHONY: up test test-slow test-long docs test-arm pictures test-lowest test-container fuzz lock dist check clean
INPUTS ?= 10000000
MESSAGES ?= 1000000
SEED ?= 1
# 0: no test beside another. Those marked `alone` have the machine to themselves in any case: moments that they wait for
# would be over before a busy machine tells of them.
WORKERS ?= auto
ALONE ?= 0
# Where it forbids that (a container image), each of the tests' processes would compile all of mdl anew.
export PYTHONDONTWRITEBYTECODE =
# What calls most of the libraries; TESTS=tests is everything.
TESTS ?= tests/mdl tests/transport tests/scheduler

up: .venv/installed
	$(BIN)/mdl up -n 4 --data motion --model lenet --epochs 5 --rounds-per-epoch 4 --policy dqn --baselines

test: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n $(WORKERS) --dist loadfile -m "not slow and not alone and not long"

# Before each change lands: whole meshes of real processes, their faults and links. As root on a machine with nothing
# else to do, `make test-slow ALONE=2` runs two of those marked `alone` at a time, each in a network namespace.
test-slow: .venv/installed
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "slow and not alone and not long"
	MDL_OWN_NETWORKS=$(filter-out 0,$(ALONE)) $(BIN)/pytest -n $(ALONE) --dist worksteal -m "alone and not long"

# What both leave out: the rest of the seeds, and benchmarks that train whole meshes. For each night.
test-long: .venv/installed
	$(BIN)/pytest -n $(WORKERS) --dist worksteal -m "long and not alone"
	$(BIN)/pytest -m "long and alone"

# The site, in docs/_build/html: every warning is an error, a link that leads nowhere too.
docs: .venv/installed
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html

test-lowest: .venv-lowest/installed
	$(LOWEST)/pytest -W default $(TESTS)  # older libraries warn of each other

# The container's steps in a Debian by debootstrap, and two devices in it; some minutes, as root.
test-container: dist
	folder=$$(mktemp -d) && $(BIN)/python deploy/try_container.py $$folder && rm -rf $$folder

test-arm: .venv/installed
	$(BIN)/python -m tests.arm

fuzz: .venv/installed
	$(BIN)/python -m tests.fuzz --inputs $(INPUTS) --seed $(SEED)
	$(BIN)/python -m tests.fuzz.conversations --messages $(MESSAGES) --seed $(SEED)

# The pictures of README.md and docs/; asks for Chromium.
pictures: .venv/installed
	$(BIN)/python -m benchmarks pictures

# Everything with the hashes of requirements.lock but torch and, where its build has them, the CUDA libraries that it
# asks for: there are builds for CPUs and for CUDA of one version, which a machine's own index or disk may hold.
.venv/installed: pyproject.toml constraints.txt requirements.lock
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	touch $@

# The newest versions that pyproject.toml allows, for Linux on x86-64 and aarch64, macOS, and Python from 3.11 on.
lock:
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-annotate --no-header --extra dev --constraint constraints.txt --upgrade \
		$(foreach name,$(OF_TORCH),--no-emit-package $(name)) pyproject.toml --output-file requirements.lock

# All but torch, which stays the one of constraints.txt: older ones have not been tried with this target.
.venv-lowest/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-lowest
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/uv pip compile --quiet --python $(LOWEST)/python --resolution lowest-direct --override constraints.txt \
		--extra dev pyproject.toml --output-file .venv-lowest/lowest.txt
	$(LOWEST)/python -m pip install --quiet --disable-pip-version-check -c .venv-lowest/lowest.txt -e '.[dev]'
	touch $@

# A wheel, an sdist, SHA256SUMS and the release's notes, of what git knows.
dist: .venv/installed
	$(BIN)/python deploy/dist.py

clean:
	rm -rf .venv .venv-lowest build dist *.egg-info
