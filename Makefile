# Every target sets itself up on a bare machine with Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install bytecode bench test test-sessions test-examples test-fast docs soak lint

install: $(STAMP)

# Made again only when the project's metadata changed.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "perfsuite needs Python 3.11 or newer: make PYTHON=python3.12 install"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

# What runs in continuous integration with a token, and what `perfsuite init` gives away.
WORKFLOWS := $(wildcard .github/workflows/*.yml perfsuite/cli/starter/*.yml)
ISSUE_FORMS := $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))

bench: install
	$(BIN)/perfsuite run benchmarks

# Tests start hundreds of interpreters, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE
bytecode: install
	@$(BIN)/python -m compileall -q perfsuite tests/support

# One more than CI has cores: ranks wait for each other, so that two leave a core idle.
WORKERS := 3
TESTS = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
SESSIONS := tests/sessions tests/faults
# Those have targets of their own.
REST := tests $(SESSIONS:%=--ignore=%) --ignore=tests/packaging/docs

test: bytecode
	$(TESTS) $(REST)

# Whole gate sessions, and faults on real ranks and commands. They time, and load widens what they see.
test-sessions: WORKERS := 2
test-sessions: bytecode
	$(TESTS) $(SESSIONS)

# Trainings of users, with the frameworks that they use, in an environment of its own.
EXAMPLES := examples/.venv
$(EXAMPLES)/.installed: pyproject.toml examples/requirements.txt
	test -x $(EXAMPLES)/bin/python || $(PYTHON) -m venv $(EXAMPLES)
	$(EXAMPLES)/bin/python -m pip install --quiet --editable . --requirement examples/requirements.txt \
	  pytest-xdist
	@touch $@

test-examples: $(EXAMPLES)/.installed
	$(EXAMPLES)/bin/python -m pytest -n 2 --dist worksteal examples/test_examples.py

# The site, and what its pages promise; it is read from site/index.html, without a network.
docs: bytecode
	$(BIN)/perfsuite schemas docs/reference/schemas
	$(BIN)/python -m zensical build --clean --strict
	$(TESTS) tests/packaging/docs

# For the inner loop: no rank, no pytest session.
test-fast: bytecode
	$(TESTS) $(REST) --fast

# Kill storms, fuzzing and whatever else takes minutes or hours; each prints its figures.
soak: install
	$(BIN)/python -m pytest tests -m soak

lint: install
	$(BIN)/ruff format --check perfsuite benchmarks examples tests noxfile.py
	$(BIN)/ruff check perfsuite benchmarks examples tests noxfile.py
	$(BIN)/mypy
# Most of them run nowhere else than on a quiet machine, or on a GPU.
	$(BIN)/mypy --allow-untyped-calls --no-warn-return-any --implicit-reexport benchmarks/*.py benchmarks/peers/*.py
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet --persona=pedantic $(WORKFLOWS) action.yml .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-actions action.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms $(ISSUE_FORMS)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff
