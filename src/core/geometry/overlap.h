// SPDX-License-Identifier: Apache-2.0
// Suppression: the order of scores, upright boxes, the overlap of two of them, and the decay of a
// score by it.
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

// Sets *intersection to the common area of two boxes and *union_area to that of both, NaN if either
// area is. kToLast: a box from x1 to x2 is x2 - x1 + 1 long, because x2 is its last pixel. `one`
// is 1.
template <bool kToLast, class V>
HOST_DEVICE void intersect(const RankedBox<V>& a, const RankedBox<V>& b, const V& one,
                           V* intersection, V* union_area) {
  const V zero{};
  const V left = a.x1 > b.x1 ? a.x1 : b.x1, top = a.y1 > b.y1 ? a.y1 : b.y1;
  const V right = a.x2 < b.x2 ? a.x2 : b.x2, bottom = a.y2 < b.y2 ? a.y2 : b.y2;
  V width = right - left, height = bottom - top;
  if constexpr (kToLast) {
    width = width + one;
    height = height + one;
  }
  *intersection = (width > zero ? width : zero) * (height > zero ? height : zero);
  *union_area = a.area + b.area - *intersection;
}

// Boxes overlap if *intersection / *union_area, which is rounded, is above a threshold. They
// certainly do not if *intersection is below *union_area times this: the margin is wider than the
// rounding of both, subnormal numbers included. NaN, below which is nothing, if there is no such
// number: a threshold up to 0.
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

// Sets *overlap to a quotient of areas, from 0 to 1: 0 if there is no intersection or the quotient
// is NaN, and 1 if the rounding of corners makes the intersection larger than the divisor.
template <class V>
HOST_DEVICE void divide_areas(const V& intersection, const V& divisor, const V& one, V* overlap) {
  const V zero{};
  V quotient = intersection / divisor;
  quotient = quotient < zero ? one : quotient;
  quotient = quotient > one ? one : quotient;
  quotient = quotient >= zero ? quotient : zero;
  *overlap = intersection > zero ? quotient : zero;
}

// Sets *overlap to intersection over union, or with `over_first` over the area of the first box.
template <class V>
HOST_DEVICE void measure_overlap(const RankedBox<V>& a, const RankedBox<V>& b, bool over_first,
                                 const V& one, V* overlap) {
  V intersection, union_area;
  intersect<false>(a, b, one, &intersection, &union_area);
  divide_areas(intersection, over_first ? a.area : union_area, one, overlap);
}
// Intersection over union.
HOST_DEVICE double overlap_of(const RankedBox<double>& a, const RankedBox<double>& b) {
  double overlap;
  measure_overlap(a, b, false, 1.0, &overlap);
  return overlap;
}

// ---- Soft suppression ---------------------------------------------------------------------------

// exp(-x) for x >= 0, with the same bytes on every processor and device: 2^-n times a Taylor series
// of at most 0.35, whose next term is below half a rounding.
HOST_DEVICE double exp_of_negative(double x) {
  if (!(x < 800.0)) return x != x ? x : 0.0;  // which is below the smallest number
  constexpr double kLog2 = 0.69314718055994530942;
  // Its first 32 bits, of which a multiple is exact, and the rest.
  constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 0x1.a39ef35793c76p-33;
  const double n = rint(x / kLog2), rest = x - n * kLog2High - n * kLog2Low;
  double sum = 1.0;
  for (int i = 15; i >= 1; --i) sum = 1.0 - sum * rest / i;
  return ldexp(sum, -static_cast<int>(n));
}

// How a better box of its class lowers the score of another one, by their overlap.
struct Decay {
  int32_t method;  // GLUON_ROI_LINEAR or GLUON_ROI_GAUSSIAN
  double threshold, sigma;

  HOST_DEVICE double factor(double overlap) const {
    if (method == GLUON_ROI_GAUSSIAN) return exp_of_negative(overlap * overlap / sigma);
    return overlap > threshold ? 1.0 - overlap : 1.0;
  }
};

}  // namespace gluon_roi
