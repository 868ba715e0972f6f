// SPDX-License-Identifier: Apache-2.0
// The error type of the library, and the function that throws it.
#pragma once
#include <sstream>
#include <stdexcept>
#include <string>

#include "../include/gluon_roi.h"

namespace gluon_roi {

// Leaves the library as an MXNetError or as gluon_roi_last_error().
struct Error : std::runtime_error {
  explicit Error(const std::string& message, int error_code = GLUON_ROI_INVALID)
      : std::runtime_error(message), code(error_code) {}
  int code;
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
