# make demo   everything from nothing: environment, build, data, training, evaluation, pictures
# make test   everything from nothing: environment, build, all tests
#
# The environment is .venv here; PYTHON=... chooses the interpreter (3.8 to 3.11).

PYTHON ?= $(shell for p in python3.11 python3.10 python3.9 python3.8 python3 python; do \
	$$p -c 'import sys; sys.exit(not (3, 8) <= sys.version_info < (3, 12))' 2>/dev/null && \
	echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check

.PHONY: demo test test-gpu bench lint build pictures clean

demo: build
	$(BIN)/python -m demo_rfcn demo $(ARGS)

test: build
	$(BIN)/python -m pytest $(ARGS)

# On a machine with a GPU: the kernels through the C interface against PyTorch and torchvision, under
# compute-sanitizer; then, where MXNet sees the GPU, the operators through MXNet. (The ordinary tests
# take their context from one fixture as well: on sm_86 and older `make test` runs them on the GPU.)
test-gpu: build
	tests/gpu/build.sh
	python3 tests/gpu/check_kernels.py
	tests/gpu/sanitize.sh
	$(BIN)/python tests/gpu/check_mxnet.py

bench: build
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(VENV)/lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cc' '*.cu')
	$(BIN)/mypy
	$(BIN)/codespell

# The pictures of README.md and docs/, drawn from the operators' own output.
pictures: build
	$(BIN)/python docs/draw_operators.py

# Compiles what has changed since the last call.
build: $(VENV)/ready
	@$(BIN)/python setup.py -q build_ext --inplace

# mxnet comes first: the build needs its headers.
$(VENV)/ready: setup.py pyproject.toml
	@test -n "$(PYTHON)" || { echo "gluon_roi needs Python 3.8 to 3.11 (MXNet 1.9.1 runs on no \
	other): install one, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) 'setuptools>=64' wheel mxnet==1.9.1 numpy==1.23.5
	$(PIP) --no-build-isolation -e '.[demo,onnx,test]'
	@touch $@

$(VENV)/lint: $(VENV)/ready
	$(PIP) -e '.[lint]' --no-build-isolation
	@touch $@

clean:
	rm -rf build dist *.egg-info $(VENV) gluon_roi/*.so
