# test     everything that CI runs: lint, types, tests; makes its own environments
# again    the tests that failed in the last run, one after the other
# lint     ruff and mypy alone
# clients  the official clients of the emulated clouds, in an environment of their own
# wheel    the wheel and the sdist into dist/
# bench    the figures of docs/decisions.md again

PYTHON ?= python3
VENV := .venv-dev
BIN := $(VENV)/bin
CLIENTS := .venv-clients
TORCH := 2.13.0
TORCH_CPU_INDEX := https://download.pytorch.org/whl/cpu
WORKERS ?= 3

.PHONY: test again lint clients wheel bench clean

test: $(VENV)/ready clients lint
	$(BIN)/python -m compileall -q gpurun provisioners
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS) || { [ $$? = 1 ] && $(MAKE) again; }

# Many tests hold real processes to real seconds: what failed beside the others must pass alone.
# The first outcome stays printed above; only a whole run (pytest's 1) gets a second look.
# The workers know a test of a group as NAME@GROUP, which one process alone does not.
again:
	[ ! -e .pytest_cache/v/cache/lastfailed ] || sed -i 's/@[^]@"\/]*": true/": true/' .pytest_cache/v/cache/lastfailed
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(ARGS)

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clients: $(CLIENTS)/ready

wheel: $(VENV)/ready
	$(BIN)/python -m build --no-isolation

bench: $(VENV)/ready
	$(BIN)/python -m benchmarks.cli
	$(BIN)/python -m benchmarks.keeper
	$(BIN)/python -m benchmarks.ssh
	$(BIN)/python -m benchmarks.first_step
	$(BIN)/python -m benchmarks.watched
	$(BIN)/python -m benchmarks.dataset
	$(BIN)/python -m benchmarks.train

# The pinned torch first, so that the range in pyproject.toml is met by the CPU build.
$(VENV)/ready: pyproject.toml tests/debian-packages.txt
	tests/install-debian-packages
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip hatchling editables
	$(BIN)/python -m pip install --quiet --retries 0 --timeout 15 --index-url $(TORCH_CPU_INDEX) torch==$(TORCH) \
	  || $(BIN)/python -m pip install --quiet torch==$(TORCH)
	$(BIN)/python -m pip install --quiet --no-build-isolation --editable '.[train,test]'
	touch $@

# vastai and prime pin what gpurun leaves free: they never share its environment.
$(CLIENTS)/ready: tests/clouds/official-clients.txt
	$(PYTHON) -m venv $(CLIENTS)
	$(CLIENTS)/bin/python -m pip install --quiet --requirement $<
	touch $@

clean:
	rm -rf $(VENV) $(CLIENTS) dist build .mypy_cache .ruff_cache .pytest_cache
