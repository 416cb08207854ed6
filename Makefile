# The two commands of the README are `make demo` and `make test`. Each makes the environment from
# the lock first.
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1 \
	&& { command -v $$p; break; }; done)

# Modules stay compiled too, whatever the shell says: each test that starts processes imports them
# all.
unexport PYTHONDONTWRITEBYTECODE

# Compiled programs are kept between demos and long tests.
export JAX_COMPILATION_CACHE_DIR ?= $(CURDIR)/.cache/jax
export JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS ?= 0.2

WORKERS := -n auto --maxprocesses 4 --dist worksteal
SLOWLY  := $(BIN)/pytest $(WORKERS) --durations=25

.PHONY: demo test test-processes test-all check format docs lock benchmarks clean

demo: $(READY)
	$(BIN)/covey demo

# Keeping programs costs the first run an eighth of its time. `make test
# JAX_ENABLE_COMPILATION_CACHE=true` keeps them, and the next run takes a fifth less.
test: export JAX_ENABLE_COMPILATION_CACHE ?= false

# Checked shapes cost half a minute: here those of the core, in test-all those of everything.
test: check
	$(BIN)/pytest $(WORKERS) -m "not slow and not processes" \
		--jaxtyping-packages=covey.core,beartype.beartype \
		--ignore=tests/test_docs.py --ignore=tests/test_package.py

# Several processes that wait for each other, some of them killed: a server and three sites over
# mutual TLS, a Ray cluster, runs, devices, a browser.
test-processes: $(READY)
	$(BIN)/pytest -m "processes and not slow" tests/deploy tests/engines tests/cli tests/sweeps \
		tests/report tests/core/test_compiling.py tests/test_imports.py

# Tests compile for the moment. Where programs run for minutes, they are optimised as users' are.
LONG := tests/reproductions tests/estimators tests/algorithms/test_marginal_coverage.py

# Three parts that take an hour and a half: each of them runs, whatever another one found. Examples
# of docstrings run on the modules that the package imports: copies of them would have other classes
# of the same name.
test-all: check
	@failed=; \
	$(SLOWLY) $(addprefix --ignore=,$(LONG)) || failed="$$failed tests"; \
	XLA_FLAGS= $(SLOWLY) $(LONG) || failed="$$failed long-tests"; \
	$(SLOWLY) --import-mode=prepend --doctest-modules src/covey || failed="$$failed docstrings"; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation as a folder of pages. A broken link or a name that is not there stops it:
# warnings are errors with --strict, but not with --quiet beside it.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "written to site/index.html"
	$(BIN)/pytest -n 2 -m "not slow" tests/test_docs.py tests/test_package.py

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "covey needs Python 3.11 or newer: install it, or say" \
		"make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) || { echo "Python's venv module is missing: on Debian and" \
		"Ubuntu, install python3-venv"; exit 1; }
	$(INSTALL) --require-hashes -r requirements.lock
	$(INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

# Needs uv. One version of each package for every Python and platform, with hashes.
lock:
	uv pip compile --universal --fork-strategy fewest --python-version 3.11 \
		--generate-hashes --no-header --group dev pyproject.toml -o requirements.lock

benchmarks: $(READY)
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) .cache build dist site
