# SPDX-License-Identifier: Apache-2.0
# MXNet's headers and its one source file, which may not be part of this repository.
find_program(GLUON_ROI_PYTHON python3 DOC "Its mxnet package, or else its pip, gives the headers")
set(MXNET "${CMAKE_SOURCE_DIR}/build/mxnet-1.9.1/mxnet")
execute_process(
  COMMAND "${GLUON_ROI_PYTHON}" "${CMAKE_SOURCE_DIR}/build_tools/mxnet_headers.py" "${MXNET}"
  RESULT_VARIABLE failed ERROR_VARIABLE sentence ERROR_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "${sentence}")
endif()
