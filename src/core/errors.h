// SPDX-License-Identifier: Apache-2.0
// Error types of the library, and the function that throws them.
#pragma once
#include <cstddef>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>

#include "../include/gluon_roi/common.h"

namespace gluon_roi {

// Callers receive the message as an MXNetError or through gluon_roi_last_error().
struct Error : std::runtime_error {
  explicit Error(const std::string& message, int error_code = GLUON_ROI_INVALID)
      : std::runtime_error(message), code(error_code) {}
  int code;
};

// An allocation of `bytes` failed. The operator converts it to an Error that names the operator.
struct NoMemory : std::bad_alloc {
  explicit NoMemory(size_t number) : bytes(number) {}
  const char* what() const noexcept override { return "there is not enough memory"; }
  size_t bytes;
};

// "PSROIPool: data has 27 channels, expected output_dim * 3 * 3 = 36"
template <class... Parts>
[[noreturn]] void fail(const char* op, const Parts&... parts) {
  std::ostringstream message;
  message << op << ": ";
  (message << ... << parts);
  throw Error(message.str());
}

}  // namespace gluon_roi
