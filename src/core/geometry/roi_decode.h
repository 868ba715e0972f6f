// SPDX-License-Identifier: Apache-2.0
// Decodes a row of rois: image, box, and whether the row is valid.
#pragma once
#include "../roi_contract.h"
#include "saturate.h"

namespace gluon_roi {

enum class RoiState : int32_t {
  kValid,
  kPadding,    // negative batch index: the row of the output is 0
  kNotFinite,  // a NaN or infinite coordinate: the row of the output is NaN
  kBadBatch    // batch index NaN, fractional or >= N: an error on the CPU, a NaN row on CUDA
};

// The maximum number of coordinates of a box: a rotated box has five.
constexpr int kMaxCoordinates = 5;

template <class G>
struct Roi {
  RoiState state;
  int64_t image;           // index into the batch, valid if state is kValid
  G box[kMaxCoordinates];  // image coordinates, in the order of the row

  HOST_DEVICE G x1() const { return box[0]; }
  HOST_DEVICE G y1() const { return box[1]; }
  HOST_DEVICE G x2() const { return box[2]; }
  HOST_DEVICE G y2() const { return box[3]; }
};

// A view of rois in any of the three layouts that every operator accepts (see gluon_roi.h).
struct RoiRows {
  const void* rois;
  const void* counts;  // rois_num, or nullptr
  int64_t count;       // of rows in all lists
  int64_t per_list;    // K
  int64_t per_image;   // R in layout (N, R, ...), otherwise 0
  int64_t images;      // N
  int32_t dtype, counts_dtype;
  int32_t columns,
      coordinates;     // coordinates of a box; with a batch index there is one more column
  int32_t pad_beyond;  // 1: a batch index >= N marks a padding row

  static RoiRows make(const RoiArrays& in, bool pad_beyond) {
    RoiRows rows{};
    rows.rois = in.rois.data;
    rows.dtype = in.rois.dtype;
    rows.counts = in.rois_num.data;
    rows.counts_dtype = in.rois_num.dtype;
    rows.columns = static_cast<int32_t>(in.rois.shape[in.rois.ndim - 1]);
    rows.coordinates = in.coordinates;
    rows.per_image = in.rois.ndim == 3 ? in.rois.shape[1] : 0;
    rows.count = in.rois.ndim == 3 ? in.rois.shape[0] * in.rois.shape[1] : in.rois.shape[0];
    rows.per_list = rows.count / in.lists;
    rows.images = in.data.shape[0];
    rows.pad_beyond = pad_beyond;
    return rows;
  }

  HOST_DEVICE static double element(const void* array, int dtype, int64_t i) {
    switch (dtype) {
      case GLUON_ROI_FLOAT32: return static_cast<const float*>(array)[i];
      case GLUON_ROI_FLOAT64: return static_cast<const double*>(array)[i];
      case GLUON_ROI_FLOAT16: return to_float(static_cast<const Half*>(array)[i]);
      case GLUON_ROI_INT32: return static_cast<const int32_t*>(array)[i];
      default: return static_cast<double>(static_cast<const int64_t*>(array)[i]);
    }
  }

  // The batch index of row k, unchecked; `images` if the counts end before row k.
  HOST_DEVICE double batch_index(int64_t k) const {
    if (columns > coordinates) return element(rois, dtype, k * columns);
    if (per_image > 0) {
      const int64_t image = k % per_list / per_image;
      return static_cast<double>(image);
    }
    double end = 0;
    for (int64_t image = 0; image < images; ++image) {
      end += element(counts, counts_dtype, image);
      if (static_cast<double>(k) < end) return static_cast<double>(image);
    }
    return static_cast<double>(images);
  }

  // Coordinate i of the box in row k.
  HOST_DEVICE double coordinate(int64_t k, int i) const {
    return element(rois, dtype, k * columns + (columns - coordinates) + i);
  }

  template <class G>
  HOST_DEVICE Roi<G> decode(int64_t k) const {
    Roi<G> roi{};
    const double batch = batch_index(k);
    if (batch < 0) {
      roi.state = RoiState::kPadding;
      return roi;
    }
    // The negated comparison also catches NaN.
    if (!(batch < static_cast<double>(images)) || batch != floor(batch)) {
      const bool beyond = batch >= static_cast<double>(images) && batch == floor(batch);
      roi.state = beyond && pad_beyond != 0 ? RoiState::kPadding : RoiState::kBadBatch;
      return roi;
    }
    double box[kMaxCoordinates];
    for (int i = 0; i < coordinates; ++i) {
      box[i] = coordinate(k, i);
      if (!(fabs(box[i]) <= 1.7976931348623157e308)) {
        roi.state = RoiState::kNotFinite;
        return roi;
      }
    }
    roi.state = RoiState::kValid;
    roi.image = static_cast<int64_t>(batch);
    for (int i = 0; i < coordinates; ++i) roi.box[i] = narrow<G>(box[i]);
    return roi;
  }
};

}  // namespace gluon_roi
