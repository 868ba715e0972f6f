# SPDX-License-Identifier: Apache-2.0
# CUDA: nvcc of CUDA_HOME or PATH, and the architectures.
if(NOT "$ENV{CUDA_HOME}" STREQUAL "")
  set(only NO_DEFAULT_PATH PATHS "$ENV{CUDA_HOME}/bin")
endif()
find_program(nvcc nvcc NO_CACHE ${only})
choose(CUDA "${nvcc}" "${CMAKE_PLATFORM_INFO_DIR}/CMakeCUDACompiler.cmake")
if(NOT CMAKE_CUDA_COMPILER)
  message(FATAL_ERROR "gluon_roi: GLUON_ROI_CUDA=1, but nvcc was not found; set CUDA_HOME to the "
          "folder of the CUDA toolkit, or GLUON_ROI_CUDA=0")
endif()
execute_process(COMMAND "${CMAKE_CUDA_COMPILER}" --version OUTPUT_VARIABLE text)
if(NOT text MATCHES "release (([0-9]+)[.][0-9]+)")
  message(FATAL_ERROR
    "gluon_roi: '${CMAKE_CUDA_COMPILER} --version' names no release; set GLUON_ROI_CUDA=0")
endif()
set(cuda_version ${CMAKE_MATCH_1})
set(major ${CMAKE_MATCH_2})

# Machine code for what the toolkit still makes, and PTX of the newest for later GPUs.
if(NOT "$ENV{GLUON_ROI_CUDA_ARCHS}" STREQUAL "")
  set(archs "$ENV{GLUON_ROI_CUDA_ARCHS}")
  if(NOT archs MATCHES "^[0-9]+([;, ]+[0-9]+)*$")
    message(FATAL_ERROR "gluon_roi: GLUON_ROI_CUDA_ARCHS: expected a list such as '80;90', got "
            "'${archs}'")
  endif()
  string(REGEX REPLACE "[;, ]+" ";" archs "${archs}")
elseif(CMAKE_CUDA_ARCHITECTURES)
  set(archs ${CMAKE_CUDA_ARCHITECTURES})
elseif(major GREATER 12)
  set(archs 75 80 86 89 90)
elseif(major EQUAL 12)
  set(archs 60 70 75 80 86 89 90)
else()
  set(archs 60 70 75 80 86)
endif()
string(REGEX REPLACE "[^0-9;]" "" archs "${archs}")
list(SORT archs COMPARE NATURAL)
list(TRANSFORM archs APPEND -real OUTPUT_VARIABLE real)
string(REGEX REPLACE "-real$" "" CMAKE_CUDA_ARCHITECTURES "${real}")
message(STATUS "CUDA ${cuda_version}, architectures ${archs} and PTX of the last")

set(CMAKE_CUDA_STANDARD 17)
if(CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER "${CCACHE}")
endif()
# The static runtime, so that the library loads without a driver.
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
# ptxas lists the registers of each kernel for tests/src/test_cuda_build.py.
add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-fmad=false;-Xptxas=-v\
;-Xcompiler=-Wall,-Wshadow,-ffp-contract=off>")
