# What a fresh clone needs: Python 3.11 or newer, and make.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
# Today's versions, also in a year; CONSTRAINTS= installs the newest ones, constraints/oldest.txt the oldest.
CONSTRAINTS ?= constraints/today.txt
RUN     = $(VENV)/bin/python
PIP     = $(RUN) -m pip --disable-pip-version-check --quiet
WITHIN  = $(addprefix --constraint ,$(CONSTRAINTS))

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all test-oldest quick lint types docs bench experiment campaign wheel readme clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "avare needs Python 3.11 or newer; set PYTHON=..."; exit 1; }
	@echo "Making $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Each stamp is renewed when pyproject.toml changes. PyTorch comes first, so that nothing else picks another.
$(VENV)/demo-installed: $(VENV)/made pyproject.toml
	@echo "Installing avare and what the demo needs ..."
	@$(PIP) install $(WITHIN) --editable '.[experiments]'
	@touch $@

$(VENV)/dev-installed: $(VENV)/made pyproject.toml
	@echo "Installing avare and what tests and benchmarks need ..."
	@$(PIP) install $(WITHIN) $(TORCH)
	@$(PIP) install $(WITHIN) --editable '.[dev]'
	@touch $@ $(VENV)/demo-installed

install: $(VENV)/dev-installed ## the development environment, in .venv
	@echo "Ready: $(RUN)"

demo: $(VENV)/demo-installed ## data with much to gain, and with nothing: verdicts, and a page in results/demo
	@echo "Comparing samplers; the first time, kernels are compiled ..."
	@$(RUN) examples/demo.py

lint: $(VENV)/dev-installed ## formatting and lint
	@echo "Linting ..."
	@$(RUN) -m ruff format --check --quiet . || { $(RUN) -m ruff format --diff . ; exit 1; }
	@$(RUN) -m ruff check --quiet .
	@$(VENV)/bin/lint-imports --no-cache > $(VENV)/imports.txt || { cat $(VENV)/imports.txt; exit 1; }

types: $(VENV)/dev-installed ## mypy, strict
	@echo "Checking types ..."
	@$(RUN) -m mypy

# Coverage cannot see into compiled kernels, so what has kernels is tested twice: compiled, with the draws that the
# statistical tests want, and interpreted, with fewer, which also checks that no index is out of bounds.
KERNELS = linear problems samplers simplex solvers structures
test: checks ## linters, types and all tests but the slow ones
	@$(MAKE) --no-print-directory tests MARK='not slow'

test-all: checks $(VENV)/docs-installed ## the slow tests too, the site, and the oldest versions
	@AVARE_DRAWS=all $(MAKE) --no-print-directory tests MARK='slow or not slow'
	@$(MAKE) --no-print-directory test-oldest

# What needs neither PyTorch nor JAX: their oldest builds for one processor are not in every registry. Old packages
# may warn of newer ones.
OLDEST = $(VENV)-oldest
OTHERS = experiments property sklearn statistical
test-oldest: $(OLDEST)/installed ## tests with the oldest supported versions, in an environment of their own
	@echo "Testing with the oldest versions ..."
	@$(OLDEST)/bin/python -m pytest --quiet --numprocesses=auto -m 'not slow' -W default \
		tests/test_*.py $(addprefix tests/,$(KERNELS) $(OTHERS))

$(OLDEST)/installed: pyproject.toml constraints/oldest.txt
	@$(MAKE) --no-print-directory VENV=$(OLDEST) $(OLDEST)/made
	@echo "Installing the oldest versions ..."
	@$(OLDEST)/bin/python -m pip --disable-pip-version-check --quiet install --constraint constraints/oldest.txt \
		--editable '.[arviz,experiments,sklearn]' hypothesis psutil pytest pytest-cov pytest-timeout pytest-xdist
	@touch $@

# Compiled, without coverage: what has changed since the commit SINCE, and what mirrors it in tests/.
SINCE ?= HEAD
quick: lint ## only what your change touches: about a minute; SINCE=main for a whole branch
	@targets=$$($(RUN) tests/support/touched.py $(SINCE)) && echo $$targets && \
		$(RUN) -m pytest --quiet --numprocesses=2 -m 'not slow' $$targets

.PHONY: checks tests
checks: $(VENV)/dev-installed
	@$(MAKE) --no-print-directory --jobs=2 lint types

tests: $(VENV)/dev-installed
	@echo "Testing, compiled ..."
	@$(RUN) -m pytest --quiet --numprocesses=auto -m '$(MARK)' --cov=avare --cov-report=
	@echo "Testing, interpreted ..."
	@NUMBA_DISABLE_JIT=1 $(RUN) -m pytest --quiet --numprocesses=auto -m 'not slow' \
		--cov=avare --cov-append --cov-report=term --cov-fail-under=95 $(addprefix tests/,$(KERNELS))

$(VENV)/docs-installed: $(VENV)/dev-installed
	@echo "Installing what the site needs ..."
	@$(PIP) install $(WITHIN) --editable '.[docs]'
	@touch $@

# The source is the whole repository: see docs/conf.py. GALLERY=0 leaves the examples of the gallery unrun.
GALLERY ?= 1
docs: $(VENV)/docs-installed ## the documentation site, in build/docs; a warning is an error
	@echo "Building the site ..."
	@$(RUN) -m sphinx -q -W --keep-going -c docs -b html -D sphinx_gallery_conf.plot_gallery=$(GALLERY) . build/docs
	@echo "Ready: build/docs/index.html"

# Those marked in benchmarks/README.md, which says why the others are left out; short ones first.
BENCHMARKS = structures samplers first_hour solvers steps advice linear linear_shapes linear_certificates linear_ablations linear_choices \
	gradient_norms torch_loader memories one_number replay frameworks calibrated nets_race nets_fronts regret doubts
bench: $(VENV)/dev-installed ## benchmarks: JSON, tables and plots in benchmarks/results/
	@echo "Measuring; with all data this takes hours, and benchmarks/README.md says what each script answers ..."
	@set -e; for name in $(BENCHMARKS); do echo $$name; $(RUN) benchmarks/$$name.py; done

EXPERIMENT ?= nets --quick
experiment: $(VENV)/dev-installed ## an experiment of benchmarks/: EXPERIMENT=nets, sampling or theory, with options
	@$(RUN) benchmarks reproduce $(EXPERIMENT)

MINUTES ?= 10
campaign: $(VENV)/dev-installed ## try to break it for MINUTES=10, from a new seed: a table in benchmarks/results/
	@$(RUN) benchmarks/campaign.py --minutes $(MINUTES)

# PyPI shows the README alone: its pictures and pages need the address at which this repository can be read.
readme:
	@test -n "$(URL)" || { echo "URL is missing: make wheel URL=https://..., where files of this repository can be read" >&2; exit 2; }
	@sed -E 's|\]\(([^):]+)\)|](${URL}/\1)|g' README.md

wheel: $(VENV)/made ## a wheel for PyPI, in dist/; URL=... makes the links of its README absolute
	@rm -rf build && mkdir -p build && git archive HEAD | tar -x -C build
	@$(MAKE) --no-print-directory --silent readme > build/README.absolute && mv build/README.absolute build/README.md
	@$(PIP) wheel --no-deps --wheel-dir dist ./build

clean: ## remove .venv, caches and results/
	rm -rf $(VENV) $(OLDEST) results build dist .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks examples -name __pycache__ -type d -exec rm -rf {} +
