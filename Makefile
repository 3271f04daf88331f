# Every target starts from nothing but Python 3.11, 3.12 or 3.13: PYTHON=python3.12 VENV=.venv-3.12 make test
PYTHON ?= python3
VENV ?= .venv
PEERS ?= .venv-peers
PARITY ?= .venv-parity
# JoeyNMT and its PyTorch have wheels for this Python only.
PEERS_PYTHON ?= python3.11
PY := $(VENV)/bin/python
RUN := runs/demo
PYTEST_ARGS ?=

# Bytecode is kept: containers may forbid that, and then every process, of which tests start many, compiles all of its libraries for seconds.
export PYTHONDONTWRITEBYTECODE :=

# Compiled programs are kept between runs of the tests, and shared with the processes that tests start.
TEST_ENV := JAX_PLATFORMS=cpu JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache/jax \
	JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0.1
# The tests of a file stay together, so that what they share is trained once; files in their own order, since those of
# few and long tests would come last.
PYTEST := $(TEST_ENV) $(PY) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: help venv install demo test test-parity test-all lint golden bench bench-training bench-decoding bench-data \
	bench-documents bench-budgets bench-encoders bench-masked bench-peers-env tpu-install tpu-plan tpu-test \
	wheel clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1 \2/' | \
		awk '{name = $$1; $$1 = ""; printf "  %-18s%s\n", name, $$0}'

venv: install

install: $(VENV)/.installed  ## make the environment: pinned versions, and flaxnmt itself, editable

# uv takes a third of the time of pip, and does not read its settings: where the index is one of those, pip it is.
$(VENV)/.installed: setup.cfg pyproject.toml $(wildcard constraints-*.txt)
	@$(PY) -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@version=$$($(PY) -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	if [ ! -f constraints-$$version.txt ]; then \
		echo "$(VENV) has Python $$version: remove it, and choose 3.11 to 3.13 with PYTHON=python3.11"; exit 2; \
	fi; \
	echo "Installing into $(VENV) for Python $$version"; \
	$(PY) -m pip install --quiet --disable-pip-version-check -c constraints-$$version.txt uv; \
	$(VENV)/bin/uv pip install --quiet --python $(PY) -c constraints-$$version.txt -e '.[dev]' || \
		$(PY) -m pip install --quiet --no-compile --disable-pip-version-check -c constraints-$$version.txt -e '.[dev]'
	@touch $@

demo: install  ## train a model of sentences and one of documents on the generated corpus, compare them
	$(PY) -m experiments.train discourse_demo --run $(RUN)
	$(PY) -m experiments.train discourse_document --run $(RUN)-documents --init-from $(RUN)
	echo "The dog sleeps in the garden." | $(VENV)/bin/flaxnmt translate --run $(RUN)
	$(PY) -m experiments.documents $(RUN) $(RUN)-documents --sets 180

# The fast tests compile much and compute little: what LLVM makes faster is left to test-all.
test: install  ## the fast tests
	XLA_FLAGS="$(XLA_FLAGS) --xla_backend_optimization_level=0" $(PYTEST) $(PYTEST_ARGS)

test-parity:  ## the tests beside PyTorch and Hugging Face, in an environment of their own
	$(MAKE) install VENV=$(PARITY)
	$(PARITY)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/parity/requirements.txt
	$(PARITY)/bin/python -c 'import torch, torchmetrics, transformers'
	$(TEST_ENV) $(PARITY)/bin/python -m pytest -q -m "not tpu" tests/parity tests/evaluation/test_classification.py $(PYTEST_ARGS)

test-all: install  ## all tests, the slow ones too
	$(PYTEST) -m "not tpu" $(PYTEST_ARGS)

lint: install  ## ruff over everything
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

golden: install  ## write the golden files of tests/golden anew; review the diff
	$(PYTEST) -k golden --refresh-golden $(PYTEST_ARGS)

bench: bench-training bench-decoding bench-data bench-documents bench-budgets bench-encoders bench-masked  ## all benchmarks, beside their peers

bench-training: install bench-peers-env  ## training speed
	$(PY) -m experiments.benchmarks.training

bench-decoding: install bench-peers-env  ## beam search speed
	$(PY) -m experiments.benchmarks.decoding

bench-data: install  ## reading, tokenising and batching speed
	$(PY) -m experiments.benchmarks.data_throughput discourse --vocab-size 4000 --results runs

bench-documents: install  ## attention over documents, and selection by a tree
	$(PY) -m experiments.benchmarks.document_attention
	$(PY) -m experiments.benchmarks.tree_selection
	$(PY) -m experiments.benchmarks.complexity

bench-budgets: install  ## what a budget saves by the clock; with RUN="DIR ..." by trained models, too
	$(PY) -m experiments.benchmarks.budgets $(if $(RUN),--run $(RUN))

bench-encoders: install bench-peers-env  ## encoder stacks beside self-attention and PyTorch, their parameters and operations
	$(PY) -m experiments.benchmarks.encoders
	$(PY) -m experiments.benchmarks.encoder_costs

bench-masked: install bench-peers-env  ## training speed of a masked language model
	$(PY) -m experiments.benchmarks.masked

tpu-install: install  ## the TPU compiler, for plans and their tests on a machine without a TPU
	$(PY) -m pip install --quiet --disable-pip-version-check 'jax[tpu]'

tpu-plan: tpu-install  ## compile all documented plans for TPU slices
	$(PY) -m tpu.plans

tpu-test: tpu-install  ## the tests that need the TPU compiler
	$(TEST_ENV) $(PY) -m pytest -q -m tpu $(PYTEST_ARGS)

bench-peers-env: $(PEERS)/.installed  ## make an environment with the toolkits to compare with

$(PEERS)/.installed: experiments/benchmarks/peers/requirements.txt
	@$(PEERS)/bin/python -m pip --version > /dev/null 2>&1 || $(PEERS_PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

wheel: install  ## build dist/flaxnmt-*.whl
	$(PY) -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:  ## remove what the targets made, but no run directories
	rm -rf $(VENV) $(PEERS) $(PARITY) .cache .pytest_cache .ruff_cache build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
