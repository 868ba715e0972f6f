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

# CMake itself chooses a compiler only once. Another choice is heeded here, and what CMake wrote of
# the former goes: ARGN. -DCMAKE_CXX_COMPILER=... comes first.
function(choose language choice)
  set(chosen GLUON_ROI_CHOSEN_${language})
  if(NOT CMAKE_${language}_COMPILER OR (${chosen} AND NOT ${chosen} STREQUAL choice))
    file(REMOVE_RECURSE ${ARGN})
    set(CMAKE_${language}_COMPILER "${choice}" CACHE STRING "The compiler" FORCE)
    set(${chosen} "${choice}" CACHE INTERNAL "")
  endif()
endfunction()
choose(CXX "${command}" "${CMAKE_BINARY_DIR}/CMakeFiles/${CMAKE_VERSION}")
