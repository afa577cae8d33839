# make demo   set up, then sample, train, measure and write a page (about three minutes on two calm cores the first time)
# make test   set up, then format, lint, types, tests and the smoke run of experiments, other ones each commit
PYTHON ?= python3
BIN := .venv/bin
PIP = $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check

# Byte code is kept whatever the shell says: dozens of processes start, and each would compile torch's sources again.
unexport PYTHONDONTWRITEBYTECODE

# TORCH=keep: use the torch that PYTHON already has (a CUDA build, say) instead of the pinned one.
ifeq ($(TORCH),keep)
VENV_OPTIONS := --system-site-packages
else
CONSTRAINT := -c constraints/torch.txt
endif

DEMO := runs/demo

.PHONY: demo test types units quality test-slow test-soak test-kernels test-gpu test-page test-slurm test-extras check-package docs notebooks controls article format break mutate lock audit sbom clean

demo: .venv/.compiled
	$(BIN)/hmmscope run quickstart --scale small --out $(DEMO) --resume

test: .venv/.installed
	$(BIN)/ruff format --check src papers studies bench tests quality scripts conftest.py
	$(BIN)/ruff check src papers studies bench tests quality scripts conftest.py
	$(BIN)/lint-imports --no-cache
	$(BIN)/python scripts/check_architecture.py --check
	$(MAKE) --no-print-directory -j2 types units

types:
	$(BIN)/mypy

# Once alone first: each of several processes would compile the byte code of everything that it imports.
units:
	$(BIN)/pytest --collect-only -qq -n 0 > .venv/collected || { cat .venv/collected; exit 1; }
	$(BIN)/pytest

# The tests of the tests: planted faults, changed numbers of rules, what mutants survived, and trials of the laboratory.
quality: .venv/.installed
	$(BIN)/pytest quality
	$(BIN)/pytest quality -m "slow or soak" -n 2 --timeout 5000

test-slow: .venv/.installed
	$(BIN)/pytest -m slow

test-soak: .venv/.installed
	$(BIN)/pytest -m soak -n 0 --timeout 5000

# What depends on sums, with each of OpenBLAS's kernels for these processors and one and two threads, a run after the other.
KERNELS ?= Haswell Zen SkylakeX
SUMS := tests/test_ties.py tests/test_perturbed_rounding.py tests/processes tests/inference tests/kernels tests/verbs
test-kernels: .venv/.installed
	@set -e; for kernel in $(KERNELS); do for threads in 1 2; do \
		export OPENBLAS_CORETYPE=$$kernel OPENBLAS_NUM_THREADS=$$threads OMP_NUM_THREADS=$$threads; \
		$(BIN)/python -c "import numpy, threadpoolctl as t; print([i['architecture'] for i in t.threadpool_info() \
			if i['internal_api'] == 'openblas'], '$$threads threads')"; \
		$(BIN)/pytest -n 0 -q $(SUMS); \
	done; done

test-gpu: .venv/.installed
	$(BIN)/pytest -m gpu -n 0

test-page: docs
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/tools.txt
	$(BIN)/pytest -m e2e -n 0

test-slurm: .venv/.installed
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/tools.txt
	$(BIN)/pytest -m slurm -n 0

# Networks that learned nothing, measured as trained ones are, once: what tests/evidence/test_controls.py reads.
controls: .venv/.installed
	OMP_NUM_THREADS=1 $(BIN)/python scripts/controls.py

# The reproduction report as a PDF, build/article/article.pdf, of the ledger and results/ as they are. It needs pdflatex.
article: .venv/.installed
	$(BIN)/python scripts/article.py

# The tests that need more libraries, in an environment of their own: Ray, submitit, TransformerLens, nnsight, pyhmmer,
# dynamax, pomegranate, and libraries of tables (gigabytes with the libraries that they bring).
test-extras:
	test -x .venv-extras/bin/python || $(PYTHON) -m venv $(VENV_OPTIONS) .venv-extras
	.venv-extras/bin/python -m pip install -q --disable-pip-version-check $(CONSTRAINT) \
		-e ".[pages,hmm,models,pretrained,test,lens,loops,ray,slurm,hmmer,peers,tables]" -e papers -e studies
	.venv-extras/bin/pytest -rs tests/interop tests/models tests/sequences tests/runs/test_answers_of_fits.py papers/tests/models studies/tests/interop tests/sweeps/test_sweep_engines.py
	.venv-extras/bin/pytest -rs -m "slow or not slow" tests/sequences/test_every_reader.py

# Builds the package, installs its wheel into an empty environment outside of the checkout, and runs every verb there.
check-package: .venv/.installed
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/tools.txt
	$(BIN)/python scripts/check_package.py

docs: .venv/.installed
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/tools.txt
	mkdir -p docs/_build/extra
	$(BIN)/python scripts/write_pages.py --pictures
	$(BIN)/python scripts/draw_speed.py results/bench/people-*.json.xz --out docs/img/experiments
	$(BIN)/hmmscope train docs/live.yaml --out docs/_build/live --resume -q
	$(BIN)/hmmscope look docs/_build/live -q -o docs/_build/extra/live.html
	rm -f docs/_build/extra/ledger-table.html
	$(BIN)/hmmscope claims $$($(BIN)/python scripts/write_pages.py --folders) -q --out docs/_build/extra/ledger-table.html
	$(BIN)/sphinx-build -W -q -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

# Runs the notebooks of the documentation in place.
notebooks: .venv/.installed
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/tools.txt
	$(BIN)/python scripts/run_notebooks.py

format: .venv/.installed
	$(BIN)/ruff format src papers studies bench tests quality scripts conftest.py
	$(BIN)/ruff check --fix src papers studies bench tests quality scripts conftest.py

# Tries to break everything, and writes docs/laboratory.md; SIZES="--only --kills 1000" chooses and adds to what was measured.
break: .venv/.installed
	$(BIN)/python quality/adversarial $(SIZES)

# Mutants of the core, so many of each package, under the tests that run their line: how many are noticed, in docs/laboratory.md.
MUTANTS ?= 12
CORE := analysis runs storage sequences inference processes datasets training evidence
mutate: .venv/.installed
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/maintenance.txt
	nice -n 10 $(BIN)/python quality/adversarial/source_mutants.py
	nice -n 10 $(BIN)/python quality/adversarial --only $(foreach one,$(CORE),--mutants-$(one) $(MUTANTS))

# Lock everything but torch with hashes: the newest versions that pyproject.toml allows (see constraints/README.md).
COMPILE = .venv-lock/bin/pip-compile -q --no-header --upgrade --generate-hashes --strip-extras --no-emit-find-links \
	--no-emit-index-url --no-annotate
# $(call locked,FILE,OPTIONS): make constraints/FILE.txt again under the comments that it begins with.
define locked
$(COMPILE) $(2) -o .venv-lock/$(1).txt
{ sed '/^[^#]/,$$d' constraints/$(1).txt; grep -v '^#' .venv-lock/$(1).txt | grep .; } > .venv-lock/whole.txt
mv .venv-lock/whole.txt constraints/$(1).txt
endef
extras = --unsafe-package torch --build-deps-for editable -c constraints/torch.txt pyproject.toml $(patsubst %,--extra %,$(1))
lock:
	test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r constraints/maintenance.txt
	$(call locked,locked,$(call extras,pages hmm models test))
	$(call locked,tools,-c constraints/locked.txt $(call extras,pages hmm models test docs e2e slurm package))
	$(call locked,maintenance,--allow-unsafe constraints/maintenance.in)

# Look up known vulnerabilities of every locked version but torch. It asks pypi.org.
audit:
	test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r constraints/maintenance.txt
	for file in locked tools maintenance pip; do .venv-lock/bin/pip-audit --strict --disable-pip --require-hashes -r constraints/$$file.txt || exit 1; done

# A bill of materials of .venv, as CycloneDX JSON; this project stands in it by its pyproject.toml, not by its place here.
sbom: .venv/.installed
	test -x .venv-lock/bin/python || $(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install -q --disable-pip-version-check --no-deps --only-binary :all: --require-hashes -r constraints/maintenance.txt
	.venv-lock/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-file sbom.json --of JSON
	@echo "sbom: sbom.json"

clean:
	rm -rf .venv .venv-extras .venv-lock docs/_build

# Byte code is left to the first import of what is imported: compiling all of it takes as long as the rest. Torch is unpacked
# while the others are fetched; then comes what its build needs beyond them.
.venv/.installed: pyproject.toml papers/pyproject.toml studies/pyproject.toml constraints/torch.txt constraints/locked.txt constraints/pip.txt
	$(PYTHON) -m venv $(VENV_OPTIONS) .venv
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/pip.txt
	$(PIP) --no-deps --only-binary :all: $(CONSTRAINT) torch & \
	$(PIP) --no-deps --only-binary :all: --require-hashes -r constraints/locked.txt; code=$$?; wait $$! && exit $$code
	$(PIP) --only-binary :all: $(CONSTRAINT) torch
	$(PIP) --no-deps --no-build-isolation -e . -e papers -e studies
	touch $@

# Kernels are compiled once, so that no call waits for it.
.venv/.compiled: .venv/.installed
	$(BIN)/hmmscope check --compile -q
	touch $@
