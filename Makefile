# What a developer types. Needs make and a Python from 3.11 on, nothing else: everything is installed into
# .venv, .venv-* and .npm here, anew when what they are made from has changed. `make clean` removes them.

.DEFAULT_GOAL := help
.PHONY: help install-dev interop npm demo test conformance check format bench docs man test-mcp-server wheel clean

BIN := .venv/bin
CLIENTS := tests/interop/clients
ARGS ?=
PYTHON ?=

help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-16s %s\n' "$$name" "$$what"; done

install-dev: .venv/made interop npm ## mcpd, mcpctl and all that tests need, in .venv (and .venv-*, .npm)

demo: .venv/made npm ## See it work, with real servers, in a private place; under a minute
	@$(BIN)/python examples/demo.py $(ARGS)

test: .venv/made interop npm ## All tests; ARGS='-k word -x' goes to pytest
	@$(BIN)/python -m pytest $(ARGS)

conformance: .venv/made .venv-mcp1/made tests/conformance/npm/node_modules/made ## The official conformance suite against our client and our door, all revisions
	@$(BIN)/python -m tests.conformance.run $(ARGS)

check: .venv/made ## Formatting, lint, types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy mcpd ctl tests benchmarks examples docs

format: .venv/made ## Put the code into its form
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: .venv/made ## What the daemon costs, as ratios; ARGS=--write puts them into benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks.run $(ARGS)

docs: .venv/made ## Make docs/reference/control-api.md from the types
	@$(BIN)/python docs/make_control_api.py

man: .venv/made ## Make man/mcpctl.1 and man/mcpd.1 from the command lines
	@$(BIN)/python docs/make_man.py

test-mcp-server: .venv/made ## The bundled test server over HTTP at http://127.0.0.1:8888/mcp
	@$(BIN)/python -m mcpd.testserver --http 127.0.0.1:8888

wheel: .venv/made ## Build dist/*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .
	@ls dist/*.whl

clean: ## Remove what make has made
	rm -rf .venv .venv-* .npm dist tests/conformance/npm/node_modules $(CLIENTS)/node_modules

# ── what the rest stands on ──────────────────────────────────────────────────────────────────────────────

# PYTHON=/path/to/python chooses one. A name on PATH proves nothing (version managers leave names behind that
# start nothing), so each candidate is asked. pip learnt --group, for [dependency-groups], in 25.1.
.venv/made: pyproject.toml
	@for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
		"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
		echo "Making .venv with $$("$$candidate" --version). This takes half a minute, once."; \
		"$$candidate" -m venv --clear .venv && exit 0; \
		echo "$$candidate cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 1; \
	done; \
	echo "mcpd needs Python 3.11 or newer, and there is none on PATH. Install one, or name it: make PYTHON=/path/to/python" >&2; \
	exit 1
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable . --group dev
	@touch $@

# Clients and servers of others that cannot live in .venv, because they need another generation of the same SDK,
# or much that nothing else needs; and clients from npm, where there is a node.
interop: .venv-mcp1/made .venv-fastmcp/made
	@if cmp -s $(CLIENTS)/package-lock.json $(CLIENTS)/node_modules/made; then :; \
	elif ! command -v node >/dev/null || ! command -v npm >/dev/null; then \
		echo "No node and npm here: the clients written in JavaScript are left out."; \
	else \
		echo "Installing MCP clients from npm into $(CLIENTS), once."; \
		if npm ci --prefix $(CLIENTS) --ignore-scripts --no-audit --no-fund --loglevel=error; \
		then cp $(CLIENTS)/package-lock.json $(CLIENTS)/node_modules/made; \
		else echo "npm could not install them; they are left out." >&2; fi; \
	fi

.venv-%/made: tests/interop/requirements-%.txt | .venv/made
	@echo "Making .venv-$*, once."
	@$(BIN)/python -m venv --clear .venv-$*
	@.venv-$*/bin/python -m pip install -qq --disable-pip-version-check -r $<
	@touch $@

# Real servers from npm, where there is a node to run them; everything works without, with less to show.
npm:
	@if cmp -s tests/servers/npm/package-lock.json .npm/package-lock.json && [ -e .npm/made ]; then :; \
	elif ! command -v node >/dev/null || ! command -v npm >/dev/null; then \
		echo "No node and npm here: the servers written in JavaScript are left out."; \
	else \
		echo "Installing servers from npm into .npm, once."; \
		mkdir -p .npm && cp tests/servers/npm/package*.json .npm/ && rm -f .npm/made && \
		if npm ci --prefix .npm --no-audit --no-fund --loglevel=error >.npm/log 2>&1; then touch .npm/made; \
		else echo "npm could not install them (see .npm/log); they are left out." >&2; fi; \
	fi

tests/conformance/npm/node_modules/made: tests/conformance/npm/package-lock.json
	@echo "Installing the conformance suite from npm, once."
	@npm ci --prefix tests/conformance/npm --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@
