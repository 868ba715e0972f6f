// From a RoI to the cells of the map it covers: the only place where the formulas stand, for the
// forward and the backward pass, on the CPU and in CUDA kernels.
//
// Results must not depend on the instruction set, so nothing here may be contracted into fused
// multiply-adds: these files are compiled with -ffp-contract=off and -fmad=false. The order of
// operations is that of MXNet, torchvision and Paddle, which makes the edges equal bit for bit.
#pragma once
#include "common.h"

namespace gluon_roi {

// ---- Rows of rois -----------------------------------------------------------------------------

enum class RoiState : int32_t {
  kValid,
  kPadding,    // negative batch index: the row of the output is 0
  kNotFinite,  // a NaN or infinite coordinate: the row of the output is NaN
  kBadBatch    // batch index NaN, fractional or >= N: an error on the CPU, a NaN row on CUDA
};

template <class G>
struct Roi {
  RoiState state;
  int64_t image;     // index into the batch, valid if state is kValid
  G x1, y1, x2, y2;  // image coordinates
};

// A view of the three layouts of rois that every operator takes (see gluon_roi.h).
struct RoiRows {
  const void* rois;
  const void* counts;  // rois_num, or nullptr
  int64_t rows;        // K
  int64_t per_image;   // R for (N, R, 4), else 0
  int64_t images;      // N
  int32_t dtype, counts_dtype;
  int32_t columns;  // 5 or 4

  static RoiRows of(const Inputs& in) {
    RoiRows rows{};
    rows.rois = in.rois.data;
    rows.dtype = in.rois.dtype;
    rows.counts = in.rois_num.data;
    rows.counts_dtype = in.rois_num.dtype;
    rows.columns = static_cast<int32_t>(in.rois.shape[in.rois.ndim - 1]);
    rows.per_image = in.rois.ndim == 3 ? in.rois.shape[1] : 0;
    rows.rows = in.rois.ndim == 3 ? in.rois.shape[0] * in.rois.shape[1] : in.rois.shape[0];
    rows.images = in.data.shape[0];
    return rows;
  }

  GR_HD static double element(const void* array, int dtype, int64_t i) {
    switch (dtype) {
      case GLUON_ROI_FLOAT32: return static_cast<const float*>(array)[i];
      case GLUON_ROI_FLOAT64: return static_cast<const double*>(array)[i];
      case GLUON_ROI_FLOAT16: return to_float(static_cast<const Half*>(array)[i]);
      case GLUON_ROI_INT32: return static_cast<const int32_t*>(array)[i];
      default: return static_cast<double>(static_cast<const int64_t*>(array)[i]);
    }
  }

  // Batch index of row k as given; `images` where the counts end before row k.
  GR_HD double batch_index(int64_t k) const {
    if (columns == 5) return element(rois, dtype, k * 5);
    if (per_image > 0) return static_cast<double>(k / per_image);
    double end = 0;
    for (int64_t image = 0; image < images; ++image) {
      end += element(counts, counts_dtype, image);
      if (static_cast<double>(k) < end) return static_cast<double>(image);
    }
    return static_cast<double>(images);
  }

  template <class G>
  GR_HD Roi<G> row(int64_t k) const {
    Roi<G> roi{};
    const double batch = batch_index(k);
    if (batch < 0) {
      roi.state = RoiState::kPadding;
      return roi;
    }
    // Written so that NaN fails the test.
    if (!(batch < static_cast<double>(images)) || batch != floor(batch)) {
      roi.state = RoiState::kBadBatch;
      return roi;
    }
    double box[4];
    for (int i = 0; i < 4; ++i) {
      box[i] = element(rois, dtype, k * columns + (columns - 4) + i);
      if (!(fabs(box[i]) <= 1.7976931348623157e308)) {
        roi.state = RoiState::kNotFinite;
        return roi;
      }
    }
    roi.state = RoiState::kValid;
    roi.image = static_cast<int64_t>(batch);
    roi.x1 = static_cast<G>(box[0]);
    roi.y1 = static_cast<G>(box[1]);
    roi.x2 = static_cast<G>(box[2]);
    roi.y2 = static_cast<G>(box[3]);
    return roi;
  }
};

// ---- Bins of the two pooling operators ----------------------------------------------------------

// Coordinates beyond any map, brought back to where float arithmetic still has room.
template <class G>
GR_HD G saturate(G value) {
  const G limit = static_cast<G>(1e30);
  return value > limit ? limit : value < -limit ? -limit : value;
}

// Half away from zero, as C's round(); the same on every device.
GR_HD float round_half_away(float value) { return roundf(value); }

enum class BinRule : int32_t {
  kRoiPool,     // Caffe, MXNet ROIPooling, torchvision roi_pool, Paddle roi_pool
  kRfcn,        // Caffe R-FCN, MXNet contrib.PSROIPooling, Paddle psroi_pool
  kTorchvision  // torchvision ps_roi_pool
};

// One axis of a RoI, split into bins; float arithmetic whatever the type of the data.
struct BinAxis {
  float start;    // map coordinate where bin 0 begins
  float bin;      // cells per bin
  int32_t limit;  // bins are clipped to [0, limit)
  bool whole;     // start is a whole number and is added after the rounding

  GR_HD static BinAxis make(BinRule rule, float lo, float hi, float scale, int bins, int size) {
    BinAxis axis;
    axis.whole = rule != BinRule::kRfcn;
    axis.limit = rule == BinRule::kTorchvision ? size - 1 : size;
    float length;
    if (rule == BinRule::kRfcn) {
      axis.start = saturate(round_half_away(lo) * scale);
      // The peers add 1 in double precision and round back to float.
      const float end =
          saturate(static_cast<float>(static_cast<double>(round_half_away(hi)) + 1.0) * scale);
      length = end - axis.start;
      if (!(length > 0.1f)) length = 0.1f;
    } else {
      axis.start = saturate(round_half_away(lo * scale));
      // Exact differences, as the integers of the peers, without their overflow.
      const double inclusive = rule == BinRule::kRoiPool ? 1.0 : 0.0;
      const double exact = static_cast<double>(saturate(round_half_away(hi * scale))) -
                           static_cast<double>(axis.start) + inclusive;
      length = static_cast<float>(exact > 1.0 ? exact : 1.0);
    }
    axis.bin = length / static_cast<float>(bins);
    return axis;
  }

  GR_HD int32_t clip(double edge) const {
    const double top = limit;
    return static_cast<int32_t>(edge < 0.0 ? 0.0 : edge > top ? top : edge);
  }
  GR_HD int32_t begin(int q) const {
    const float offset = static_cast<float>(q) * bin;
    if (whole) return clip(static_cast<double>(floorf(offset)) + static_cast<double>(start));
    return clip(floorf(offset + start));
  }
  GR_HD int32_t end(int q) const {
    const float offset = static_cast<float>(q + 1) * bin;
    if (whole) return clip(static_cast<double>(ceilf(offset)) + static_cast<double>(start));
    return clip(ceilf(offset + start));
  }
};

// ---- Samples of the two align operators ---------------------------------------------------------

// One bilinear sample along one axis: weight `low_weight` on cell `low`, the rest on `high`.
template <class G>
struct Sample {
  bool inside;   // outside the map a sample counts in the divisor as 0
  bool clamped;  // at a border: the value does not change with the coordinate
  int32_t low, high;
  G low_weight, high_weight;
};

// One axis of a RoI, split into bins of `samples` evenly spaced samples each. G is float, or
// double for float64 data.
template <class G>
struct SampleAxis {
  G start;       // map coordinate where bin 0 begins
  G bin;         // cells per bin; negative for an inverted box
  G samples;     // samples per bin, a whole number of at least 1
  int32_t size;  // cells of the map along this axis
  bool floored;  // the minimum size of one cell is in force

  GR_HD static SampleAxis make(G lo, G hi, double spatial_scale, bool aligned, int bins,
                               int sampling_ratio, int size) {
    const G scale = static_cast<G>(spatial_scale);
    const G offset = aligned ? static_cast<G>(0.5) : static_cast<G>(0);
    SampleAxis axis;
    axis.size = size;
    axis.start = saturate(lo * scale - offset);
    G length = saturate(hi * scale - offset) - axis.start;
    axis.floored = !aligned && length < static_cast<G>(1);
    if (axis.floored) length = static_cast<G>(1);
    axis.bin = length / static_cast<G>(bins);
    const G adaptive = ceil(length / static_cast<G>(bins));
    axis.samples = sampling_ratio > 0 ? static_cast<G>(sampling_ratio)
                   : adaptive > 1     ? adaptive
                                      : static_cast<G>(1);
    return axis;
  }

  // The samples of bin q that can fall on the map: [first, last]. Enumerating only these keeps the
  // work bounded by the size of the map, however large the box.
  GR_HD void sample_range(int q, int64_t* first, int64_t* last) const {
    *first = 0;
    *last = -1;
    // A bin of 2^53 samples has an average of 0 to well below the precision of the sums.
    if (samples > static_cast<G>(9007199254740992.0)) return;
    const int64_t count = static_cast<int64_t>(samples);
    *last = count - 1;
    if (count <= 4 || bin == 0) return;
    const double base = static_cast<double>(start + static_cast<G>(q) * bin);
    const double step = static_cast<double>(bin) / static_cast<double>(samples);
    double lo = (-1.0 - base) / step - 0.5, hi = (size - base) / step - 0.5;
    if (step < 0) {
      const double swap = lo;
      lo = hi;
      hi = swap;
    }
    // Room for the rounding of coordinate() below, within reason.
    const double epsilon = sizeof(G) == 4 ? 1.2e-7 : 2.3e-16;
    double room = 2.0 + 8.0 * epsilon * (2.0 * fabs(static_cast<double>(bin)) + size) / fabs(step);
    if (room > 64.0) room = 64.0;
    lo = floor(lo - room);
    hi = ceil(hi + room);
    if (lo > static_cast<double>(*last) || hi < 0) {
      *last = -1;
      return;
    }
    if (lo > 0) *first = static_cast<int64_t>(lo);
    if (hi < static_cast<double>(*last)) *last = static_cast<int64_t>(hi);
  }

  // Map coordinate of sample i of bin q.
  GR_HD G coordinate(int q, int64_t i) const {
    return start + static_cast<G>(q) * bin +
           static_cast<G>(static_cast<G>(i) + static_cast<G>(0.5)) * bin / samples;
  }

  GR_HD Sample<G> sample(int q, int64_t i) const {
    Sample<G> s{};
    G x = coordinate(q, i);
    s.inside = size > 0 && x >= static_cast<G>(-1) && x <= static_cast<G>(size);
    if (!s.inside) return s;
    s.clamped = x < 0;
    if (x < 0) x = 0;
    s.low = static_cast<int32_t>(x);
    if (s.low >= size - 1) {
      s.low = s.high = size - 1;
      s.clamped = true;
      s.low_weight = 1;
    } else {
      s.high = s.low + 1;
      s.high_weight = x - static_cast<G>(s.low);
      s.low_weight = static_cast<G>(1) - s.high_weight;
    }
    return s;
  }

  // d coordinate(q, i) / d lo and / d hi, in map cells per image pixel.
  GR_HD void coordinate_gradient(int q, int64_t i, int bins, double spatial_scale, G* d_lo,
                                 G* d_hi) const {
    const G scale = static_cast<G>(spatial_scale);
    const G t = (static_cast<G>(q) + (static_cast<G>(i) + static_cast<G>(0.5)) / samples) /
                static_cast<G>(bins);
    *d_lo = floored ? scale : scale * (static_cast<G>(1) - t);
    *d_hi = floored ? static_cast<G>(0) : scale * t;
  }
};

// ---- Channels of the two position-sensitive operators -------------------------------------------

// C = output_dim * group_height * group_width score maps; bin (p, q) of output channel c reads map
// (c * group_height + gh) * group_width + gw.
struct PositionSensitive {
  int64_t output_dim;
  int32_t group_height, group_width;
  int32_t pooled_height, pooled_width;

  GR_HD static int32_t group_of(int bin, int groups, int pooled) {
    const int32_t group = static_cast<int32_t>(static_cast<int64_t>(bin) * groups / pooled);
    return group < groups ? group : groups - 1;
  }
  // The inverse: the bins of a group are [first_bin(group), first_bin(group + 1)).
  GR_HD static int32_t first_bin(int32_t group, int32_t groups, int32_t pooled) {
    return static_cast<int32_t>((static_cast<int64_t>(group) * pooled + groups - 1) / groups);
  }
  GR_HD int64_t channel(int64_t c, int p, int q) const {
    return (c * group_height + group_of(p, group_height, pooled_height)) * group_width +
           group_of(q, group_width, pooled_width);
  }
};

}  // namespace gluon_roi
