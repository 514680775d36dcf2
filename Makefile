# Every target sets up its own environment in .venv first; later runs reuse it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help quickstart test slow lint types docs format lock verify audit clean

help:  ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

# One stamp file per set of extras; the lock is a constraints file, so it pins exactly what gets installed.
$(VENV)/.run: pyproject.toml setup.py requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint requirements.lock --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install --quiet --constraint requirements.lock --editable '.[test,lint,docs]'
	touch $@

# A TPU's compiler, in a folder of its own: where there is no TPU, JAX complains at every start if it finds it.
$(VENV)/.tpu: $(VENV)/.dev
	$(PIP) install --quiet --constraint requirements.lock --no-deps --upgrade --target $(VENV)/tpu libtpu \
		|| echo "libtpu cannot be installed here: its tests will be skipped"
	touch $@

quickstart: $(VENV)/.run  ## pretrain on the embedded data and write a report: no download
	$(BIN)/python run_pretrain.py

test: $(VENV)/.dev  ## run the test suite
	$(BIN)/python -m pytest -n 2 -m "not slow"

slow: $(VENV)/.tpu  ## run the long tests: killed and restarted runs, several processes, a TPU's compiler
	PYTHONPATH=$(VENV)/tpu $(BIN)/python -m pytest -n 2 -m slow tests

lint: $(VENV)/.dev  ## check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev  ## check types
	$(BIN)/mypy

docs: $(VENV)/.dev  ## build the documentation into site/: no download
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(VENV)/.dev  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:  ## resolve the newest versions of every dependency into requirements.lock
	rm -rf .lock-venv && $(PYTHON) -m venv .lock-venv
	.lock-venv/bin/python -m pip install --quiet '.[prepare,wandb,gcs,s3,examples,tpu,docs,test,lint]'
	.lock-venv/bin/python -m pip freeze --all --exclude pip --exclude metamask_jax > requirements.lock
	.lock-venv/bin/python -m pip install --quiet --dry-run --ignore-installed --no-deps \
		--report .lock-venv/report.json --requirement requirements.lock
	.lock-venv/bin/python -c 'import json; print(*(p["metadata"]["name"] + "==" + p["metadata"]["version"] + \
		" --hash=sha256:" + p["download_info"]["archive_info"]["hashes"]["sha256"] \
		for p in json.load(open(".lock-venv/report.json"))["install"]), sep="\n")' > requirements.hashes
	rm -rf .lock-venv

# The hashes are in a file of their own: pip takes none in the constraints of an editable installation. They are of the
# files for this platform and this version of Python.
verify: $(VENV)/.run  ## download what the lock names and compare the digests
	$(PIP) download --quiet --no-deps --require-hashes --requirement requirements.hashes --dest $(VENV)/verified
	rm -rf $(VENV)/verified
	@echo "every file is the one that was locked"

audit:  ## ask for known vulnerabilities of the locked versions, where the network allows
	@test -x .audit-venv/bin/pip-audit || { $(PYTHON) -m venv .audit-venv && \
		.audit-venv/bin/python -m pip install --quiet pip-audit; } || \
		{ echo "skipped: pip-audit cannot be installed from here"; rm -rf .audit-venv; exit 0; }
	@test ! -x .audit-venv/bin/pip-audit || $(PYTHON) .ci/audit.py .audit-venv/bin/pip-audit

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) .lock-venv .audit-venv .pytest_cache .mypy_cache .ruff_cache build dist site *.egg-info
