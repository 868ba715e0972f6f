# SPDX-License-Identifier: Apache-2.0
# Finds the C++ compiler: the command in CXX, which may bring flags, or g++. For 64-bit Arm it is in
# CROSS_CXX, and for WebAssembly in EMXX.
set(choice CXX g++ g++)
if(CMAKE_SYSTEM_NAME STREQUAL Generic)
  set(choice EMXX em++ emscripten)
  set(EMSCRIPTEN_PROGRAM ON)
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL aarch64)
  set(choice CROSS_CXX aarch64-linux-gnu-g++ g++-aarch64-linux-gnu)
endif()
list(POP_FRONT choice variable compiler package)
if(NOT "$ENV{${variable}}" STREQUAL "")
  set(compiler "$ENV{${variable}}")
endif()
separate_arguments(command UNIX_COMMAND "${compiler}")
list(GET command 0 program)
find_program(found "${program}" NO_CACHE)
if(NOT found)
  message(FATAL_ERROR "gluon_roi: the C++ compiler '${compiler}' was not found; run "
          "'apt-get install ${package}', or set ${variable} to a compiler with C++17")
endif()
# CMake itself reads CXX only once; a new one is heeded here. -DCMAKE_CXX_COMPILER=... comes first.
if(NOT CMAKE_CXX_COMPILER OR (GLUON_ROI_COMPILER AND NOT GLUON_ROI_COMPILER STREQUAL compiler))
  file(REMOVE_RECURSE "${CMAKE_BINARY_DIR}/CMakeFiles/${CMAKE_VERSION}")
  set(CMAKE_CXX_COMPILER "${command}" CACHE STRING "The C++ compiler" FORCE)
  set(GLUON_ROI_COMPILER "${compiler}" CACHE INTERNAL "")
endif()
