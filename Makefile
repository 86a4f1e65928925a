# `make demo` and `make test` work on a machine with Python 3.11, pip and make; both create .venv first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed
FLINK := $(VENV)/installed-flink
# Several test files run at the same time, because much of their time is waiting. ARGS="-n 0" runs them one after the other.
WORKERS := -n logical --maxprocesses 4

.PHONY: demo test e2e bench lint docs lock clean

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer, not %s; say make PYTHON=/path/to/it" % sys.version.split()[0])'
	@echo "==> making $(VENV) and installing into it (the first time takes a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[dev]'
	@touch $@

$(FLINK): $(STAMP)
	@echo "==> adding a real Flink to $(VENV): 330 MB, once"
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[dev,flink-test]'
	@touch $@

# make demo ARGS="--engine flink"
demo: $(if $(findstring flink,$(ARGS)),$(FLINK),$(STAMP))
	@$(BIN)/autoscaler demo $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

e2e: $(FLINK)
	@$(BIN)/python -m pytest -m e2e $(ARGS)

bench: $(STAMP)
	@$(BIN)/python -m pytest -m benchmark -s $(ARGS)

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/vulture

# The documentation as a site in site/: open site/index.html. A dead link fails.
$(VENV)/installed-docs: $(STAMP)
	@$(BIN)/python -m pip install --disable-pip-version-check --progress-bar on -e '.[dev,docs]'
	@touch $@

docs: $(VENV)/installed-docs
	@$(BIN)/python -m tests.docs.refresh
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# Writes the versions and hashes that the image, the Debian package and a release install. Versions that still fit are kept;
# ARGS="--upgrade" takes the newest.
UV_LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header $(ARGS)
lock: $(STAMP)
	@$(UV_LOCK) $(addprefix --extra ,kubernetes aws kafka http postgres promql) pyproject.toml -o deploy/requirements/runtime.txt
	@$(UV_LOCK) deploy/requirements/build.in -o deploy/requirements/build.txt

clean:
	rm -rf $(VENV) demo-output site
