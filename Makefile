# Everything one does in this repository, with GNU make, Python 3.10 to 3.13 and its pip: `make test` is all that a
# fresh checkout needs. Another Python: make PYTHON=python3.12 test

PYTHON ?= python3
PYENV_ROOT ?= $(HOME)/.pyenv
# The newest and the oldest Pythons that we support, and one between, the longest first; .venv has what PYTHON is.
MATRIX ?= 3.13 3.10 3.12

BIN := .venv/bin
# Twice quiet: errors only.
INSTALL := install --quiet --quiet --disable-pip-version-check --no-input -c constraints.txt
# What an installation depends on. Code is not part of it: installations are editable.
INPUTS := pyproject.toml constraints.txt fedstack/_version.py

# What needs engines of others: pools of processes, Dask, Ray.
ENGINES := tests/engines
# What needs packages that runs are watched with: matplotlib, MLflow, TensorBoard.
WATCHED := $(addprefix tests/program/releases/,test_mlflow.py test_plots.py test_tensorboard.py)
# What needs pandas or matplotlib.
FRAMES := tests/data/partition tests/computations/values/test_example_types.py \
	tests/executors/survivors/test_outcome_frames.py tests/program/sources/test_table_data_source.py
# What the core tests leave out: what is true of the repository and of its examples, whatever Python reads it. These
# tests need the packages of `dev`, the others only those of `test`.
NOT_CORE := tests/benchmarks tests/demo tests/mutants tests/project $(ENGINES) $(WATCHED) $(FRAMES)
# What waits for processes, connections and time limits more than it computes.
SERVING := tests/command_line tests/service
FAULTS := tests/faults
WAITING := $(FAULTS) $(SERVING)
# What a Python changes in how they go, the next one has too: the newest does for all others, and leaves out only what
# other processes and simulated clusters do. In the oldest and between it is about computations, how they are executed,
# and by which calls; in the oldest also about how values travel and rounds are kept, and about JAX.
SOLID := $(WAITING) $(addprefix tests/,backends data observe testing)
matrix-3.10: NOT_CORE += $(SOLID)
matrix-3.11 matrix-3.12: NOT_CORE += $(SOLID) tests/program tests/transport
matrix-3.11 matrix-3.12: JAX_CORE_TESTS :=
matrix-3.13: NOT_CORE += $(FAULTS) tests/command_line tests/testing/simulation

# Tests start hundreds of processes, and each starts half as slowly again where no bytecode is kept.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test long leaves check lint bench curves soak simulate mutants count protos
.PHONY: environments matrix docs links dist wheels clean
.DELETE_ON_ERROR:
.SECONDARY: # the stamps of the matrix are made by a chain of pattern rules, and make would delete them

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  \1: /p' $(MAKEFILE_LIST)

demo: .venv/.installed-demo ## run the demo
	$(BIN)/fedstack demo

# They have processes of their own: JAX takes much memory, and has threads that do not survive forks.
JAX_TESTS := $(wildcard tests/computations/leaves/xla/test_*.py tests/service/test_jax_*.py tests/demo/test_*_jax.py) \
	tests/computations/values/test_example_types.py

test: .venv/.installed-dev ## run the tests on all cores, all but those that take long
	$(BIN)/python -m pytest -q -n auto $(JAX_TESTS:%=--ignore=%)
	$(BIN)/python -m pytest -q -n 2 $(JAX_TESTS)

# What runs over streams in `make test`, and is to be the same over gRPC.
TRANSPORTS := $(FAULTS) tests/backends tests/executors tests/service

# What the promises are checked over with JAX functions in place of Python's.
JAX_STACKS := local or composed or processes or lost

long: .venv/.installed-dev ## run the tests that take long, on all cores, others over gRPC, and some with JAX functions
	$(BIN)/python -m pytest -q -n auto -m "long and not soak" $(JAX_TESTS:%=--ignore=%)
	$(BIN)/python -m pytest -q -n 2 -m "long and not soak" $(JAX_TESTS)
	$(BIN)/python -m pytest -q -n auto --transport grpc --hypothesis-profile=few \
		-m "not slow and not long and not soak" $(TRANSPORTS) $(JAX_TESTS:%=--ignore=%)
	$(BIN)/python -m pytest -q --leaves jax -m "not slow" -k "$(JAX_STACKS)" tests/executors/test_conformance.py

# What needs PyTorch, XGBoost or dp-accounting, and the recipe that trains a transformer: too large for .ci/run.
LEAVES := tests/frameworks tests/demo/test_recipes.py tests/project/test_readme.py
LEAVES_OF := frameworks or torch or xgboost or lora or noise or recipes.md

leaves: .venv-leaves/.installed-leaves ## run tests and recipes with PyTorch, XGBoost, dp-accounting, and LoRA
	.venv-leaves/bin/python -m pytest -q -p no:cacheprovider -m "" -k "$(LEAVES_OF)" $(LEAVES)

check: lint ## lint, formatting, types, generated code, architecture
	$(BIN)/python -m pytest -q tests/project

lint: .venv/.installed-dev ## the same without the tests of the architecture
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/python scripts/generate_protos.py --check

bench: .venv/.installed-dev ## run the benchmarks
	$(BIN)/python -m benchmarks

curves: .venv/.installed-dev ## draw the curves of algorithms over three seeds, for docs/gallery/curves.md
	$(BIN)/python examples/curves.py --out docs/gallery

soak: .venv/.installed-dev ## run the tests that take minutes
	$(BIN)/python -m pytest -m soak

# Those that need neither the demo nor other extras.
JAX_CORE_TESTS := $(filter-out tests/demo/% $(FRAMES),$(JAX_TESTS))

# How many seeds, and which is the first.
SEEDS ?= 1000
FIRST ?= 0

simulate: .venv/.installed-dev ## run the simulations: make simulate SEEDS=100000
	$(BIN)/python tests/testing/simulation/simulate.py --seeds $(SEEDS) --first $(FIRST)

# How many bugs, and which: MUTANTS="--planted" for those that simulations alone have to find, see its --help.
MUTANTS ?= --count 300

mutants: .venv/.installed-dev ## plant bugs in what decides over time, and list those that no test finds
	$(BIN)/python tests/mutants/mutants.py $(MUTANTS)

count: ## count lines of code, by folder
	@$(PYTHON) scripts/count_code.py

protos: .venv/.installed-dev ## compile the .proto files and the stubs
	$(BIN)/python scripts/generate_protos.py

# Prefers the newest patch release that pyenv has. A python3.X on the PATH may be a shim that finds nothing, hence asked.
find_python = $(or $(lastword $(sort $(wildcard $(PYENV_ROOT)/versions/$(1).*/bin/python))),$(shell \
	python$(1) -c 'import sys; print(sys.executable)' 2>/dev/null))
FOUND := $(strip $(foreach version,$(MATRIX),$(if $(call find_python,$(version)),$(version))))

environments: .venv/.installed-dev $(FOUND:%=.venv-%/.installed-test)

matrix: $(FOUND:%=matrix-%) ## run the core tests on every supported Python found here
	@echo "matrix: found $(or $(FOUND),none) of $(MATRIX)"

# After .venv, as then the goals of .ci/run begin in their order.
matrix-%: .venv-%/.installed-test | .venv/.installed-dev
	@echo "matrix: Python $*"
	.venv-$*/bin/python -m pytest -q -p no:cacheprovider --hypothesis-profile=few -m "not slow and not long and not soak" \
		$(NOT_CORE:%=--ignore=%) $(JAX_TESTS:%=--ignore=%)
	$(if $(JAX_CORE_TESTS),.venv-$*/bin/python -m pytest -q -p no:cacheprovider \
		-m "not slow and not long and not soak" $(JAX_CORE_TESTS))

docs: .venv/.installed-dev ## build the site of the documentation into build/site
	rm -rf build/site
	$(BIN)/sphinx-build --quiet --jobs 2 --fail-on-warning --keep-going --conf-dir docs \
		--doctree-dir build/doctrees . build/site

links: .venv/.installed-dev ## check that links of the documentation to other sites lead somewhere
	$(BIN)/sphinx-build --quiet --builder linkcheck --conf-dir docs --doctree-dir build/doctrees . build/links

# The time in the archives, so that a commit is always the same bytes.
dist: export SOURCE_DATE_EPOCH = $(shell git log -1 --format=%ct)
dist: .venv/.installed-release ## build the wheel, the sdist and the bill of materials of a release into dist
	rm -rf dist build/runtime
	$(BIN)/python -m hatchling build --directory dist
	$(BIN)/twine check --strict dist/*
	$(call make_venv,build/runtime,$(PYTHON),--without-pip)
	$(BIN)/python -m pip --python build/runtime/bin/python $(INSTALL) --no-compile dist/*.whl
	version=$$($(BIN)/python -m hatchling version) \
	&& sed "s/^dynamic = .*/version = \"$$version\"/" pyproject.toml > build/runtime/pyproject.toml \
	&& $(BIN)/cyclonedx-py environment --output-reproducible --pyproject build/runtime/pyproject.toml --mc-type library \
		--output-file "dist/fedstack-$$version.cdx.json" build/runtime/bin/python

# The Pythons in which a release is tried, where they are found.
WHEELS ?= 3.10 3.11 3.12 3.13

wheels: $(foreach version,$(WHEELS),$(if $(call find_python,$(version)),wheels-$(version))) ## run the demo from the wheel

# What users get: the wheel in an environment of its own, away from this checkout.
wheels-%: dist
	rm -rf build/wheel-$*
	$(call make_venv,build/wheel-$*,$(call find_python,$*),--without-pip)
	$(BIN)/python -m pip --python build/wheel-$*/bin/python $(INSTALL) --no-compile "$$(ls dist/*.whl)[demo]"
	cd build/wheel-$* && bin/fedstack demo --rounds 3 --out demo-out && bin/fedstack explain-error LeafError

clean: ## remove all that make made, the virtual environments too
	rm -rf .venv .venv-* build dist demo-out .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The newest pip installs in half of the time that those need which come with Pythons. Without it these do.
.venv/.newest-pip:
	$(call make_venv,.venv,$(PYTHON))
	-@$(BIN)/python -m pip $(INSTALL) pip
	@touch $@

# `dev` includes `demo`, so one installation serves both.
.venv/.installed-dev: $(INPUTS) | .venv/.newest-pip
	$(BIN)/python -m pip $(INSTALL) --no-compile -e ".[dev]"
	@touch .venv/.installed-demo $@

.venv/.installed-release: $(INPUTS) | .venv/.newest-pip
	$(BIN)/python -m pip $(INSTALL) -e ".[release]"
	@touch $@

.venv/.installed-demo: $(INPUTS) | .venv/.newest-pip
	$(BIN)/python -m pip $(INSTALL) -e ".[demo]"
	@touch $@

# Bytecode is made of what is imported, which is a small part of what is installed.
.venv-%/.installed-test: $(INPUTS) | .venv/.newest-pip
	$(call make_venv,.venv-$*,$(call find_python,$*),--without-pip)
	$(BIN)/python -m pip --python .venv-$*/bin/python $(INSTALL) --no-compile -e ".[test,jax]"
	@touch $@

# A constraint of attrs would keep dp-accounting out.
.venv-leaves/.installed-leaves: $(INPUTS) | .venv/.newest-pip
	$(call make_venv,.venv-leaves,$(PYTHON),--without-pip)
	sed '/^attrs==/d' constraints.txt > .venv-leaves/constraints.txt
	$(BIN)/python -m pip --python .venv-leaves/bin/python $(INSTALL:%constraints.txt=.venv-leaves/constraints.txt) \
		--no-compile -e ".[leaves]"
	@touch $@

# $(1): folder, $(2): interpreter, $(3): options. Checked first, because pip's own words for a wrong Python are hard to
# find.
define make_venv
@$(2) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	|| { echo "fedstack needs Python 3.10 to 3.13, found $$($(2) --version 2>&1); set PYTHON=" >&2; exit 1; }
@test -x $(1)/bin/python || $(2) -m venv --clear $(3) $(1)
endef
