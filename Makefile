# Start with `make demo` or `make test`. Every target creates .venv if it is missing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Threads that wait by spinning starve each other on a busy machine. The topshelf command sets this itself.
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test engines docs check format wheel trackers clean

demo: $(VENV)/.demo
	$(BIN)/topshelf demo --out runs/demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist loadfile

# A local Spark, where there is a JVM, and a local Ray.
engines: $(VENV)/.engines
	timeout --kill-after 10 300 $(BIN)/python -m pytest -m engines tests/engines

docs: $(VENV)/.docs
	$(BIN)/python docs/build_site.py

check: $(VENV)/.dev
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/.dev
	$(BIN)/ruff format src tests benchmarks examples
	$(BIN)/ruff check --fix src tests benchmarks examples

# dist/ with a wheel and a sdist, and the tests that look into them; fetches the build backend.
wheel: $(VENV)/.dev
	$(PIP) build
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m pytest -m 'slow or network' tests/test_wheel.py

# TensorBoard and MLflow themselves, in a venv of their own: no test of the other suites needs them.
trackers:
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt '.[tensorboard,mlflow]' pytest hypothesis
	.venv-trackers/bin/python -c "import mlflow, tensorboard"
	.venv-trackers/bin/python -m pytest -m slow tests/training/test_trackers.py tests/training/test_callbacks.py

clean:
	rm -rf $(VENV) .venv-trackers build dist site .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[plot,tune]'
	touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.demo $(VENV)/.docs

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[docs]'
	touch $@

$(VENV)/.engines: $(VENV)/.dev
	$(PIP) --editable '.[dev,spark,ray]'
	touch $@
