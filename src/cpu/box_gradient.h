// SPDX-License-Identifier: Apache-2.0
// Gradients with respect to the boxes.
#pragma once
#include <algorithm>
#include <vector>

#include "memory.h"
#include "taps.h"

namespace gluon_roi::cpu {

// Computes the gradient of one RoI, gradient[4], with respect to x1, y1, x2 and y2 in image pixels.
// add() adds one channel: plane(ph, pw) is the map that bin (ph, pw) reads, and d_out[ph *
// pooled_width + pw] the gradient of the bin.
template <class G>
class RoiGradient {
 public:
  template <class Rule>
  RoiGradient(int pooled_height, int pooled_width, const Rule& rule, const Roi<G>& roi,
              const Tensor& data)
      : pooled_height_(pooled_height), pooled_width_(pooled_width), width_(data.shape[3]) {
    add_axis(rule.axis(roi.y1(), roi.y2(), pooled_height_, static_cast<int32_t>(data.shape[2])),
             pooled_height_, &y_, &y_begin_);
    add_axis(rule.axis(roi.x1(), roi.x2(), pooled_width_, static_cast<int32_t>(data.shape[3])),
             pooled_width_, &x_, &x_begin_);
  }

  template <class T, class Plane, class Simd>
  ALWAYS_INLINE void add(const Plane& plane, const T* d_out, double* gradient, Simd simd) const {
    for (int ph = 0; ph < pooled_height_; ++ph) {
      for (int pw = 0; pw < pooled_width_; ++pw) {
        const T* map = plane(ph, pw);
        const double d_bin = load_one(d_out + ph * pooled_width_ + pw, simd);
        for (size_t i = y_begin_[ph]; i < y_begin_[ph + 1]; ++i) {
          const T* row = map + y_[i].cell * width_;
          double sum = 0, d_lo = 0, d_hi = 0;
          for (size_t j = x_begin_[pw]; j < x_begin_[pw + 1]; ++j) {
            const double value = load_one(row + x_[j].cell, simd);
            sum += x_[j].weight * value;
            d_lo += x_[j].d_lo * value;
            d_hi += x_[j].d_hi * value;
          }
          gradient[0] += d_bin * y_[i].weight * d_lo;
          gradient[1] += d_bin * y_[i].d_lo * sum;
          gradient[2] += d_bin * y_[i].weight * d_hi;
          gradient[3] += d_bin * y_[i].d_hi * sum;
        }
      }
    }
  }

 private:
  template <class Axis>
  static void add_axis(const Axis& axis, int axis_bins, Vector<GradientTap<G>>* taps,
                       Vector<size_t>* begin) {
    begin->push_back(0);
    for (int q = 0; q < axis_bins; ++q) {
      append_taps(axis, q, taps, [&](GradientTap<G>* tap, G weight, G d_lo, G d_hi) {
        tap->weight += weight / axis.divisor();
        tap->d_lo += d_lo / axis.divisor();
        tap->d_hi += d_hi / axis.divisor();
      });
      // A cell without effect is not read, so a NaN in it does not spread.
      const auto is_zero = [](const GradientTap<G>& tap) {
        return tap.weight == 0 && tap.d_lo == 0 && tap.d_hi == 0;
      };
      const auto first = taps->begin() + static_cast<int64_t>(begin->back());
      taps->erase(std::remove_if(first, taps->end(), is_zero), taps->end());
      begin->push_back(taps->size());
    }
  }

  int pooled_height_, pooled_width_;
  int64_t width_;
  Vector<GradientTap<G>> y_, x_;
  Vector<size_t> y_begin_, x_begin_;
};

// Writes all of d_rois: for each valid RoI the gradient that accumulate(k, roi, gradient) sums up
// for each coordinate of the box, and 0 elsewhere.
template <class G, class Accumulate>
void write_roi_gradients(const RoiTable<G>& table, int coordinates, int64_t work,
                         const Tensor& d_rois, const Accumulate& accumulate) {
  const int64_t columns = d_rois.shape[d_rois.ndim - 1];
  zero_fill(Cpu{}, d_rois);
  parallel_for(static_cast<int64_t>(table.order.size()), work, [&](int64_t i) {
    const int64_t k = table.order[i];
    double gradient[kMaxCoordinates] = {};
    accumulate(k, table.rois[k], gradient);
    with_dtype(d_rois.dtype, [&](auto type) {
      using R = decltype(type);
      R* row = data_of<R>(d_rois) + (k + 1) * columns - coordinates;
      for (int j = 0; j < coordinates; ++j) store(row + j, static_cast<SumOf<R>>(gradient[j]));
    });
  });
}

}  // namespace gluon_roi::cpu
