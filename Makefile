# SPDX-License-Identifier: Apache-2.0
# make demo   everything from scratch: environment, build, data, training, evaluation, pictures
# make test   everything from scratch: environment, build, the tests of what the package claims
#
# make test-all  the tests of make test, and slow ones (CONTRIBUTING.md lists them)
# make check  the quick half of the tests
# make checks what .ci/run runs: test, lint, pages, cross, wheels; ARGS='-t night': the slow checks
# make matrix the quick half on every Python found, each with its oldest and its newest NumPy
# make sanitize  random hostile calls under ASan, UBSan and TSan; make soak: memory over many calls
# make debug  the library for a debugger, into build/debug/ (docs/reliability.md says how to load it);
#             CMakePresets.json has the other builds
# make new-op NAME=MyOp  the files of a new operator, as stubs (CONTRIBUTING.md)
# make cross  the library for 64-bit Arm, compared with this machine's under qemu-user
# make docs   the site, into build/docs/; make pages: without its explorer, for the checks
# make wheel  an sdist and a wheel for every Python, into dist/; also for 64-bit Arm if its cross
#             compiler is installed. make wheels checks them with one Python, make check-dist with
#             every way to install them
#
# build_tools/noxfile.py has the checks; this file builds what they need.
#
# The environment is .venv, with the newest Python found; PYTHON=... chooses another.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check
# Builds presets, with CMake and Ninja of the environment if the system has none.
PRESETS := $(BIN)/python build_tools/presets.py
NOX := PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/nox -f build_tools/noxfile.py

.PHONY: demo variants test test-all check checks matrix sanitize soak debug wheel wheels check-dist cross test-gpu bench new-op lint analyze pages docs build pictures clean

demo: build
	$(BIN)/python -m demo_rfcn demo $(ARGS)

# Builds that the tests use: two at a time, because the last files of each build leave a core idle.
VARIANTS := debug hostsim
test-all: $(VENV)/runtimes
test-all: VARIANTS += hostsim-asan asan tsan $(shell command -v $${EMXX:-em++} > /dev/null && echo wasm)
variants: build
	@printf '%s\n' $(VARIANTS) | xargs -P 2 -n 1 $(PRESETS)

# Checks test the wheel's library, so that it is compiled once; with ARGS, such as '-t night', the
# library of `make build`.
wheels checks: export GLUON_ROI_VARIANT ?= $(if $(ARGS),,wheel)

# Each check is a target.
test test-all: variants
check lint analyze pages docs: build
wheels check-dist: wheel
lint analyze: $(VENV)/lint
pages docs: $(VENV)/docs
cross: $(VENV)/ready
test test-all check lint analyze pages docs cross wheels check-dist: | $(BIN)/nox
	$(NOX) -s $@ -- $(ARGS)

checks: variants wheel $(VENV)/lint $(VENV)/docs $(if $(ARGS),$(VENV)/runtimes) | $(BIN)/nox
	$(NOX) $(or $(ARGS),-t push)

# For example ARGS='--python 3.14'; '--tags extremes' takes the newest and the oldest Python.
matrix: build | $(BIN)/nox
	$(NOX) -s matrix $(ARGS)

$(BIN)/nox: | $(VENV)/ready
	$(PIP) nox

# For example ARGS='--calls 10000 --seed 2'; --only asan leaves out TSan.
sanitize: $(VENV)/ready
	$(BIN)/python tests/sanitize/run.py $(ARGS)

# For example ARGS='--calls 2000 --only nd threads'.
soak: build
	$(BIN)/python tests/scripts/soak.py $(ARGS)

debug: $(VENV)/ready
	$(PRESETS) debug

# Without CUDA unless GLUON_ROI_CUDA=1 (docs/compat.md). The wheel uses the system's libgomp,
# because MXNet does: a second one in the process would have a second set of threads. If the cross
# compiler is installed, the wheel for 64-bit Arm is made too; its OpenBLAS is a requirement.
# (auditwheel can only choose another processor's platform name itself; make check-dist checks it.)
WHEEL = $(BIN)/python -m build --wheel -o build/packed
REPAIR = PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/auditwheel repair -w dist --only-plat \
	--exclude libgomp.so.1 --exclude libscipy_openblas.so --plat
wheel: $(VENV)/wheel
	rm -rf build/packed build/lib.*
	GLUON_ROI_VARIANT=wheel $(WHEEL) --sdist
	rm -f dist/gluon_roi-*
	$(REPAIR) manylinux_2_28_$$(uname -m) build/packed/*_$$(uname -m).whl
	cp build/packed/*.tar.gz dist/
	if [ $$(uname -m) = x86_64 ] && command -v aarch64-linux-gnu-g++ > /dev/null; then \
		_PYTHON_HOST_PLATFORM=linux-aarch64 GLUON_ROI_VARIANT=arm64-wheel $(WHEEL) && \
		$(REPAIR) auto build/packed/*_aarch64.whl; \
	fi

# On a machine with a GPU: compares the kernels, through the C interface, with PyTorch and
# torchvision, under compute-sanitizer. Then, if MXNet sees the GPU, tests the operators through
# MXNet, with ARGS=--own where MXNet's own kernels do not run (compute capability 9.0 and newer). (The
# ordinary tests take their context from one fixture, so elsewhere `make test` runs them on the GPU.)
test-gpu: build
	$(PRESETS) gpu
	python3 tests/gpu/check_kernels.py
	tests/gpu/sanitize.sh
	$(BIN)/python tests/gpu/check_mxnet.py $(ARGS)

# The files of a new operator as stubs: make new-op NAME=MyOp (CONTRIBUTING.md).
new-op: $(VENV)/ready
	@$(BIN)/python build_tools/new_op.py $(NAME)

bench: build
	$(BIN)/python -m benchmarks $(ARGS)

# The pictures of README.md and docs/, drawn from the operators' own output.
pictures: build
	$(BIN)/python docs/draw_operators.py
	$(BIN)/python docs/draw_rois.py
	$(BIN)/python docs/draw_lessons.py

# Compiles what has changed since the last call.
build: $(VENV)/ready
	@$(BIN)/python setup.py -q build_ext --inplace

# The library is compiled before pip installs the package, because pip -q hides what is compiled.
# MXNet and GluonCV are installed without their requirements: gluon_roi requires the same packages
# without the bounds numpy<2 and graphviz<0.9. They come last, so that pip does not complain.
$(VENV)/ready: setup.py pyproject.toml
	@set -- $${CXX:-g++}; command -v "$$1" > /dev/null || { echo "gluon_roi needs the C++ compiler \
	$$1: run 'apt-get install g++', or set CXX to a compiler with C++17" >&2; exit 1; }
	@test -x $(BIN)/python || { python="$(PYTHON)"; \
		test -n "$$python" || python=$$(build_tools/find_python.sh) || exit 1; \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 8))' || { \
			echo "gluon_roi needs Python 3.8 or newer, not $$("$$python" --version 2>&1)" >&2; exit 1; }; \
		echo "$$python -m venv $(VENV)"; "$$python" -m venv $(VENV); }
	$(PIP) 'setuptools>=70.1' $$($(PRESETS) --requirements)
	$(BIN)/python setup.py -q build_ext --inplace
	$(PIP) --no-build-isolation -e '.[demo,onnx,test]'
	$(PIP) --no-deps mxnet==1.9.1 gluoncv==0.10.5
	@touch $@

$(VENV)/lint $(VENV)/wheel $(VENV)/docs $(VENV)/runtimes: $(VENV)/ready
	$(PIP) -e '.[$(@F)]' --no-build-isolation
	@touch $@

clean:
	rm -rf build dist *.egg-info $(VENV) gluon_roi/*.so gluon_roi/cmake gluon_roi/include
