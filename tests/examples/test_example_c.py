# SPDX-License-Identifier: Apache-2.0
"""examples/c, and the code on docs/c.md and docs/deploy.md."""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import presets
import pytest

import gluon_roi

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/c.md").read_text()
DEPLOY = (ROOT / "docs/deploy.md").read_text()
ENVIRONMENT = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def block(begin, page=PAGE):
    """The block of code of the page that begins so."""
    found = re.search(rf"^```.+\n({begin}(.*\n)*?)```", page, re.M)
    assert found is not None
    return found[1].strip()


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """The folder in which the commands of both pages have built the examples."""
    if shutil.which("cc") is None:
        pytest.skip("a C compiler is not installed")
    folder = tmp_path_factory.mktemp("examples") / "build"
    find, compile_ = block("cmake").split("\n")[:2]
    assert block("cmake -S examples/c ", DEPLOY).split("\n")[:2] == [find, compile_]
    # Not a Python that CMake finds elsewhere.
    for line in (f"{find} -DPython3_EXECUTABLE={sys.executable}", compile_):
        line = line.replace("examples/c", str(ROOT / "examples/c"))
        run("sh", "-c", line.replace("build/example", str(folder)), env=ENVIRONMENT)
    return folder


def test_the_commands_of_the_page(build):
    """The project finds the installed header and library; the program prints what the page says."""
    program = block("cmake").split("\n")[-1]
    shown = block("14 16 26 28").split("\n")
    printed = run(program.replace("build/example", str(build)).strip())
    assert printed.splitlines() == [line.strip() for line in shown]
    if shutil.which("c++") is not None:
        shown = block("3.5 5.5").splitlines()
        assert [line.strip() for line in run(build / "pool_cc").splitlines()] == shown
    assert block("#if GLUON_ROI_VERSION") in (ROOT / "examples/c/pool.cc").read_text()


def test_installation_without_python(tmp_path):
    """`cmake --install` gives C users a header, the library and its CMake files."""
    if shutil.which("cc") is None:
        pytest.skip("a C compiler is not installed")
    folder, cmake = presets.build(presets.packaged(), target="gluon_roi"), presets.find("cmake")
    run(cmake, "--install", folder, "--component", "c", "--prefix", tmp_path / "usr")
    example = [ROOT / "examples/c", "-B", tmp_path / "build"]
    run(cmake, "-S", *example, f"-DCMAKE_PREFIX_PATH={tmp_path / 'usr'}")
    run(cmake, "--build", tmp_path / "build", "--target", "pool")
    assert run(tmp_path / "build/pool").startswith("14 16 26 28\n")


def save_detector(prefix, pixels):
    """Save a switched detector, and return its ids, scores and boxes of an image, (rows, 6)."""
    S = mx.sym
    height, width = pixels.shape[:2]
    im_info = S.concat(*(S.full((1, 1), size) for size in (height, width, 1)), dim=1)
    features = S.var("data")
    for name in ("first", "second"):  # the second is one for Winograd's algorithm
        features = S.Convolution(features, kernel=(3, 3), pad=(1, 1), num_filter=128, name=name)
        features = S.relu(features)
    maps = S.Convolution(features, kernel=(8, 8), stride=(8, 8), num_filter=6, name="maps")
    offsets = S.slice_axis(maps, axis=1, begin=2, end=6)
    rois = S.contrib.Proposal(
        *(S.slice_axis(maps, axis=1, begin=0, end=2), offsets * 0.1, im_info),
        **{"feature_stride": 8, "scales": (2,), "ratios": (1,), "rpn_post_nms_top_n": 6},
    )
    pooled = S.contrib.ROIAlign(maps, rois, (2, 2), 1 / 8, sample_ratio=2)
    classes = S.softmax(S.FullyConnected(pooled, num_hidden=3, name="classes"))
    columns = S.argmax(classes, axis=1), S.max(classes, axis=1), S.slice_axis(rois, 1, 1, 5)
    symbol = gluon_roi.optimize(S.Group([S.reshape(c, (1, 6, -1)) for c in columns]))
    assert gluon_roi.count(symbol)["_gluon_roi_ROIAlign"] == 1
    mean, std = [123.675, 116.28, 103.53], [58.395, 57.12, 57.375]
    data = ((pixels - mean) / std).transpose(2, 0, 1)[None]
    shapes, _, _ = symbol.infer_shape(data=data.shape)
    random = np.random.RandomState(0)
    arrays = {
        name: mx.nd.array(random.randn(*shape) * 0.1)
        for name, shape in zip(symbol.list_arguments(), shapes)
    }
    arrays["data"] = mx.nd.array(data)
    outputs = symbol.bind(mx.cpu(), arrays).forward()
    del arrays["data"]
    mx.model.save_checkpoint(str(prefix), 0, symbol, arrays, {})
    return np.concatenate([output.asnumpy()[0] for output in outputs], axis=1)


def test_detector_without_python(build, tmp_path):
    """detect.c gives Python's numbers, also of files for inference, and names a missing file."""
    pixels = np.random.RandomState(1).randint(0, 256, (40, 56, 3)).astype(np.uint8)
    (tmp_path / "image.ppm").write_bytes(b"P6\n56 40\n255\n" + pixels.tobytes())
    expected = save_detector(tmp_path / "net", pixels)
    symbol, params = gluon_roi.optimize(
        tmp_path / "net-symbol.json", params=tmp_path / "net-0000.params", inference=True
    )
    assert "_gluon_roi_WinogradConvolution" in symbol.tojson()
    symbol.save(str(tmp_path / "fast-symbol.json"))
    mx.nd.save(str(tmp_path / "fast-0000.params"), params)
    program = block("cmake -S examples/c ", DEPLOY).split("\n")[-1]
    for name, path in (
        ("build/example", build),
        ("LIBGLUON_ROI", gluon_roi.library.PATH),
        ("exported/rfcn", tmp_path / "net"),
        ("image.ppm", tmp_path / "image.ppm"),
    ):
        program = program.replace(name, str(path))
    line = program.split()
    assert len({*expected[:, 0]}) > 1
    for prefix in ("net", "fast"):
        line[2] = str(tmp_path / prefix)
        shown = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout
        found = np.array([row.split() for row in shown.splitlines()], float)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)
    missing = subprocess.run([*line[:-1], "no.ppm"], stderr=subprocess.PIPE, text=True)
    assert missing.returncode == 1 and missing.stderr.startswith("detect: no.ppm: ")


# What pool_cuda.c takes of CUDA's header, for kernels whose memory is the host's.
CUDA_HEADER = """
#include <stdlib.h>
#include <string.h>
typedef int cudaError_t;
typedef void* cudaStream_t;
enum { cudaSuccess, cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
static const char* cudaGetErrorString(cudaError_t error) { (void)error; return "failed"; }
static cudaError_t cudaMalloc(void** memory, size_t size) {
  *memory = aligned_alloc(256, (size + 255) / 256 * 256);
  return *memory == NULL;
}
static cudaError_t cudaFree(void* memory) { free(memory); return cudaSuccess; }
static cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, int kind,
                                   cudaStream_t stream) {
  (void)kind, (void)stream;
  memcpy(to, from, size);
  return cudaSuccess;
}
static cudaError_t cudaStreamCreate(cudaStream_t* stream) { *stream = NULL; return cudaSuccess; }
static cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return stream != NULL; }
static cudaError_t cudaStreamDestroy(cudaStream_t stream) { return stream != NULL; }
"""


def test_the_program_for_a_gpu(tmp_path):
    """It works on simulated kernels, and the page's excerpt is part of it."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    program = ROOT / "examples/c/pool_cuda.c"
    (tmp_path / "cuda_runtime_api.h").write_text(CUDA_HEADER)
    library = presets.build("hostsim") / "libgluon_roi.so"
    options = [f"-I{tmp_path}", f"-I{gluon_roi.include()}", library, f"-Wl,-rpath,{library.parent}"]
    warnings = ["-Wall", "-Wextra", "-Werror"]
    run("gcc", *warnings, program, *options, "-o", tmp_path / "program")
    assert run(tmp_path / "program") == "14 16 26 28\n"
    assert_excerpt(program, "cudaStreamSynchronize")


def assert_excerpt(program, word):
    """The block of the page that has a word consists of lines of a program, indented or not."""
    blocks = re.findall(r"^```c [^\n]*\n(.*?)^```", PAGE, re.M | re.S)
    (code,) = (code for code in blocks if word in code)
    lines = [line.strip() for line in code.splitlines()]
    assert "\n".join(lines) in "\n".join(x.strip() for x in program.read_text().splitlines())


def test_the_library_has_the_version_of_the_header():
    """At run time: the program that compares them ends if they differ."""
    library = ctypes.CDLL(str(gluon_roi.library.PATH))
    library.gluon_roi_build_info.restype = ctypes.c_char_p
    assert json.loads(library.gluon_roi_build_info())["version"] == gluon_roi.__version__
    assert_excerpt(ROOT / "examples/c/pool.c", "strncmp")


def test_a_program_of_another_version_ends(tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    header = Path(gluon_roi.include()) / "gluon_roi.h"
    other = re.sub(r"(VERSION_MINOR) \d+", r"\1 99", header.read_text())
    (tmp_path / "gluon_roi.h").write_text(other)
    library = Path(gluon_roi.library.PATH)
    # The package has the other headers.
    options = [f"-I{tmp_path}", f"-I{header.parent}", library, f"-Wl,-rpath,{library.parent}"]
    run("gcc", ROOT / "examples/c/pool.c", *options, "-o", tmp_path / "program")
    done = subprocess.run([tmp_path / "program"], stderr=subprocess.PIPE, text=True)
    assert (
        done.returncode == 1 and 'expected {"version": "1.99.0"..., got {"version"' in done.stderr
    )


def test_the_call_of_the_page(tmp_path):
    """The excerpt is C and C++, and the page's commands compile it."""
    if shutil.which("gcc") is None or shutil.which("g++") is None:
        pytest.skip("gcc or g++ is not installed")
    program = f"""
        #include <gluon_roi.h>
        #include <stdio.h>
        int main(void) {{
          float data[48] = {{7}}, rois[5] = {{0, 0, 0, 4, 4}}, out[4];
          {block("gluon_roi_roi_pool_params")}
          printf("%g", out[0]);
          return 0;
        }}
    """
    header, library = gluon_roi.include(), str(gluon_roi.library.PATH)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(block("python -c")[len('python -c "') : -1], {})
    assert shown.getvalue().split() == [header, library]
    compile_c = block("gcc")
    # What the substitutions print is known by now.
    compile_c = re.sub(r"\$\(python -c '.*include.*'\)", header, compile_c)
    compile_c = re.sub(r"\$\(python -c '.*'\)", library, compile_c)
    compile_cc = compile_c.replace("gcc", "g++").replace("program.c", "program.cc")
    for file, command in (("program.c", compile_c), ("program.cc", compile_cc)):
        (tmp_path / file).write_text(program)
        run("sh", "-c", command, cwd=tmp_path, env=ENVIRONMENT)
        assert run(tmp_path / "program") == "7"
