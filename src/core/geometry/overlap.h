// SPDX-License-Identifier: Apache-2.0
// Suppression: the order of scores, the overlap of upright boxes, and the decay of scores.
//
// The order of operations is that of MXNet's box_nms and Proposal, so the same boxes are kept.
#pragma once
#include <type_traits>

#include "elementary.h"

namespace gluon_roi {

// ---- Order --------------------------------------------------------------------------------------

// A sort key for boxes: ascending ranks are descending scores. Equal scores (also -0 and 0) keep
// their order. NaN is treated as -infinity.
template <class A>
struct Rank {
  using Bits = std::conditional_t<sizeof(A) == 8, uint64_t, uint32_t>;
  Bits key;
  int32_t index;  // of the box, from 0 on

  HOST_DEVICE static Rank make(A score, int32_t index) {
    constexpr Bits kSign = Bits{1} << (8 * sizeof(Bits) - 1);
    const A number = score == score ? score + A(0) : -static_cast<A>(INFINITY);
    const Bits bits = bit_cast<Bits>(number);
    // Maps descending floats to ascending integers.
    return {(bits & kSign) != 0 ? bits : static_cast<Bits>(~(bits | kSign)), index};
  }
  HOST_DEVICE bool operator<(const Rank& other) const {
    return key != other.key ? key < other.key
                            : static_cast<uint32_t>(index) < static_cast<uint32_t>(other.index);
  }
};

// ---- Boxes --------------------------------------------------------------------------------------

// Corners and area of a box. V is a number, or a register with one box in each lane.
template <class V>
struct OverlapBox {
  V x1, y1, x2, y2, area;
};

// Sets *intersection and *union_area to the areas of the intersection and the union of two boxes;
// the union is NaN if either area is. With kInclusiveCorners x2 is the last pixel of a box, whose
// width is therefore x2 - x1 + 1. `one` is 1.
template <bool kInclusiveCorners, class V>
HOST_DEVICE void intersect(const OverlapBox<V>& a, const OverlapBox<V>& b, const V& one,
                           V* intersection, V* union_area) {
  const V zero{};
  const V left = a.x1 > b.x1 ? a.x1 : b.x1, top = a.y1 > b.y1 ? a.y1 : b.y1;
  const V right = a.x2 < b.x2 ? a.x2 : b.x2, bottom = a.y2 < b.y2 ? a.y2 : b.y2;
  V width = right - left, height = bottom - top;
  if constexpr (kInclusiveCorners) {
    width = width + one;
    height = height + one;
  }
  *intersection = (width > zero ? width : zero) * (height > zero ? height : zero);
  *union_area = a.area + b.area - *intersection;
}

// Boxes overlap if the rounded quotient intersection / union_area is above a threshold. If
// intersection < union_area * reject_factor(threshold), they certainly do not, and the division can
// be skipped: the margin exceeds the rounding of both sides, also for subnormal numbers. For
// thresholds <= 0 there is no such factor, and NaN disables the shortcut.
template <class A>
A reject_factor(A threshold) {
  return threshold > 0 ? threshold * (1 - static_cast<A>(1) / (1 << 20)) : static_cast<A>(NAN);
}

// Reads a box from four numbers: corners, or centre and size if `center`. The area of a box with a
// negative side is 0. The area of a box with a NaN is NaN, so it overlaps nothing.
template <class A>
HOST_DEVICE OverlapBox<A> box_of_row(const A* row, bool center) {
  OverlapBox<A> box{row[0], row[1], row[2], row[3], 0};
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

// Sets *overlap to intersection / divisor, clamped to [0, 1], because rounded corners can make the
// intersection larger than the divisor. It is 0 if there is no intersection or the quotient is NaN.
template <class V>
HOST_DEVICE void divide_areas(const V& intersection, const V& divisor, const V& one, V* overlap) {
  const V zero{};
  V quotient = intersection / divisor;
  quotient = quotient < zero ? one : quotient;
  quotient = quotient > one ? one : quotient;
  quotient = quotient >= zero ? quotient : zero;
  *overlap = intersection > zero ? quotient : zero;
}

// Sets *overlap to the intersection over the union, or over the area of the first box if
// `over_first`.
template <class V>
HOST_DEVICE void measure_overlap(const OverlapBox<V>& a, const OverlapBox<V>& b, bool over_first,
                                 const V& one, V* overlap) {
  V intersection, union_area;
  intersect<false>(a, b, one, &intersection, &union_area);
  divide_areas(intersection, over_first ? a.area : union_area, one, overlap);
}
// Intersection over union.
HOST_DEVICE double overlap_of(const OverlapBox<double>& a, const OverlapBox<double>& b) {
  double overlap;
  measure_overlap(a, b, false, 1.0, &overlap);
  return overlap;
}

// ---- Soft suppression ---------------------------------------------------------------------------

// The factor by which a box with a higher score lowers the score of an overlapping box of its
// class.
struct Decay {
  bool gaussian;  // else linear
  double threshold, sigma;

  HOST_DEVICE double factor(double overlap) const {
    if (gaussian) return exponential(-(overlap * overlap) / sigma);
    return overlap > threshold ? 1.0 - overlap : 1.0;
  }
};

}  // namespace gluon_roi
