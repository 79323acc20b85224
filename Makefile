# `make` runs the demo, `make test` the tests, `make help` lists the rest. Everything stays inside this folder: the
# virtual environment in .venv, downloads in pip's cache (in .cache where there is no home folder), results in demo-out.
# Needs Python 3.11 or newer with venv, bash, and the network the first time. No compiler, no Java, no root.

PYTHON ?= python3
SHELL := bash
.DEFAULT_GOAL := demo
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONUNBUFFERED := 1
# Without bytecode every worker and each of the hundred programs that the tests start would compile its modules anew.
unexport PYTHONDONTWRITEBYTECODE
ifndef HOME
export HOME := $(CURDIR)/.cache/home
export PIP_CACHE_DIR ?= $(CURDIR)/.cache/pip
endif
# matplotlib, Spark and others look for a place to write; let it be ours.
export MPLCONFIGDIR ?= $(CURDIR)/.cache/matplotlib

PYTEST := $(RUN) -m pytest
# Tests beside each other: two workers more than cores, because many wait for another process. Spark keeps to two of them.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(8, (os.cpu_count() or 1) + 2))')
# In the order of tests/conftest.py, where the longest come first; xdist's own begins with the groups that have most tests.
BESIDE := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
SOURCES := $(wildcard src tests tools bench examples demo deploy fuzz .ci)

# Of `make test-proof`: how many seeds, and from which one on.
SEEDS ?= 100
FIRST ?= 1

# `make demo` and all others install the releases that locks/ names, each file compared with its hash; where the package index lacks one,
# they say so and take what pyproject.toml allows. LOCKED=1: nothing else; LOCKED=0: none of them.
LOCKED_VENV := .cache/locked
export LOCKED

# What decides whether an environment is still right. The compiled modules are built while installing.
NATIVE := src/metaq/net src/metaq/store/log src/metaq/wire/hot
INSTALLED_FROM := pyproject.toml setup.py $(wildcard locks/*.txt) $(sort $(wildcard $(NATIVE:%=%/_*.pyx) $(NATIVE:%=%/_*.h) $(NATIVE:%=%/native/*.pxi)))

##@ Run

demo: $(VENV)/has-demo  ## send 336 776 real flights, kill the broker half way, archive them with Spark, show the result (the main job)
	$(RUN) -m demo

cluster: $(VENV)/has-base  ## two masters without slaves, with slaves, and with synchronous ones (conf/): a kill under load, and what it cost
	$(RUN) -m demo.cluster $(ARGS)

doctor: $(VENV)/has-base  ## install broker, client and command line, and say what this machine and environment offer
	$(BIN)/metaq doctor

##@ Check

quick: $(VENV)/has-test  ## under a minute: style, types, layers, and the tests of what differs from the last commit. While you work: this one
	@$(RUN) .ci/main.py quick

test: $(VENV)/has-test  ## the tests that are quick: eight minutes on two cores, of which the first time one is for installing
	$(PYTEST) $(BESIDE) -m "not all and not slow" --ignore=tests/interop --ignore=tests/bench $(ARGS)

test-slow: $(VENV)/has-test  ## those that start several processes, kill them, run Spark, examples or pages: as long again
	$(PYTEST) $(BESIDE) -m "slow and not all" --ignore=tests/interop --ignore=tests/bench $(ARGS)

test-pythons: $(VENV)/has-test  ## `make test` on each other Python 3.11 to 3.14 that is here: on PATH, of pyenv, of uv; 2 GB in .cache for each
	$(RUN) -m tools.pythons $(ARGS)

test-interop: $(VENV)/has-test  ## foreign clients, brokers and databases against ours; those that need a JDK and Maven skip without
	$(PYTEST) tests/interop -n 3 --dist loadgroup -m "not all" $(ARGS)

test-all: $(VENV)/has-test  ## every test, also the ones that take long or install foreign servers
	METAQ_FRESH_CLONE=test METAQ_REPEATS=all $(PYTEST) $(BESIDE) $(ARGS)

test-plain: $(VENV)/has-test  ## the tests of formats and store with the pure-Python fallback of the compiled extension
	METAQ_HOT=0 $(PYTEST) $(BESIDE) $(wildcard tests/wire tests/store tests/servers/remoting/test_signed.py tests/servers/remoting/test_transaction_fast_path.py tests/servers/remoting/test_delay_fast_path.py) tests/system/test_first_whole.py $(ARGS)

test-sanitized: $(VENV)/has-test  ## the compiled modules under ASAN and UBSAN: fuzzers, their own tests, paths, crashes; needs gcc, ARGS="--rounds 9999" more
	$(RUN) -m tests.sanitized $(ARGS)

test-long: $(VENV)/has-test  ## tests that take long for what they show: seeds of the crash simulation, the wheel, the demo
	$(PYTEST) -m long $(ARGS)

test-spark: $(VENV)/has-test  ## the long tests of the Spark connector, one after the other: executors, clusters, Connect
	$(PYTEST) tests/spark tests/pipelines tests/docs -m spark_all $(ARGS)

test-proof: $(VENV)/has-test  ## SEEDS=100: as often kill driver, workers and broker through a million messages, and compare
	$(RUN) -m tests.spark.proof $(FIRST) $$(($(FIRST) + $(SEEDS) - 1)) $(ARGS)

fuzz: $(VENV)/has-fuzz  ## a minute of fuzzing for each parser and server, guided by coverage; ARGS="sql --seconds 600" one, ARGS=--list names them
	$(RUN) -m fuzz $(or $(ARGS),all --seconds 60)

verify-locked:  ## install what locks/ names into an environment of its own, with every hash checked, and see that it is enough: 1.8 GB for a while
	rm -rf $(LOCKED_VENV)
	$(PYTHON) -m venv $(LOCKED_VENV)
	$(LOCKED_VENV)/bin/python -m pip install -q --require-hashes -r locks/build.txt
	$(LOCKED_VENV)/bin/python -m pip install -q --require-hashes --no-build-isolation -r locks/all.txt
	METAQ_BUILD_HOT=0 $(LOCKED_VENV)/bin/python -m pip install -q --no-deps --no-build-isolation -e .
	$(LOCKED_VENV)/bin/python -m pip check
	rm -rf $(LOCKED_VENV)

audit: $(VENV)/has-audit  ## known faults of the packages in locks/; says so and passes where there is no list of them to be had
	$(RUN) -m tools.audit locks/all.txt

nightly: $(VENV)/has-test  ## everything, with more seeds and rounds, whatever fails in between; holds what steps of CI open against their inputs: hours
	@$(RUN) .ci/main.py nightly

lint: $(VENV)/has-lint  ## style
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

format: $(VENV)/has-lint  ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

types: $(VENV)/has-lint  ## mypy --strict over the sources, the examples and what runs CI
	$(BIN)/mypy $(wildcard src examples .ci)

bench: $(VENV)/has-test  ## measure every figure that is promised, beside Redis, NATS and Kafka, and draw them: an hour, ARGS="--rows push-1k" some minutes
	$(RUN) bench/run.py $(ARGS)

bench-small: $(VENV)/has-test  ## every benchmark with small input, to see that it still runs
	$(PYTEST) tests/bench -n 2 --dist worksteal $(ARGS)

flame: $(VENV)/has-profile  ## draw where the time of a path goes: make flame ROW=send-64x1 (ROW= names them)
	$(RUN) bench/flame.py $(if $(ROW),--row $(ROW),--list) $(ARGS)

##@ Look after

docs: $(VENV)/has-lint  ## write the pages that are made from the code
	$(RUN) -m metaq.app.reference > docs/configuration.md

site: $(VENV)/has-site  ## build the documentation as a site into build/site: open index.html
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build $(ARGS)

site-serve: $(VENV)/has-site  ## the same at http://127.0.0.1:8000, with search, built again after each change
	PATH="$(CURDIR)/$(BIN):$$PATH" NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs serve $(ARGS)

map: $(VENV)/has-lint  ## draw docs/map.svg anew: packages, rooms, sizes, who imports whom
	$(RUN) -m tools.map > docs/map.svg

hot: $(VENV)/has-lint  ## build the compiled extension again, beside its source
	$(RUN) setup.py -q build_ext --inplace

lock: $(VENV)/has-lint  ## write locks/ anew: the newest releases that pyproject.toml allows, with the hashes of all their files
	$(RUN) -m pip install -q uv
	$(RUN) -m tools.lock

wheel: $(VENV)/has-lint  ## build a source distribution and a wheel into dist
	rm -rf dist
	$(RUN) -m build --outdir dist

wheels: $(VENV)/has-release  ## build the source distribution and the wheels of all Pythons and platforms into dist: docs/releasing.md
	rm -rf dist
	$(RUN) -m tools.wheels --out dist $(ARGS)

release: $(VENV)/has-release  ## VERSION=x.y.z KEY=~/.ssh/id_ed25519 make a signed release, ARGS=--dry-run shows it: docs/releasing.md
	$(RUN) -m tools.release $(VERSION) $(if $(KEY),--key $(KEY)) $(ARGS)

clean:  ## remove the environment, caches and results
	rm -rf $(VENV) .cache build dist demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db
	rm -f $(NATIVE:%=%/_*.so) $(patsubst %.pyx,%.c,$(wildcard $(NATIVE:%=%/_*.pyx))) derby.log

help:  ## this list
	@$(PYTHON) -c 'import re; [print("\n" + line[4:] if line.startswith("##@") else "  make {:<12} {}".format(*match.groups())) \
	for line in map(str.rstrip, open("Makefile")) if (match := re.match(r"([a-z-]+):.*?  ## (.*)", line)) or line.startswith("##@")]'

# ---- environments: each is the one before it and more -------------------------------------------------------------

has_PYTHON := import sys, venv; sys.exit(sys.version_info < (3, 11))

$(RUN):
	@$(PYTHON) -c '$(has_PYTHON)' || { echo "MetaQ needs Python 3.11 or newer with its venv module;" \
	  "$(PYTHON) is $$($(PYTHON) -V 2>&1). Name another: make PYTHON=python3.12"; exit 2; }
	@mkdir -p .cache/home
	$(PYTHON) -m venv $(VENV)

# By content, not by time: a checkout of another commit and back installs nothing.
$(VENV)/installed-from: FORCE | $(RUN)
	@now=$$(cat $(INSTALLED_FROM) | sha256sum); [ "$$now" = "$$(cat $@ 2>/dev/null)" ] || echo "$$now" >$@

$(VENV)/has-base: $(RUN) $(VENV)/installed-from
	@echo "== installing the broker, the client and the command line into $(VENV): downloads about 12 MB the first time"
	$(RUN) tools/install.py base
	@touch $@

$(VENV)/has-lint: $(VENV)/has-base
	@echo "== installing the checkers into $(VENV): downloads about 80 MB the first time"
	$(RUN) tools/install.py lint
	@touch $@

$(VENV)/has-demo: $(VENV)/has-base
	@echo "== installing Spark and Java into $(VENV): downloads about 0.7 GB the first time" \
	  "(Spark alone 456 MB), takes 1.8 GB on disk and a few minutes; nothing is installed outside this folder"
	$(RUN) tools/install.py demo
	@touch $@

$(VENV)/has-test: $(VENV)/has-demo
	@echo "== installing the test tools into $(VENV): downloads about 120 MB the first time"
	$(RUN) tools/install.py test
	@touch $@ $(VENV)/has-lint

$(VENV)/has-site: $(VENV)/has-lint
	@echo "== installing MkDocs into $(VENV): downloads about 15 MB the first time"
	$(RUN) -m pip install --progress-bar on 'pymetaq[site]'
	@touch $@

$(VENV)/has-profile: $(VENV)/has-test
	$(RUN) -m pip install --progress-bar on 'pymetaq[profile]'
	@touch $@

$(VENV)/has-release: $(VENV)/has-lint
	$(RUN) -m pip install --progress-bar on 'pymetaq[release]'
	@touch $@

$(VENV)/has-fuzz: $(VENV)/has-test
	$(RUN) -m pip install --progress-bar on 'pymetaq[fuzz]' || echo "== Atheris cannot be had here: inputs are changed blindly"
	@touch $@

$(VENV)/has-audit: $(VENV)/has-base
	$(RUN) -m pip install --progress-bar on 'pymetaq[audit]'
	@touch $@

.PHONY: FORCE demo cluster doctor quick fuzz verify-locked audit lock nightly test test-slow test-pythons test-interop test-all test-plain test-sanitized test-long test-spark test-proof lint format types bench bench-small flame docs site site-serve map hot wheel wheels release clean help
