// SPDX-License-Identifier: Apache-2.0
#include "channels.h"

#include "../contract.h"

namespace gluon_roi {

PositionSensitive PositionSensitive::make(const char* op, int64_t output_dim, int32_t group_height,
                                          int32_t group_width, int32_t pooled_height,
                                          int32_t pooled_width, int64_t channels) {
  PositionSensitive layout{output_dim, group_height > 0 ? group_height : pooled_height,
                           group_width > 0 ? group_width : pooled_width, pooled_height,
                           pooled_width};
  const int64_t groups = static_cast<int64_t>(layout.group_height) * layout.group_width;
  int64_t expected = groups;
  if (output_dim > 0 && !multiply_up_to(kMaxElements, output_dim, groups, &expected)) {
    fail(op, "argument output_dim: expected output_dim * ", layout.group_height, " * ",
         layout.group_width, " to be at most ", kMaxElements, ", got ", output_dim);
  }
  if (channels < 0) {
    if (output_dim == 0) layout.output_dim = channels;
  } else if (output_dim == 0) {
    if (channels % groups != 0) {
      fail(op, "data has ", channels, " channels, expected a multiple of ", layout.group_height,
           " * ", layout.group_width, " = ", groups);
    }
    layout.output_dim = channels / groups;
  } else if (channels != expected) {
    fail(op, "data has ", channels, " channels, expected output_dim * ", layout.group_height, " * ",
         layout.group_width, " = ", expected);
  }
  return layout;
}

}  // namespace gluon_roi
