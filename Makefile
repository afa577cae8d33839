# make demo   set up, then sample, train, measure and write a page (about four minutes on two cores the first time)
# make test   set up, then format, lint, types, tests and the smoke run of every experiment
PYTHON ?= python3
BIN := .venv/bin

# TORCH=keep: use the torch that PYTHON already has (a CUDA build, say) instead of the pinned one.
ifeq ($(TORCH),keep)
VENV_OPTIONS := --system-site-packages
else
CONSTRAINT := -c constraints/torch.txt
endif

DEMO := runs/demo

.PHONY: demo test test-slow test-soak test-gpu test-page test-slurm test-extras check-package docs notebooks format clean

demo: .venv/.installed
	$(BIN)/hmmscope run quickstart --scale small --out $(DEMO) --resume

test: .venv/.installed
	$(BIN)/ruff format --check src tests scripts
	$(BIN)/ruff check src tests scripts
	$(BIN)/mypy
	$(BIN)/pytest

test-slow: .venv/.installed
	$(BIN)/pytest -m slow

test-soak: .venv/.installed
	$(BIN)/pytest -m soak -n 0 --timeout 5000

test-gpu: .venv/.installed
	$(BIN)/pytest -m gpu -n 0

test-page: docs
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) -e ".[e2e]"
	$(BIN)/pytest -m e2e -n 0

test-slurm: .venv/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) -e ".[slurm]"
	$(BIN)/pytest -m slurm -n 0

# The tests that need more libraries, in an environment of their own: Ray, submitit, TransformerLens, nnsight, pyhmmer,
# dynamax, pomegranate, and libraries of tables (gigabytes with the libraries that they bring).
test-extras:
	test -x .venv-extras/bin/python || $(PYTHON) -m venv $(VENV_OPTIONS) .venv-extras
	.venv-extras/bin/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) \
		-e ".[hmm,models,test,lens,ray,slurm,hmmer,peers,tables]"
	.venv-extras/bin/pytest -rs tests/interop tests/models tests/sequences tests/sweeps/test_sweep_engines.py

# Builds the package, installs its wheel into an empty environment outside of the checkout, and runs every verb there.
check-package: .venv/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) -e ".[package]"
	$(BIN)/python scripts/check_package.py

docs: .venv/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) -e ".[docs]"
	mkdir -p docs/_build/extra
	$(BIN)/hmmscope train docs/live.yaml --out docs/_build/live --resume -q
	$(BIN)/hmmscope explore docs/_build/live -q -o docs/_build/extra/live.html
	rm -f docs/_build/extra/ledger-table.html
	$(BIN)/hmmscope claims $(wildcard results/small/* results/medium/*) -q --out docs/_build/extra/ledger-table.html
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# Runs the notebooks of the documentation in place.
notebooks: .venv/.installed
	$(BIN)/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) -e ".[docs,hmm]"
	$(BIN)/python scripts/run_notebooks.py

format: .venv/.installed
	$(BIN)/ruff format src tests scripts
	$(BIN)/ruff check --fix src tests scripts

clean:
	rm -rf .venv .venv-extras docs/_build

# Byte code is left to the first import of what is imported: compiling all of it takes as long as the rest.
.venv/.installed: pyproject.toml constraints/torch.txt
	$(PYTHON) -m venv $(VENV_OPTIONS) .venv
	$(BIN)/python -m pip install -q --no-compile --disable-pip-version-check $(CONSTRAINT) -e ".[hmm,models,test]"
	touch $@
