// SPDX-License-Identifier: Apache-2.0
// ROIAlign from C++: arrays own their memory, and errors are exceptions.
#include <gluon_roi.h>

#include <cstdint>
#include <exception>
#include <iostream>
#include <new>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#if GLUON_ROI_VERSION < 10000
#error "this program needs gluon_roi 1.0.0 or newer"
#endif

// An array of floats with a shape. It owns its memory, so it can neither leak nor outlive its view.
class Array {
 public:
  explicit Array(std::vector<std::int64_t> shape, std::vector<float> values = {})
      : shape_(std::move(shape)), values_(std::move(values)) {
    std::int64_t size = 1;
    for (const std::int64_t side : shape_) size *= side;
    if (values_.empty()) values_.resize(static_cast<std::size_t>(size));
    if (shape_.size() > 4 || values_.size() != static_cast<std::size_t>(size)) {
      throw std::invalid_argument("Array: the values do not fit the shape");
    }
  }

  // Of an array with a name only: a temporary would be gone before its values are read.
  std::vector<float>& values() & { return values_; }

  // What the library reads and writes; valid as long as the array.
  gluon_roi_tensor view() & {
    gluon_roi_tensor tensor{};
    tensor.data = values_.data();
    tensor.dtype = GLUON_ROI_FLOAT32;
    tensor.ndim = static_cast<std::int32_t>(shape_.size());
    for (std::size_t i = 0; i < shape_.size(); ++i) tensor.shape[i] = shape_[i];
    return tensor;
  }

 private:
  std::vector<std::int64_t> shape_;
  std::vector<float> values_;
};

// Throws the message of a call that has failed.
void check(int code) {
  if (code == GLUON_ROI_NO_MEMORY) throw std::bad_alloc();
  if (code == GLUON_ROI_INVALID) throw std::invalid_argument(gluon_roi_last_error());
  if (code != GLUON_ROI_OK) throw std::runtime_error(gluon_roi_last_error());
}

// The bins of each row of rois, (K, C, bins, bins).
Array roi_align(Array& data, Array& rois, int bins, double spatial_scale) {
  const gluon_roi_tensor inputs[] = {data.view(), rois.view()};
  gluon_roi_roi_align_params params{};
  params.pooled_height = params.pooled_width = bins;
  params.spatial_scale = spatial_scale;
  params.sampling_ratio = 2;
  params.aligned = 1;
  const gluon_roi_device device{GLUON_ROI_CPU, nullptr, nullptr, 0};
  Array out({inputs[1].shape[0], inputs[0].shape[1], bins, bins});
  gluon_roi_tensor result = out.view();
  check(gluon_roi_roi_align_forward(&params, inputs, 2, &result, &device));
  return out;
}

int main() {
  try {
    Array data({1, 1, 8, 6});  // a map of 0, 1, 2, ...
    std::iota(data.values().begin(), data.values().end(), 0.0F);
    Array rois({2, 5}, {0, 0, 0, 4, 4, -1, 0, 0, 0, 0});  // a box, and a padding row
    Array out = roi_align(data, rois, 2, 1.0);
    for (const float bin : out.values()) std::cout << bin << ' ';
    std::cout << '\n';
    rois.values()[0] = 7;
    roi_align(data, rois, 2, 1.0);
  } catch (const std::exception& error) {
    std::cout << error.what() << '\n';
  }
}
