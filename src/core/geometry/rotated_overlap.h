// SPDX-License-Identifier: Apache-2.0
// The intersection of two rotated boxes.
//
// One box is clipped by the four sides of the other, in coordinates whose origin is the other's
// centre and whose axes are its sides:
//
//        y                     The clipping box is an axis-aligned rectangle. The clipped one has
//    +---+---+   b             four corners, of which each side of the rectangle cuts off those
//    |   | /-|-\               beyond it. At most eight are left, in their order around the
//    |   |/  |  \  x           polygon, so nothing is sorted, and no two points are compared with
//    +---\---+  / -->          a tolerance.
//         \    /
//          \--/
//
// Everything is computed in double precision for every type of data. Differences of centres and
// angles are taken first, so boxes far from the origin and nearly parallel boxes lose no precision.
// Angles are in degrees, and multiples of 90 have exact sines. The result does not depend on the
// order of the two boxes, nor on which of its four sides is called the width, to the last bit.
#pragma once
#include "elementary.h"
#include "overlap.h"

namespace gluon_roi {

// ---- Boxes --------------------------------------------------------------------------------------

// A rotated box with precomputed values. The area is NaN if a coordinate is NaN or the angle is
// infinite, and 0 if a side is negative.
struct RotatedOverlapBox {
  double x, y, width, height, angle;  // angle: in (-45, 45]
  double sine, cosine;
  double half_x, half_y;  // half sizes of the axis-aligned bounding box, rounded up
  double area;
};

// Reads a box from five numbers: centre, width, height, and angle in degrees, counter-clockwise in
// an image whose y points down.
template <class A>
HOST_DEVICE RotatedOverlapBox rotated_overlap_box_of_row(const A* row) {
  RotatedOverlapBox box{};
  box.x = row[0];
  box.y = row[1];
  // A box can be written with four angles. Full, half and quarter turns are removed exactly: the
  // box (x, y, 4, 2, 180) is (x, y, 4, 2, 0), and so is (x, y, 2, 4, 90).
  box.angle = fmod(static_cast<double>(row[4]), 180.0);
  if (box.angle > 90.0) box.angle -= 180.0;
  if (box.angle <= -90.0) box.angle += 180.0;
  const double quarter = box.angle > 45.0 ? 90.0 : box.angle <= -45.0 ? -90.0 : 0.0;
  box.angle -= quarter;
  box.width = row[quarter == 0.0 ? 2 : 3];
  box.height = row[quarter == 0.0 ? 3 : 2];
  const SineCosine turn = sine_cosine(box.angle);
  box.sine = turn.sine;
  box.cosine = turn.cosine;
  // The margin exceeds the rounding of the bounds and of the distances that they are compared with.
  constexpr double kHalf = 0.5 * (1.0 + 1e-9);
  box.half_x = kHalf * (box.width * fabs(turn.cosine) + box.height * fabs(turn.sine));
  box.half_y = kHalf * (box.width * fabs(turn.sine) + box.height * fabs(turn.cosine));
  const bool has_nan = box.x != box.x || box.y != box.y || box.width != box.width ||
                       box.height != box.height || box.angle != box.angle;
  const bool is_inverted = box.width < 0 || box.height < 0;
  box.area = has_nan ? static_cast<double>(NAN) : is_inverted ? 0.0 : box.width * box.height;
  return box;
}

// ---- Intersection -------------------------------------------------------------------------------

// A convex polygon.
struct Polygon {
  static constexpr int kMaxCorners = 8;  // a quadrilateral after four cuts
  int corners;
  double at[kMaxCorners][2];  // x and y of each
};

// Cuts off the part of a polygon where sign * coordinate > limit along an axis.
HOST_DEVICE void clip(int axis, double sign, double limit, Polygon* polygon) {
  Polygon rest{};
  for (int i = 0; i < polygon->corners; ++i) {
    const double* const from = polygon->at[i];
    const double* const to = polygon->at[i + 1 < polygon->corners ? i + 1 : 0];
    const double from_side = sign * from[axis], to_side = sign * to[axis];
    const bool from_inside = from_side <= limit, to_inside = to_side <= limit;
    if (from_inside && rest.corners < Polygon::kMaxCorners) {
      rest.at[rest.corners][0] = from[0];
      rest.at[rest.corners++][1] = from[1];
    }
    if (from_inside != to_inside && rest.corners < Polygon::kMaxCorners) {
      const double share = (limit - from_side) / (to_side - from_side);
      const int other = 1 - axis;
      rest.at[rest.corners][axis] = sign * limit;
      rest.at[rest.corners++][other] = from[other] + (to[other] - from[other]) * share;
    }
  }
  *polygon = rest;
}

// The area of a polygon, from triangles that share its first corner: all have the same orientation,
// so nothing cancels.
HOST_DEVICE double area_of(const Polygon& polygon) {
  double twice = 0;
  for (int i = 1; i + 1 < polygon.corners; ++i) {
    const double x1 = polygon.at[i][0] - polygon.at[0][0];
    const double y1 = polygon.at[i][1] - polygon.at[0][1];
    const double x2 = polygon.at[i + 1][0] - polygon.at[0][0];
    const double y2 = polygon.at[i + 1][1] - polygon.at[0][1];
    twice += x1 * y2 - x2 * y1;
  }
  return twice / 2.0;
}

// Whether `a` clips `b` instead of `b` clipping `a`. This is a strict order of all different boxes,
// which makes the overlap symmetric.
HOST_DEVICE bool clips(const RotatedOverlapBox& a, const RotatedOverlapBox& b) {
  if (a.width != b.width) return a.width > b.width;
  if (a.height != b.height) return a.height > b.height;
  if (a.x != b.x) return a.x > b.x;
  if (a.y != b.y) return a.y > b.y;
  return a.angle > b.angle;
}

// Whether the bounding boxes of two boxes are disjoint.
HOST_DEVICE bool are_apart(const RotatedOverlapBox& a, const RotatedOverlapBox& b) {
  return fabs(a.x - b.x) > a.half_x + b.half_x || fabs(a.y - b.y) > a.half_y + b.half_y;
}

// The area of the intersection: finite, >= 0, and at most the smaller area. It is 0 if either area
// is 0, infinite or NaN.
HOST_DEVICE double intersection_of(const RotatedOverlapBox& a, const RotatedOverlapBox& b) {
  constexpr double kInfinity = INFINITY;
  const bool have_areas = a.area > 0 && a.area < kInfinity && b.area > 0 && b.area < kInfinity;
  if (!have_areas || are_apart(a, b)) return 0;
  const bool a_clips = clips(a, b);
  const RotatedOverlapBox &frame = a_clips ? a : b, &box = a_clips ? b : a;
  const double dx = box.x - frame.x, dy = box.y - frame.y;
  const double x = dx * frame.cosine - dy * frame.sine, y = dx * frame.sine + dy * frame.cosine;
  // The angle between the boxes is rounded difference + rest, exactly (Knuth's two-sum).
  const double angle = box.angle - frame.angle, part = angle - box.angle;
  const double rest = (box.angle - (angle - part)) - (frame.angle + part);
  const SineCosine turn = sine_cosine(angle, rest);
  // Half of the sides of `box`, as vectors.
  const double ux = 0.5 * box.width * turn.cosine, uy = -0.5 * box.width * turn.sine;
  const double vx = 0.5 * box.height * turn.sine, vy = 0.5 * box.height * turn.cosine;
  Polygon polygon{4,
                  {{x - ux - vx, y - uy - vy},
                   {x + ux - vx, y + uy - vy},
                   {x + ux + vx, y + uy + vy},
                   {x - ux + vx, y - uy + vy}}};
  for (int side = 0; side < 4; ++side) {
    const double length = side < 2 ? frame.width : frame.height;
    clip(side / 2, side % 2 == 0 ? -1.0 : 1.0, 0.5 * length, &polygon);
  }
  const double area = area_of(polygon), smaller = a.area < b.area ? a.area : b.area;
  return area > smaller ? smaller : area > 0 ? area : 0.0;
}

// Intersection over union, or over the area of the first box if `over_first`; in [0, 1].
HOST_DEVICE double overlap_of(const RotatedOverlapBox& a, const RotatedOverlapBox& b,
                              bool over_first) {
  const double intersection = intersection_of(a, b);
  double overlap;
  divide_areas(intersection, over_first ? a.area : a.area + b.area - intersection, 1.0, &overlap);
  return overlap;
}
HOST_DEVICE double overlap_of(const RotatedOverlapBox& a, const RotatedOverlapBox& b) {
  return overlap_of(a, b, false);
}

// Whether two boxes overlap by more than a threshold. As for upright boxes, an overlap of NaN is
// never above it, and boxes that do not intersect are above a negative threshold.
HOST_DEVICE bool overlap_above(const RotatedOverlapBox& a, const RotatedOverlapBox& b,
                               double threshold) {
  const double intersection = intersection_of(a, b);
  return intersection / (a.area + b.area - intersection) > threshold;
}

}  // namespace gluon_roi
