# Each target does its own set-up; the second call is instant.
#
#   make tune       tune BERT-base's feed-forward layer on this machine, and say what is fastest
#   make check      lint, types, and who imports whom
#   make test       the tests, in six to nine minutes on two cores; those of PyTorch where its CPU build is to be had
#   make test-full  all of them, with larger samples
#   make operators  write what is made from the operators: their reference, and the lists of their versions
#   make figures    write the tables of the documentation from benchmarks/results
#   make docs       the documentation as a site, in build/site; a link that leads nowhere is an error

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.plevel-installed
TORCH_STAMP := $(VENV)/.plevel-torch
HOOKS_STAMP := $(VENV)/.plevel-hooks
# The build for processors: the one of the same version on PyPI brings gigabytes of CUDA.
TORCH := torch==2.13.0+cpu
EXTRAS := service,worker,postgres,parquet,plot,onnx,cluster,docs,dev
# Two processes more than there are cores, up to four: a quarter of what tests do is to wait for processes that they
# start. Each takes whole files, as fixtures of a module are shared, in their order, as the longest come first.
# They write bytecode whatever the environment says: hundreds of processes load the same modules.
TEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 ))) --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# The first Python on PATH that is new enough; make PYTHON=… names another.
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help install tune check test test-full operators figures docs clean

help:
	@sed -n '/^# /s/^# *//p;/^$$/q' Makefile

install: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo >&2 "plevel needs Python 3.11 or newer, and none is on PATH:\
	 install one (Debian: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3"; exit 1; }
	@command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || { \
	 echo >&2 "plevel links what it builds with a C compiler, and none is on PATH:\
	 install one (Debian: apt install gcc g++)"; exit 1; }
	@# One whose making was interrupted has a Python without pip.
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV) || { \
	 echo >&2 "$(PYTHON) cannot make a virtual environment (Debian: apt install python3-venv)"; exit 1; }
	@echo "installing into $(VENV), which takes some minutes, most of them to download TVM"
	@# Python compiles what is imported when it first is; all that is installed would take 20 s of processor time.
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@touch $@

tune: $(STAMP)
	$(BIN)/plevel tune dense --input data=float32[128,768] --input weight=float32[3072,768]:const --target cpu

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/circles.py

test: $(STAMP) $(TORCH_STAMP)
	$(TEST)

test-full: $(STAMP) $(TORCH_STAMP) $(HOOKS_STAMP)
	$(TEST) --full

# No error where it cannot be had: its tests are skipped then, and say so.
$(TORCH_STAMP): $(STAMP)
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check --retries 0 --timeout 10 \
	 --extra-index-url https://download.pytorch.org/whl/cpu '$(TORCH)' 2>/dev/null && touch $@ \
	 || echo >&2 "$(TORCH) cannot be installed from here: the tests of tests/torch are skipped"

# Without their dependencies, as Helion's would replace PyTorch.
$(HOOKS_STAMP): $(TORCH_STAMP)
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --disable-pip-version-check --retries 0 --timeout 10 \
	 'triton>=3.8' 'helion>=1.5' 2>/dev/null && touch $@ \
	 || echo >&2 "Triton and Helion cannot be installed from here: the tests of their hooks are skipped"

# BECAUSE: why records of before still hold, where code has changed and no version has.
operators: $(STAMP)
	$(BIN)/python tests/unit/test_version.py --because "$(BECAUSE)"

figures: $(STAMP)
	$(BIN)/python benchmarks/figures.py

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
