// SPDX-License-Identifier: Apache-2.0
// What the operators share that copy numbers without a change: rows of numbers, and arrays as rows.
#pragma once
#include <algorithm>
#include <numeric>

#include "../core/any_rank.h"
#include "../core/contract.h"
#include "threads.h"

namespace gluon_roi::cpu {

// A task writes about so many numbers, which fit into the first-level cache.
constexpr int64_t kCopiedByTask = 4096;

// An array as the product of the sizes before an axis, its size, and the product of those behind.
struct AxisSplit {
  int64_t before, size, after;

  AxisSplit(const ArraySizes& sizes, int32_t axis) : size(sizes[axis]) {
    const auto product = [](auto begin, auto end) {
      return std::accumulate(begin, end, int64_t{1}, std::multiplies<int64_t>());
    };
    before = product(sizes.begin(), sizes.begin() + axis);
    after = product(sizes.begin() + axis + 1, sizes.end());
  }
};

// The index of an axis, which counts from the last axis if it is negative. Throws if an array has
// no such axis.
inline int32_t axis_of(const char* op, const char* name, int32_t axis, const ArraySizes& sizes) {
  const auto rank = static_cast<int32_t>(sizes.size());
  if (axis < -rank || axis >= rank) {
    fail(op, "argument ", name, ": expected an axis of data of shape ",
         shape_text(sizes.data(), sizes.size()), ", got ", axis);
  }
  return axis < 0 ? axis + rank : axis;
}

// Rows of the same number of numbers, which begin `step` apart.
template <class T>
struct Rows {
  T* begin;
  int64_t step;
};

template <int64_t count>
void copy_short_rows(Rows<const float> from, int64_t rows, Rows<float> to) {
  for (int64_t row = 0; row < rows; ++row) {
    memcpy(to.begin + row * to.step, from.begin + row * from.step, count * sizeof(float));
  }
}

// Copies rows of `count` numbers.
inline void copy_rows(Rows<const float> from, int64_t rows, int64_t count, Rows<float> to) {
  switch (count) {
    case 1: return copy_short_rows<1>(from, rows, to);
    case 2: return copy_short_rows<2>(from, rows, to);
    case 3: return copy_short_rows<3>(from, rows, to);
    case 4: return copy_short_rows<4>(from, rows, to);
    case 5: return copy_short_rows<5>(from, rows, to);
    case 6: return copy_short_rows<6>(from, rows, to);
    case 7: return copy_short_rows<7>(from, rows, to);
    case 8: return copy_short_rows<8>(from, rows, to);
    default: break;
  }
  for (int64_t row = 0; row < rows; ++row) {
    memcpy(to.begin + row * to.step, from.begin + row * from.step,
           static_cast<size_t>(count) * sizeof(float));
  }
}

// Calls body(begin, end) for parts of [0, count), each of about `part` or of one.
template <class Body>
void for_each_part(int64_t count, int64_t part, int64_t work, const Body& body) {
  part = std::max<int64_t>(part, 1);
  parallel_for(div_up(count, part), work,
               [&](int64_t task) { body(task * part, std::min((task + 1) * part, count)); });
}

}  // namespace gluon_roi::cpu
