// SPDX-License-Identifier: Apache-2.0
// Which channel of the maps a bin reads: its own score map for position-sensitive operators.
#pragma once
#include "../contract.h"

namespace gluon_roi {

// The bins [p_begin, p_end) x [q_begin, q_end).
struct BinBlock {
  int32_t p_begin, p_end, q_begin, q_end;
};

// C = output_dim * group_height * group_width score maps; bin (p, q) of output channel c reads map
// (c * group_height + gh) * group_width + gw.
struct ChannelLayout {
  int64_t output_dim;
  int32_t group_height, group_width;
  int32_t pooled_height, pooled_width;

  // A group size of 0 means the pooled size, and an output_dim of 0 is derived from `channels`.
  // Throws if `channels` is known and is not output_dim * group_height * group_width.
  static ChannelLayout make(const char* op, int64_t output_dim, int32_t group_height,
                            int32_t group_width, int32_t pooled_height, int32_t pooled_width,
                            int64_t channels) {
    ChannelLayout layout{output_dim, group_height > 0 ? group_height : pooled_height,
                         group_width > 0 ? group_width : pooled_width, pooled_height, pooled_width};
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
      fail(op, "data has ", channels, " channels, expected output_dim * ", layout.group_height,
           " * ", layout.group_width, " = ", expected);
    }
    return layout;
  }

  // The layout of an operator that is not position-sensitive: output channel c reads channel c.
  static ChannelLayout ungrouped(int64_t channels, int32_t pooled_height, int32_t pooled_width) {
    return ChannelLayout{channels, 1, 1, pooled_height, pooled_width};
  }

  HOST_DEVICE static int32_t group_of(int bin, int groups, int pooled) {
    const int32_t group = static_cast<int32_t>(static_cast<int64_t>(bin) * groups / pooled);
    return group < groups ? group : groups - 1;
  }
  // The inverse of group_of(): the bins of a group are [first_bin(group), first_bin(group + 1)).
  HOST_DEVICE static int32_t first_bin(int32_t group, int32_t groups, int32_t pooled) {
    return static_cast<int32_t>(div_up(static_cast<int64_t>(group) * pooled, groups));
  }
  // The bins of group (y, x) in a grid of high x wide groups.
  HOST_DEVICE BinBlock bins_of(int32_t y, int32_t x, int32_t high, int32_t wide) const {
    return {first_bin(y, high, pooled_height), first_bin(y + 1, high, pooled_height),
            first_bin(x, wide, pooled_width), first_bin(x + 1, wide, pooled_width)};
  }
  HOST_DEVICE int64_t bins() const { return static_cast<int64_t>(pooled_height) * pooled_width; }
  HOST_DEVICE int64_t channel(int64_t c, int p, int q) const {
    return (c * group_height + group_of(p, group_height, pooled_height)) * group_width +
           group_of(q, group_width, pooled_width);
  }
};

}  // namespace gluon_roi
