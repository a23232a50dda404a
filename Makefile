# `make demo` and `make test` need nothing but a Debian with Python 3.11 or later: they set up the rest themselves.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
BASE := $(VENV)/.base
READY := $(VENV)/.ready
SERVERS := $(VENV)/.servers
PEERS := $(VENV)/.peers
TYPES := $(VENV)/.types

.PHONY: help setup demo test test-full fast check format docs bench torture torture-redlock more-servers clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

# The library alone, which is all that the demo needs.
$(BASE): pyproject.toml scripts/setup
	PYTHON=$(PYTHON) sh scripts/setup base
	@touch $@

$(READY): pyproject.toml scripts/setup | $(BASE)
	sh scripts/setup packages
	@touch $@

$(SERVERS): scripts/setup scripts/more_servers | $(BASE)
	sh scripts/setup servers
	@touch $@

$(PEERS): pyproject.toml | $(READY)
	$(RUN) -m pip install -q --disable-pip-version-check --group bench
	@touch $@

$(TYPES): pyproject.toml | $(READY)
	$(RUN) -m pip install -q --disable-pip-version-check --group types
	@touch $@

# The packages come by pip and the servers by apt: side by side, because each waits for the network.
setup: $(BASE) ## the virtual environment, the packages and the servers for the tests
	@$(MAKE) --no-print-directory -s -j2 $(READY) $(SERVERS)

demo: $(BASE) ## the main job in under a minute: lost updates, a lock, and a frozen holder that wins, and then is refused
	@$(RUN) examples/demo.py

test: setup ## every promise on every store, on real servers, in about ten minutes
	@$(RUN) scripts/run_tests.py

test-full: setup ## the whole product: every promise, store, topology and flavour; an hour
	@LOCKLINE_FULL=1 $(RUN) scripts/run_tests.py

# Eight at a time on two processors: they wait for ttls more than they work.
fast: $(READY) ## the edit-test loop, under a minute: the core, and the contract in memory
	env -u PYTHONDONTWRITEBYTECODE $(RUN) -m pytest -q -n 8 --dist worksteal -m "not slow and not server" --backend memory \
		tests/core tests/backends tests/contract tests/test_shells.py

check: $(READY) $(TYPES) ## format, lint, types
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/pyright

format: $(READY) ## put the code into its format
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

docs: $(READY) ## the site, in site/
	$(RUN) -m mkdocs build -q --strict

bench: $(READY) $(SERVERS) $(PEERS) ## every benchmark: a table, and JSON in bench/results
	@for bench in $$(ls bench/*.py | grep -v -e report.py -e crowd.py); do echo "== $$bench"; $(RUN) $$bench || exit 1; done

torture: $(READY) $(SERVERS) ## every backend under every fault of its servers, for MINUTES=60 in all; a report in torture.html
	$(RUN) scripts/torture.py --minutes $(or $(MINUTES),60) --html torture.html --json torture.json

torture-redlock: $(READY) $(SERVERS) ## Redlock under live faults, at least 20,000 grants; takes long
	$(RUN) scripts/torture_redlock.py

more-servers: $(BASE) ## fetch Redis 6.2 and 8.0, Valkey 8.1 and etcd 3.5 into .servers, to run the tests on them too
	$(RUN) scripts/more_servers

clean: ## remove what the other targets made
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .servers bench/results dist site
