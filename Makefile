# draftproof: `make demo` and `make test` do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RAY_VENV := .venv-ray
STAMP := $(VENV)/.installed
MODEL := $(VENV)/.model
# Compiled modules are kept even where the environment forbids it: the set-up leaves compiling to the first import,
# and the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE =
PYTEST := $(BIN)/python -m pytest
# Some tests wait for services: three processes keep two cores busy. A file stays with one of them, which makes its
# fixtures once; files start in their order, for the last ones are short.
TEST_PROCESSES ?= 3
# Every verdict is a good end of a demo (0 adopt, 10 limited, 20 defer, 30 inconclusive); a fault or an invalid run is not.
VERDICT_IS_FINE = code=$$?; case $$code in 0|10|20|30) ;; *) echo "make takes no option of it; to give one: $(BIN)/draftproof $(1) --wait-for-quiet" >&2; exit $$code ;; esac

.DEFAULT_GOAL := help
.PHONY: help demo demo-quick test test-all test-ray check format docs site bench bench-engine bench-pacing bench-client bench-records study study-queues drafters clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(MODEL) ## qualify n-gram lookup on a real model: minutes on two cores, ends with a verdict
	@$(BIN)/draftproof demo; $(call VERDICT_IS_FINE,demo)

demo-quick: $(MODEL) ## the same path on a handful of prompts; too few for a verdict
	@$(BIN)/draftproof demo --quick; $(call VERDICT_IS_FINE,demo --quick)

test: $(MODEL) ## the fast suite
	$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder

test-all: $(MODEL) ## everything, long forms and the real model included
	$(PYTEST) -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder -m ""

test-ray: ## the load workers on a Ray cluster of three nodes, in an environment of their own: ten minutes
	@test -x $(RAY_VENV)/bin/python || $(PYTHON) -m venv $(RAY_VENV)
	@$(RAY_VENV)/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[ray,dev]'
	$(RAY_VENV)/bin/python -m pytest -n 0 -m "" tests/integration/test_ray_cluster.py

check: $(STAMP) ## format, lint, types, import contracts, generated docs
	scripts/check

format: $(STAMP) ## apply the formatter and safe fixes
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: $(STAMP) ## write the plan reference from the schema
	$(BIN)/python scripts/plan_reference.py --write

site: docs ## the documentation as a site in site/, with the plan reference written anew; a broken link fails
	@$(BIN)/python -c 'import material' 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(MODEL) ## step cost of the engine by batch and draft length; writes bench/steps.json
	$(BIN)/python bench/steps.py

bench-pacing: $(STAMP) ## how exactly an open loop keeps its due times, and what 10,000 streams cost; writes bench/pacing.json
	$(BIN)/python bench/pacing.py

study: $(STAMP) ## how often the verdict is right in worlds of known truth; writes bench/study.json, minutes on two cores
	$(BIN)/python bench/study.py

bench-engine: $(MODEL) ## the engine beside transformers, every family, floors and memory; writes bench/engine.json
	$(BIN)/python bench/engine.py $(if $(VLLM_PYTHON),--vllm-python $(VLLM_PYTHON))

bench-client: $(MODEL) ## the load client beside its peers, VLLM_PYTHON=, GUIDELLM=, AIPERF=; writes bench/client.json
	$(BIN)/python bench/client.py $(if $(VLLM_PYTHON),--vllm-python $(VLLM_PYTHON)) $(if $(GUIDELLM),--guidellm $(GUIDELLM)) $(if $(AIPERF),--aiperf $(AIPERF))

study-queues: $(STAMP) ## how near a turn's waits come to endless traffic, how often a knee's bracket holds it; writes bench/queues.json
	$(BIN)/python bench/queues.py

bench-records: $(STAMP) ## a run of a million records: journal, tables, verdict, report; writes bench/records.json
	$(BIN)/python bench/records.py

drafters: $(MODEL) ## train the drafters that ship, from the target's own answers: more than an hour on two cores
	$(BIN)/python scripts/train_drafters.py

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: name a newer one with make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "Python's venv module is incomplete: install it (Debian: apt-get install python3-venv) and run make again"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --no-compile --disable-pip-version-check -c constraints.txt -e drafters -e '.[engine,handover,dev]' || { echo "Set-up failed: pip could not install the packages above; is the package index reachable?"; exit 1; }
	@touch $(STAMP)

# The demo's model, fetched and checked once; later starts only check it.
$(MODEL): $(STAMP)
	$(BIN)/draftproof fetch
	@touch $(MODEL)

clean: ## remove the environment and caches, keep runs
	rm -rf $(VENV) $(RAY_VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
