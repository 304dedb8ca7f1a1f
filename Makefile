# Needs make and Python 3.11 or newer. Everything else is installed into .venv, .venv-* and .npm in this directory,
# and again whenever a list of requirements changes. `make clean` removes it.

.DEFAULT_GOAL := help
.PHONY: help install-dev interop npm demo test test-fast test-changed test-lowest test-system coverage mutants fuzz soak chart team conformance check format \
	site bench bench-context bench-peers counts docs man screenshots test-mcp-server wheel lock clean

BIN := .venv/bin
# Who only wants to see the demo does not wait for the tools of the tests.
DEMO := $(if $(wildcard .venv/made),.venv,.venv-demo)
CLIENTS := tests/interop/clients
EVERYTHING := .everything/.venv/made .everything/.venv-mcp1/made
# A test that hangs kills its worker after faulthandler_timeout; without restarts, that ends the run.
PARALLEL := -n auto --dist loadgroup --max-worker-restart 0
FAST := $(addprefix tests/,model config wire protocol supervision io process files privacy transports calls gateway)
IN_MEMORY := not e2e and not browser and not slow and not root
ARGS ?=
SECONDS ?=
VARIANT ?= features
PYTHON ?=

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r name what; do \
		printf '  make %-16s %s\n' "$$name" "$$what"; done

install-dev: .venv/made interop npm ## Install mcpd, mcpctl and everything the tests need

demo: $(DEMO)/made npm ## Show what mcpd does, with real servers, in a private directory; takes under a minute
	@$(DEMO)/bin/python examples/demo.py $(ARGS)

test: .venv/made interop npm ## Run all tests in parallel; ARGS='tests/ctl -k word -x' goes to pytest
	@$(BIN)/python -m pytest $(PARALLEL) $(ARGS)

test-fast: .venv/made ## Run the tests that need no other process, with fewer random examples
	@$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=fast -m '$(IN_MEMORY)' $(FAST) $(ARGS)

test-changed: .venv/made ## Run the tests of the packages that differ from BASE (default: main), slow ones excepted
	@BASE='$(BASE)' tests/changed.sh | xargs -r $(BIN)/python -m pytest $(PARALLEL) -m 'not slow' $(ARGS)

test-lowest: .venv-lowest/made ## Run the fast tests with the lowest versions that pyproject.toml allows
	@.venv-lowest/bin/python -m pytest $(PARALLEL) --hypothesis-profile=fast -m '$(IN_MEMORY)' $(FAST) $(ARGS)

test-system: .venv-system/made ## Run the fast tests of the values with the distribution's own /usr/bin/python3
	@.venv-system/bin/python -m pytest $(PARALLEL) --hypothesis-profile=fast -m '$(IN_MEMORY)' \
		$(addprefix tests/,wire protocol model config) $(ARGS)

coverage: .venv/made interop npm ## Measure which lines the tests run, in all processes; writes htmlcov/
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(PARALLEL) $(ARGS); status=$$?; \
		$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet && $(BIN)/coverage report && exit $$status

mutants: .venv/made ## Measure how many one-token bugs the nearest tests find; ARGS='--seed 7' repeats a run
	@$(BIN)/python -m tests.mutants $(ARGS)

conformance: .venv/made .venv-mcp1/made $(EVERYTHING) tests/conformance/npm/node_modules/made ## Run the official MCP conformance suite against both sides of mcpd
	@$(BIN)/python -m tests.conformance.run $(ARGS)

check: .venv/made ## Check formatting, lint and types
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy mcpd ctl tests benchmarks examples docs

format: .venv/made ## Format the code and apply the fixes that ruff can make
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

fuzz: .venv/made ## Send random inputs to a daemon through every way in; SECONDS=300, ARGS='--seed 7' repeats a run
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),300) $(ARGS)

soak: .venv/made interop npm ## Keep a daemon busy for an hour; VARIANT=load, churn or all; SECONDS=60 shortens it
	@$(BIN)/python -m tests.soak --variant $(VARIANT) $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

chart: ## Check the Helm chart: helm lint, and each manifest against the schemas of Kubernetes
	@[ -d .venv-chart ] || { $(FIND_PYTHON); "$$python" -m venv .venv-chart && \
		.venv-chart/bin/pip install --quiet helm-python-sdk==0.2.* kubernetes-validate==1.37.* pyyaml; }
	@.venv-chart/bin/python examples/team/check_chart.py

team: .venv/made interop ## Let clients use three replicas behind HAProxy, and kill replicas meanwhile; SECONDS=20, ARGS=--bench
	@$(BIN)/python -m tests.team $(if $(SECONDS),--seconds $(SECONDS)) $(ARGS)

site: .venv/made ## Build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@$(BIN)/python docs/check_site.py site

bench: .venv/made ## Measure what mcpd costs, as ratios; ARGS=--write updates benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks.run $(ARGS)

bench-context: .venv/made ## Measure how well tools are found, and what lists and searches cost in tokens
	@$(BIN)/python -m benchmarks.context

bench-peers: .venv/made benchmarks/peers/node_modules/made ## Compare mcpd with mcpc, mcporter and mcp-hub; ARGS=--write updates benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks.peers.compare $(ARGS)

counts: .venv/made ## Count the Python calls and instructions of a call, and compare them with limits
	@$(BIN)/python -m benchmarks.counts --check $(ARGS)

docs: .venv/made ## Generate the control API reference and ctl/api_types.pyi from the types
	@$(BIN)/python docs/make_control_api.py
	@$(BIN)/python docs/make_api_types.py

man: .venv/made ## Generate man/mcpctl.1 and man/mcpd.1 from the command lines
	@$(BIN)/python docs/make_man.py

screenshots: .venv/made ## Take the screenshots of the dashboard in docs/how-to again; needs Chromium
	@$(BIN)/python docs/make_screenshots.py

test-mcp-server: ## Run the test server at http://127.0.0.1:8888/mcp; needs nothing but Python
	@$(FIND_PYTHON); "$$python" examples/testserver --http 127.0.0.1:8888

wheel: .venv/made ## Build dist/*.whl
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: .venv/made ## Pin the newest allowed versions in constraints-dev.txt and tests/interop/requirements-*.txt
	@$(COMPILE) constraints-dev.txt pyproject.toml --group dev
	@for name in mcp1 fastmcp; do \
		$(COMPILE) tests/interop/requirements-$$name.txt tests/interop/requirements-$$name.in; done

clean: ## Remove everything that make has made
	rm -rf .venv .venv-* .npm .everything dist site htmlcov .coverage* tests/conformance/npm/node_modules $(CLIENTS)/node_modules \
		benchmarks/peers/node_modules

# ── Environments ─────────────────────────────────────────────────────────────────────────────────────────

# A shell command that sets $python. Each candidate is run: version managers put names on PATH that start nothing.
FIND_PYTHON := python=; for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
	"$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && python=$$candidate && break; \
	done; [ -n "$$python" ] || { \
	echo "mcpd needs Python 3.11 or newer, and none is on PATH. Install one, or name one: make PYTHON=/path/to/python" >&2; \
	exit 1; }

PIP := python -m pip install -qq --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 \
	--custom-compile-command 'make lock' --output-file
CONSTRAINTS ?= constraints-dev.txt
# `make install-dev CONSTRAINTS=/dev/null` takes the newest versions instead of the pinned ones.

# PYTHON=/path/to/python chooses the interpreter. pip supports [dependency-groups] since 25.1. `rm` removes an
# environment that is a symbolic link; `venv --clear` would empty the directory that it points to.
.venv/made: pyproject.toml constraints-dev.txt
	@$(FIND_PYTHON); \
	echo "Making .venv with $$("$$python" --version). This takes half a minute, once."; \
	echo "1 of 3: an empty environment"; \
	rm -rf .venv; "$$python" -m venv .venv || { \
		echo "$$python cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 1; }
	@echo "2 of 3: pip and the build tools"
	@$(BIN)/$(PIP) --constraint $(CONSTRAINTS) --upgrade 'pip>=25.1'
	@$(BIN)/$(PIP) --constraint $(CONSTRAINTS) --group build
	@echo "3 of 3: mcpd, and the tools for its tests (about 70 packages)"
	@$(BIN)/$(PIP) --constraint $(CONSTRAINTS) --no-build-isolation --editable . --group dev
	@touch $@

.venv-demo/made: pyproject.toml constraints-dev.txt
	@$(FIND_PYTHON); \
	echo "Installing mcpd and three servers into .venv-demo, once."; \
	rm -rf .venv-demo; "$$python" -m venv .venv-demo || { \
		echo "$$python cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 1; }
	@.venv-demo/bin/$(PIP) --no-compile --constraint $(CONSTRAINTS) --editable . mcp mcp-server-time mcp-server-git
	@.venv-demo/bin/python -m pip uninstall --quiet --quiet --yes setuptools pip
	@touch $@

.venv-lowest/made: pyproject.toml | .venv/made
	@echo "Making .venv-lowest."
	@rm -rf .venv-lowest && $(BIN)/python -m venv .venv-lowest
	@$(BIN)/uv pip install --quiet --python .venv-lowest --resolution lowest-direct --editable . --group test
	@touch $@

.venv-system/made: pyproject.toml constraints-dev.txt | .venv/made
	@echo "Making .venv-system with $$(/usr/bin/python3 --version)."
	@rm -rf .venv-system && /usr/bin/python3 -m venv --without-pip .venv-system
	@$(BIN)/uv pip install --quiet --python .venv-system --constraints $(CONSTRAINTS) --editable . --group test
	@touch $@

# Clients and servers of other projects that cannot live in .venv: they need another generation of the same SDK, or
# many packages that nothing else here needs. The ones from npm are installed only if node is.
interop: .venv-mcp1/made .venv-fastmcp/made $(EVERYTHING)
	@if cmp -s $(CLIENTS)/package-lock.json $(CLIENTS)/node_modules/made; then :; \
	elif ! command -v node >/dev/null || ! command -v npm >/dev/null; then \
		echo "No node and npm here: tests with clients written in JavaScript will be skipped."; \
	else \
		echo "Installing MCP clients from npm into $(CLIENTS), once."; \
		if npm ci --prefix $(CLIENTS) --ignore-scripts --no-audit --no-fund --loglevel=error; \
		then cp $(CLIENTS)/package-lock.json $(CLIENTS)/node_modules/made; \
		else echo "npm could not install them; their tests will be skipped." >&2; fi; \
	fi

.venv-%/made: tests/interop/requirements-%.txt | .venv/made
	@echo "Making .venv-$*, once."
	@rm -rf .venv-$* && $(BIN)/python -m venv .venv-$*
	@.venv-$*/bin/$(PIP) --requirement $<
	@touch $@

# The everything-server of the Python SDK and its client for the conformance suite, which only the source package
# contains: in the version of the environment. .venv and .venv-mcp1 have one generation of the SDK each.
.everything/%/made: %/made
	@echo "Fetching the everything-server of the Python SDK for $* into .everything, once."
	@rm -rf $(@D) && mkdir -p $(@D)
	@version=$$($*/bin/python -c 'import importlib.metadata; print(importlib.metadata.version("mcp"))') && \
		$(BIN)/python -m pip download -qq --disable-pip-version-check --no-deps --no-binary mcp --dest $(@D) "mcp==$$version"
	@tar -xzf $(@D)/mcp-*.tar.gz -C $(@D) --strip-components=4 --wildcards \
		'*/examples/servers/everything-server/*' '*/.github/actions/conformance/client.py'
	@rm $(@D)/mcp-*.tar.gz && touch $@

# Real servers from npm, if node is installed. Everything works without them; the demo shows less.
npm:
	@if cmp -s tests/servers/npm/package-lock.json .npm/package-lock.json && [ -e .npm/made ]; then :; \
	elif ! command -v node >/dev/null || ! command -v npm >/dev/null; then \
		echo "No node and npm here: servers written in JavaScript will be left out."; \
	else \
		echo "Installing servers from npm into .npm, once."; \
		mkdir -p .npm && cp tests/servers/npm/package*.json .npm/ && rm -f .npm/made && \
		if npm ci --prefix .npm --no-audit --no-fund --loglevel=error >.npm/log 2>&1; then touch .npm/made; \
		else echo "npm could not install them (see .npm/log); they will be left out." >&2; fi; \
	fi

tests/conformance/npm/node_modules/made: tests/conformance/npm/package-lock.json
	@echo "Installing the conformance suite from npm, once."
	@npm ci --prefix tests/conformance/npm --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

benchmarks/peers/node_modules/made: benchmarks/peers/package-lock.json
	@echo "Installing other connection managers from npm into benchmarks/peers, once."
	@npm ci --prefix benchmarks/peers --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@
