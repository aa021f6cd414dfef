# make demo   sets up .venv, builds, trains the digits example with nn.Linear and with TiledLinear
# make test   sets up .venv, builds, runs all tests
# make wheel  a wheel and a source distribution in dist/; for several torches: TORCHES="2.13.0 2.15.0"
# make help   lists the rest
#
# The virtual environment gets a torch without CUDA, so nothing here downloads gigabytes. To use an environment that has
# torch already, for example one with CUDA or ROCm:   make VENV= PYTHON=/path/to/its/bin/python build test
PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0+cpu
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
PYTEST_FLAGS ?=
CASES ?= 100000
SEED ?= $(shell date +%Y%m%d)
DEVICE ?= cpu
# Versions of torch that a wheel is for; none: the installed one.
TORCHES ?=
# A test takes up to 3 GB, where nvcc is found.
PYTEST_PROCESSES ?= $(shell n=$$(nproc 2>/dev/null || echo 2); echo $$((n < 8 ? n : 8)))

VENV_PYTHON := $(if $(VENV),$(VENV)/bin/python,$(PYTHON))
VENV_STAMP := $(if $(VENV),$(VENV)/.torch_is_installed)
BUILD_STAMP := $(if $(VENV),$(VENV),build)/.is_built
TORCH_FOLDERS := $(TORCHES:%=$(CURDIR)/build/torches/%/torch)
empty :=
SOURCES := setup.py tools/gpu_objects.py pyproject.toml $(shell find csrc -name '*.cpp' -o -name '*.cu' -o -name '*.h')
PIP := $(VENV_PYTHON) -m pip install --disable-pip-version-check --progress-bar off

.PHONY: build demo test test-ecosystem fuzz bench wheel check format clean help
.DELETE_ON_ERROR:

build: $(BUILD_STAMP)

# Only builds for the CPU carry "+cpu" in their version, and none of them is on PyPI: what pip is configured with (a mirror,
# a folder of wheels) is asked first and answers at once, then the index of PyTorch itself.
$(VENV)/.torch_is_installed:
	$(PYTHON) -m venv $(VENV) || { echo "make: needs Python >= 3.10 with venv (Debian: apt install python3-venv)"; exit 1; }
	$(PIP) -q 'setuptools>=77'
	$(PIP) '$(TORCH)' 2>/dev/null || $(PIP) '$(TORCH)' --extra-index-url $(TORCH_INDEX)
	touch $@

$(BUILD_STAMP): $(SOURCES) | $(VENV_STAMP)
	@echo "building torch_tiledmm, 2 to 4 minutes on 2 cores without a GPU"
	$(PIP) -q --no-build-isolation -e '.[bench,demo,test]'
	$(VENV_PYTHON) -m torch_tiledmm info
	mkdir -p $(@D) && touch $@

demo: build
	$(VENV_PYTHON) examples/train_digits.py

test: build
	$(VENV_PYTHON) -m pytest -n $(PYTEST_PROCESSES) --dist worksteal $(PYTEST_FLAGS)

# With libraries of other projects, which are installed into the environment; torch stays the one that is there.
test-ecosystem: build
	torch=$$($(VENV_PYTHON) -c 'import torch; print(torch.__version__)') && \
	  $(PIP) -q "torch==$$torch" -r tests/ecosystem/requirements.txt
	$(VENV_PYTHON) -m pytest tests/ecosystem $(PYTEST_FLAGS)

# About 12 minutes on 2 cores. A failing case is printed with the command that runs it again.
fuzz: build
	$(VENV_PYTHON) -m torch_tiledmm.testing.fuzz --cases $(CASES) --seed $(SEED) --device $(DEVICE)
	$(VENV_PYTHON) -m torch_tiledmm.testing.fuzz_layers --cases 1000 --seed $(SEED) --device $(DEVICE)

bench: build
	$(VENV_PYTHON) -m torch_tiledmm bench

# The kernels once, the operators for each torch. Of a torch, headers and libraries are enough, so that none brings
# gigabytes of others. Kernels for GPUs are in it as in a build: by the first torch, by nvcc or hipcc.
wheel: $(TORCH_FOLDERS) | $(VENV_STAMP)
	$(PIP) -q 'setuptools>=77' build
	TILEDMM_TORCHES='$(subst $(empty) $(empty),:,$(TORCH_FOLDERS))' $(VENV_PYTHON) -m build --no-isolation --sdist --wheel

$(CURDIR)/build/torches/%/torch: | $(VENV_STAMP)
	$(PIP) -q --no-deps --no-compile --upgrade --target $(@D) 'torch==$*'

# Style, types, and README's tables against the committed results.
check: build
	$(PIP) -q ruff==0.14.5 clang-format==21.1.5 mypy==2.4.1
	$(VENV_PYTHON) -m ruff check .
	$(VENV_PYTHON) -m ruff format --check .
	$(dir $(VENV_PYTHON))clang-format --dry-run -Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/*.cpp')
	$(VENV_PYTHON) -m mypy
	$(VENV_PYTHON) benchmarks/readme_table.py --check
	$(VENV_PYTHON) benchmarks/plot_results.py --check

format: build
	$(PIP) -q ruff==0.14.5 clang-format==21.1.5
	$(VENV_PYTHON) -m ruff check --fix .
	$(VENV_PYTHON) -m ruff format .
	$(dir $(VENV_PYTHON))clang-format -i $$(git ls-files 'csrc/*.h' 'csrc/*.cpp' 'csrc/*.cu' 'tests/*.cpp')

clean:
	rm -rf build dist out *.egg-info .pytest_cache .ruff_cache .mypy_cache torch_tiledmm/*.so torch_tiledmm/_build_info.json
	$(if $(VENV),rm -rf $(VENV))

help:
	@echo "make build    virtual environment in $(VENV), libraries"
	@echo "make demo     the main example; plots go to out/"
	@echo "make test     all tests; PYTEST_FLAGS='-k linear' for some"
	@echo "make test-ecosystem   tests with transformers, accelerate, peft, torchao, ONNX: installs them"
	@echo "make fuzz     random cases against the reference; CASES=100000 SEED=1 DEVICE=cuda"
	@echo "make bench    speed against torch and numpy, on this machine"
	@echo "make wheel    wheel and source distribution in dist/; TORCHES='2.13.0 2.15.0' for several torches"
	@echo "make check    style and types; make format repairs style"
	@echo "make clean    removes everything that was made"
