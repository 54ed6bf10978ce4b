# Every target makes the virtual environment first if it is missing or out of date.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-fast test-all test-kills test-images bench lint format edge-binary fuzz audit sbom proto docs dashboards render packages clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(READY)  ## train FedAvg and HFMDS-FL on ten devices on this machine, and write hfmds-report/
	$(BIN)/hfmds demo

# Two processes, and each file's tests in one of them: many tests wait more than they compute.
# tests/conftest.py puts slow files first; xdist's own order would run files of few tests last.
PROCESSES ?= 2
# The tests start hundreds of interpreters, which share compiled files.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

test: lint packages  ## every behaviour once, and a sample of each large matrix (12 minutes)
	$(PYTEST)

test-fast: lint  ## tests without programs and servers, for the inner loop (2 minutes)
	$(PYTEST) -m "not integration and not soak"

test-all: lint packages  ## everything: full matrices, soak tests, containers (2 hours)
	$(PYTEST) --full
	$(MAKE) test-images

test-kills: $(READY)  ## kill -9 at every step of every program; docs/testing.md explains the suites
	$(PYTEST) --full tests/kills

BENCHMARKS := $(addprefix coordinator.,round_overhead aggregation_speed check_in_load coordinator_memory recovery) \
	$(addprefix store.,ingest_speed serving_speed) devices.edge_engines simulation.training_speed
bench: $(READY)  ## sizes and times as ratios against a baseline of the same run (FULL=1: hours)
	@for name in $(BENCHMARKS); do \
		echo "== $$name"; $(BIN)/python -m benchmarks.$$name $(if $(FULL),,--quick) || exit 1; done

# Needs root, some minutes and 20 GB. PYTHON_IMAGE=... is the base; without it, one is made of Debian's packages.
test-images: PROGRAMS := podman=podman runc=runc mmdebstrap=mmdebstrap catatonit=catatonit iptables=iptables \
	/usr/lib/podman/netavark=netavark /usr/lib/podman/aardvark-dns=aardvark-dns
test-images: $(READY) packages  ## build the images and run the pods of both overlays, by podman
	$(BIN)/python -m pytest tests/images

# Programs that tests run and no wheel has, each with its Debian package.
PROGRAMS := promtool=prometheus chromium=chromium

packages:  ## install the programs that tests need beyond Python's, where that can be done
	@missing=""; for pair in $(PROGRAMS); do \
		command -v $${pair%%=*} >/dev/null || missing="$$missing $${pair##*=}"; done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $$missing; \
	else \
		echo "The tests need these Debian packages:$$missing; install them: sudo apt-get install$$missing" >&2; exit 2; \
	fi

# FUZZ_TIMES=1000 takes some hours. What it finds is tried first the next time.
fuzz: $(READY)  ## try decoders, calls and pools with fifty times as many inputs as the tests do
	FUZZ_TIMES=$(or $(FUZZ_TIMES),50) $(BIN)/python -m pytest tests/fuzz tests/synthesis_store/test_pool_machine.py --timeout 36000

audit: $(READY)  ## ask whether the installed packages have known holes; ends with 3 if nobody can be asked
	$(BIN)/python packaging/audit.py

sbom: $(READY)  ## write dist/sbom/IMAGE.cdx.json, what is in each image, as CycloneDX has it
	$(BIN)/python packaging/sbom.py

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache > /dev/null || $(BIN)/lint-imports
	$(BIN)/buf lint protos

format: $(READY)  ## bring the sources into shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

edge-binary: $(READY)  ## build dist/hfmds-edge-client, the edge client as one file, without torch
	$(BIN)/pyinstaller --noconfirm --log-level WARN --workpath build/edge packaging/edge_client.spec

proto: $(READY)  ## generate hfmds/v1 from protos/
	$(BIN)/python protos/generate.py

docs: $(READY)  ## write the generated parts of docs/: settings, commands, metrics, errors
	$(BIN)/python -m docs.generate

dashboards: $(READY)  ## write Grafana's dashboards and the operator's rules from k8s/components/monitoring/{sources,rules}
	$(BIN)/python -m k8s.components.monitoring.generate

render:  ## print what k8s/overlays/prod gives; OVERLAY=dev for another
	@kubectl kustomize k8s/overlays/$(or $(OVERLAY),prod)

clean:  ## remove the virtual environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache

# Twice quiet: errors only.
PIP := $(BIN)/python -m pip install -qq --progress-bar off --disable-pip-version-check
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed; $(PYTHON) is older: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@echo "Installing into $(VENV): about 5 GB, mostly torch, a few minutes the first time."
	@echo "1/6 virtual environment"
	@$(PYTHON) -m venv $(VENV) || { \
		echo "The venv module is missing; on Debian: apt-get install python3-venv" >&2; exit 2; }
	@$(PIP) --upgrade pip
	@echo "2/6 what a device needs"
	@$(PIP) --editable '.[edge]'
	@echo "3/6 what the servers need"
	@$(PIP) --editable '.[edge,server]'
	@echo "4/6 torch, the longest step"
	@$(PIP) --editable '.[edge,server,torch]'
	@echo "5/6 the hfmds command"
	@$(PIP) --editable '.[edge,server,torch,cli]'
	@echo "6/6 tools for development and tests"
	@$(PIP) --editable '.[edge,server,torch,cli,dev]'
	@touch $(READY)
