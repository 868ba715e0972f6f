// SPDX-License-Identifier: Apache-2.0
// Greedy suppression: the order of scores, boxes, and the overlap of two of them.
//
// The order of operations is that of MXNet's box_nms and Proposal, so both keep the same boxes.
#pragma once
#include <type_traits>

#include "../types.h"

namespace gluon_roi {

// ---- Order --------------------------------------------------------------------------------------

// The place of a box in the order of scores: ascending ranks are descending scores. Equal scores,
// -0 and 0 among them, keep their order. NaN counts as -infinity.
template <class A>
struct Rank {
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  Bits key;
  int32_t index;  // of the box, from 0 on

  HOST_DEVICE static Rank make(A score, int32_t index) {
    constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
    const A number = score == score ? score + A(0) : -static_cast<A>(INFINITY);
    const Bits bits = bit_cast<Bits>(number);
    // Ascending integers for descending numbers.
    return {(bits & kSign) != 0 ? bits : static_cast<Bits>(~(bits | kSign)), index};
  }
  HOST_DEVICE bool operator<(const Rank& other) const {
    return key != other.key ? key < other.key
                            : static_cast<uint32_t>(index) < static_cast<uint32_t>(other.index);
  }
};

// ---- Boxes --------------------------------------------------------------------------------------

// Corners and area. V is a number, or a register of numbers: one box in each lane.
template <class V>
struct RankedBox {
  V x1, y1, x2, y2, area;
};

// Sets *common to the intersection of two boxes and *joined to their union; NaN if either area is.
// kToLast: a box from x1 to x2 is x2 - x1 + 1 long, because x2 is its last pixel. `one` is 1.
template <bool kToLast, class V>
HOST_DEVICE void intersect(const RankedBox<V>& a, const RankedBox<V>& b, const V& one, V* common,
                           V* joined) {
  const V zero{};
  const V left = a.x1 > b.x1 ? a.x1 : b.x1, top = a.y1 > b.y1 ? a.y1 : b.y1;
  const V right = a.x2 < b.x2 ? a.x2 : b.x2, bottom = a.y2 < b.y2 ? a.y2 : b.y2;
  V width = right - left, height = bottom - top;
  if constexpr (kToLast) {
    width = width + one;
    height = height + one;
  }
  *common = (width > zero ? width : zero) * (height > zero ? height : zero);
  *joined = a.area + b.area - *common;
}

// Boxes overlap if *common / *joined, which is rounded, is above a threshold. They certainly do not
// if *common is below *joined times this: the margin is wider than the rounding of both, subnormal
// numbers included. NaN, below which is nothing, if there is no such number: a threshold up to 0.
template <class A>
A clear_of(A threshold) {
  return threshold > 0 ? threshold * (1 - static_cast<A>(1) / (1 << 20)) : static_cast<A>(NAN);
}

// A box as four numbers of a row: corners, or if `center` centre and size. The area of a box with
// a negative side is 0. A NaN makes the area NaN, so that the box overlaps nothing.
template <class A>
HOST_DEVICE RankedBox<A> box_of_row(const A* row, bool center) {
  RankedBox<A> box{row[0], row[1], row[2], row[3], 0};
  A width = row[2] - row[0], height = row[3] - row[1];
  if (center) {
    width = row[2];
    height = row[3];
    box.x1 = row[0] - width / 2;
    box.y1 = row[1] - height / 2;
    box.x2 = row[0] + width / 2;
    box.y2 = row[1] + height / 2;
  }
  const bool has_nan = row[0] != row[0] || row[1] != row[1] || row[2] != row[2] || row[3] != row[3];
  box.area = has_nan ? static_cast<A>(NAN) : width < 0 || height < 0 ? A(0) : width * height;
  return box;
}

}  // namespace gluon_roi
