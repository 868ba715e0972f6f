// SPDX-License-Identifier: Apache-2.0
// The bilinear samples of a rotated box: positions and cells.
//
// The order of operations is that of MXNet's contrib.RROIAlign and of detectron2. See samples.h.
#pragma once
#include "elementary.h"
#include "roi_decode.h"
#include "samples.h"

namespace gluon_roi {

// The coordinates of a rotated box: cx, cy, w, h, theta.
constexpr int kRotatedCoordinates = 5;
constexpr double kPi = 3.14159265358979323846;

// Rows [y0, y1) and columns [x0, x1) of a map.
struct CellRect {
  int32_t y0, y1, x0, x1;
  HOST_DEVICE int64_t count() const { return int64_t{y1 - y0} * (x1 - x0); }
};

// The position of a sample along one side of a box, as what it adds to the x and y of the centre.
template <class G>
struct SideOffset {
  G x, y;
};
// Bounds of several offsets.
template <class G>
struct OffsetBounds {
  G x_low, x_high, y_low, y_high;
};

template <class G>
struct RotatedSample {
  Sample<G> x, y;
  G dx, dy;  // from the centre of the box, in map cells

  // The four cells that the sample reads, and their weights: corners 0 to 3, row by row.
  HOST_DEVICE int32_t row(int corner) const { return corner < 2 ? y.low : y.high; }
  HOST_DEVICE int32_t column(int corner) const { return corner % 2 == 0 ? x.low : x.high; }
  HOST_DEVICE G weight(int corner) const {
    return (corner < 2 ? y.low_weight : y.high_weight) *
           (corner % 2 == 0 ? x.low_weight : x.high_weight);
  }

  // The weight that the sample gives to a cell.
  HOST_DEVICE G weight_on(int32_t row, int32_t column) const {
    return along(y, row) * along(x, column);
  }

 private:
  HOST_DEVICE static G along(const Sample<G>& s, int32_t cell) {
    const G low = s.low == cell ? s.low_weight : static_cast<G>(0);
    return s.high == cell ? low + s.high_weight : low;
  }
};

// A box on the map. Its width is split into columns of bins along u, and its height into rows of
// bins along v.
template <class G>
struct SampledBox {
  SampleLine<G> u, v;  // relative to the centre
  G x, y;              // centre in map cells
  G cosine, sine;      // of theta
  G scale;             // map cells per image pixel
  int32_t height, width;

  // The divisor of the mean over a bin. Samples outside the map count as 0.
  HOST_DEVICE G divisor() const { return u.samples * v.samples; }

  // Sample i of column q of bins, and sample j of row p.
  HOST_DEVICE SideOffset<G> u_offset(int q, int64_t i) const {
    const G position = u.coordinate(q, i);
    return {position * cosine, -(position * sine)};
  }
  HOST_DEVICE SideOffset<G> v_offset(int p, int64_t j) const {
    const G position = v.coordinate(p, j);
    return {position * sine, position * cosine};
  }
  HOST_DEVICE RotatedSample<G> sample(const SideOffset<G>& u_side,
                                      const SideOffset<G>& v_side) const {
    const G dx = u_side.x + v_side.x, dy = u_side.y + v_side.y;
    return {sample_at(dx + x, width), sample_at(dy + y, height), dx, dy};
  }

  // Bounds of a region of the map in the frame of the box, and an upper bound of the magnitudes in
  // the computation of a position, which bounds its rounding.
  struct Frame {
    double u_low, u_high, v_low, v_high, reach;
  };
  HOST_DEVICE Frame map_frame() const { return frame_of(-1.0, height, -1.0, width); }
  // Whether no two samples of a bin read the same cell. Those that do are less than 2 * sqrt(2)
  // cells apart; 3 allows for rounding. 1e-6 * reach() bounds the rounding of positions (1e-6
  // is 8 float epsilons), and 0.1 is less than 3 - 2 * sqrt(2).
  HOST_DEVICE bool samples_share_no_cells() const {
    constexpr double kApart = 3.0;
    const double u_step = fabs(static_cast<double>(u.bin)) / u.samples;
    const double v_step = fabs(static_cast<double>(v.bin)) / v.samples;
    return (u.samples == 1 || u_step > kApart) && (v.samples == 1 || v_step > kApart) &&
           1e-6 * reach() < 0.1;
  }

  // Sets [first, last] to the samples of column q, or of row p, that may lie in a frame.
  HOST_DEVICE void u_range(const Frame& frame, int q, int64_t* first, int64_t* last) const {
    u.range(q, frame.u_low, frame.u_high, frame.reach, first, last);
  }
  HOST_DEVICE void v_range(const Frame& frame, int p, int64_t* first, int64_t* last) const {
    v.range(p, frame.v_low, frame.v_high, frame.reach, first, last);
  }

  // The part of the map that the samples with offsets within these bounds read. Rounded additions
  // are monotonic, so the bounds hold for the rounded positions.
  HOST_DEVICE CellRect cells_within(const OffsetBounds<G>& u_bounds,
                                    const OffsetBounds<G>& v_bounds) const {
    CellRect rect{};
    cells_between(u_bounds.x_low + v_bounds.x_low + x, u_bounds.x_high + v_bounds.x_high + x, width,
                  &rect.x0, &rect.x1);
    cells_between(u_bounds.y_low + v_bounds.y_low + y, u_bounds.y_high + v_bounds.y_high + y,
                  height, &rect.y0, &rect.y1);
    return rect;
  }

  // Calls emit(sample, j, i) for the samples of bin (p, q) that are on the map.
  template <class Emit>
  HOST_DEVICE void for_each_sample(int p, int q, const Emit& emit) const {
    int64_t i_first, i_last, j_first, j_last;
    const Frame frame = map_frame();
    u_range(frame, q, &i_first, &i_last);
    v_range(frame, p, &j_first, &j_last);
    for (int64_t j = j_first; j <= j_last; ++j) {
      for (int64_t i = i_first; i <= i_last; ++i) {
        const RotatedSample<G> s = sample(u_offset(q, i), v_offset(p, j));
        if (s.x.inside && s.y.inside) emit(s, j, i);
      }
    }
  }

  // Calls emit(row, column, weight) for the cells that bin (p, q) reads. The caller sums the
  // weights of a cell and divides them by divisor().
  template <class Emit>
  HOST_DEVICE void for_each_weight(int p, int q, const Emit& emit) const {
    for_each_sample(p, q, [&](const RotatedSample<G>& s, int64_t, int64_t) {
      for (int corner = 0; corner < 4; ++corner) {
        const G weight = s.weight(corner);
        if (weight != 0) emit(s.row(corner), s.column(corner), weight);
      }
    });
  }

  // Calls emit(row, column, slopes) with the derivatives of the weights with respect to the box
  // coordinates: per image pixel, and per degree for theta. The caller sums and divides these as
  // well.
  template <class Emit>
  HOST_DEVICE void for_each_gradient(int p, int q, const Emit& emit) const {
    const G degree = static_cast<G>(kPi / 180.0);
    for_each_sample(p, q, [&](const RotatedSample<G>& s, int64_t j, int64_t i) {
      const G half = static_cast<G>(0.5);
      const G du = u.has_min_length ? static_cast<G>(0) : scale * (u.fraction(q, i) - half);
      const G dv = v.has_min_length ? static_cast<G>(0) : scale * (v.fraction(p, j) - half);
      const G dx[] = {scale, 0, du * cosine, dv * sine, s.dy * degree};
      const G dy[] = {0, scale, -du * sine, dv * cosine, -s.dx * degree};
#ifdef __CUDA_ARCH__
#pragma unroll 1  // in float64, four corners at a time would need too many registers
#endif
      for (int corner = 0; corner < 4; ++corner) {
        const bool high_y = corner >= 2, high_x = corner % 2 == 1;
        // The weight is wy * wx.
        const G wy = high_y ? s.y.high_weight : s.y.low_weight;
        const G wx = high_x ? s.x.high_weight : s.x.low_weight;
        const G by_x = s.x.clamped ? static_cast<G>(0) : high_x ? wy : -wy;
        const G by_y = s.y.clamped ? static_cast<G>(0) : high_y ? wx : -wx;
        G slopes[kRotatedCoordinates];
        bool any = false;
        for (int c = 0; c < kRotatedCoordinates; ++c) {
          slopes[c] = by_x * dx[c] + by_y * dy[c];
          any = any || slopes[c] != 0;
        }
        if (any) emit(s.row(corner), s.column(corner), slopes);
      }
    });
  }

  // A part of the map with all cells that the box reads.
  HOST_DEVICE CellRect cells() const {
    const double half_u = 0.5 * fabs(static_cast<double>(u.bin)) * u.axis_bins;
    const double half_v = 0.5 * fabs(static_cast<double>(v.bin)) * v.axis_bins;
    const double c = fabs(static_cast<double>(cosine)), s = fabs(static_cast<double>(sine));
    // A sample reads the cells on both sides of it; the rest allows for rounding.
    const double margin = 2.0 + 1e-6 * reach();
    CellRect rect{};
    within(y, half_u * s + half_v * c + margin, height, &rect.y0, &rect.y1);
    within(x, half_u * c + half_v * s + margin, width, &rect.x0, &rect.x1);
    return rect;
  }

  // Calls emit(p, q, weight) for each sample that reads a cell. There are few of them unless
  // samples are much denser than cells.
  template <class Emit>
  HOST_DEVICE void for_each_bin_of(int32_t row, int32_t column, const Emit& emit) const {
    const Frame frame = frame_of(row - 1.0, row + 1.0, column - 1.0, column + 1.0);
    int64_t i_first, i_last, j_first, j_last;
    u.range_of_all(frame.u_low, frame.u_high, frame.reach, &i_first, &i_last);
    v.range_of_all(frame.v_low, frame.v_high, frame.reach, &j_first, &j_last);
    if (i_first > i_last || j_first > j_last) return;
    const int64_t u_samples = static_cast<int64_t>(u.samples);
    const int64_t v_samples = static_cast<int64_t>(v.samples);
    for (int64_t j = j_first; j <= j_last; ++j) {
      const int p = static_cast<int>(j / v_samples);
      for (int64_t i = i_first; i <= i_last; ++i) {
        const int q = static_cast<int>(i / u_samples);
        const RotatedSample<G> s = sample(u_offset(q, i % u_samples), v_offset(p, j % v_samples));
        if (!s.x.inside || !s.y.inside) continue;
        const G weight = s.weight_on(row, column);
        if (weight != 0) emit(p, q, weight);
      }
    }
  }

 private:
  HOST_DEVICE Frame frame_of(double y0, double y1, double x0, double x1) const {
    const double c = cosine, s = sine;
    const double cx0 = c * (x0 - x), cx1 = c * (x1 - x), cy0 = c * (y0 - y), cy1 = c * (y1 - y);
    const double sx0 = s * (x0 - x), sx1 = s * (x1 - x), sy0 = s * (y0 - y), sy1 = s * (y1 - y);
    return Frame{fmin(cx0, cx1) - fmax(sy0, sy1), fmax(cx0, cx1) - fmin(sy0, sy1),
                 fmin(sx0, sx1) + fmin(cy0, cy1), fmax(sx0, sx1) + fmax(cy0, cy1), reach()};
  }
  HOST_DEVICE static void within(double centre, double half, int32_t size, int32_t* begin,
                                 int32_t* end) {
    const double low = floor(centre - half), high = ceil(centre + half) + 1.0;
    *begin = low < 0.0 ? 0 : low > size ? size : static_cast<int32_t>(low);
    *end = high < 0.0 ? 0 : high > size ? size : static_cast<int32_t>(high);
  }
  HOST_DEVICE double reach() const {
    return 2.0 * (fabs(static_cast<double>(u.bin)) * u.axis_bins +
                  fabs(static_cast<double>(v.bin)) * v.axis_bins + fabs(static_cast<double>(x)) +
                  fabs(static_cast<double>(y)) + height + width);
  }
};

// Converts a rotated box to samples.
struct RotatedRule {
  double spatial_scale;
  int32_t aligned, sampling_ratio;
  int32_t pooled_height, pooled_width;

  int64_t bins() const { return int64_t{pooled_height} * pooled_width; }

  template <class G>
  HOST_DEVICE SampledBox<G> box(const Roi<G>& roi, int32_t height, int32_t width) const {
    const G scale = static_cast<G>(spatial_scale);
    const G offset = aligned != 0 ? static_cast<G>(0.5) : static_cast<G>(0);
    SampledBox<G> box{};
    box.u = line(saturate(roi.box[2] * scale), pooled_width);
    box.v = line(saturate(roi.box[3] * scale), pooled_height);
    box.x = saturate(roi.box[0] * scale - offset);
    box.y = saturate(roi.box[1] * scale - offset);
    // Like other libraries, rounds the angle to the type of the data, but removes full turns first.
    const double degrees = fmod(static_cast<double>(roi.box[4]), 360.0);
    const double theta = static_cast<G>(degrees * kPi / 180.0);
    const SineCosine turn = sine_cosine_of_radians(theta);
    box.cosine = static_cast<G>(turn.cosine);
    box.sine = static_cast<G>(turn.sine);
    box.scale = scale;
    box.height = height;
    box.width = width;
    return box;
  }

 private:
  template <class G>
  HOST_DEVICE SampleLine<G> line(G length, int axis_bins) const {
    SampleLine<G> line = SampleLine<G>::make(length, aligned != 0, axis_bins, sampling_ratio);
    const G length_used = line.has_min_length ? static_cast<G>(1) : length;
    line.start = -length_used / static_cast<G>(2);
    return line;
  }
};

}  // namespace gluon_roi
