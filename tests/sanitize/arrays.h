// SPDX-License-Identifier: Apache-2.0
// Arrays that end where their memory ends.
#pragma once
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "gluon_roi.h"

namespace sanitize {

inline uint16_t half_of(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24));
  int exponent;
  const double fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
  // A fraction that rounds up to 1 carries into the exponent, as it should.
  return sign | static_cast<uint16_t>((exponent + 13) * 1024 + std::nearbyint(fraction * 2048));
}

inline double double_of(uint16_t half) {
  const double sign = half & 0x8000 ? -1 : 1;
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

inline size_t size_of(int32_t dtype) {
  switch (dtype) {
    case GLUON_ROI_FLOAT16: return 2;
    case GLUON_ROI_FLOAT64:
    case GLUON_ROI_INT64: return 8;
    default: return 4;
  }
}

inline const char* name_of(int32_t dtype) {
  switch (dtype) {
    case GLUON_ROI_FLOAT16: return "float16";
    case GLUON_ROI_FLOAT32: return "float32";
    case GLUON_ROI_FLOAT64: return "float64";
    case GLUON_ROI_INT32: return "int32";
    default: return "int64";
  }
}

// An array at the end of its own memory, as misaligned as its type allows. An empty array may have
// no memory.
class Array {
 public:
  Array() = default;  // absent
  Array(int32_t dtype, const std::vector<int64_t>& shape, int64_t elements_before, int fill)
      : tensor_{nullptr, dtype, static_cast<int32_t>(shape.size()), {}} {
    size_ = 1;
    for (size_t i = 0; i < shape.size(); ++i) size_ *= tensor_.shape[i] = shape[i];
    if (size_ == 0 && elements_before % 2) return;
    const size_t before = static_cast<size_t>(elements_before) * size_of(dtype);
    memory_.reset(new char[before + bytes()]);
    tensor_.data = memory_.get() + before;
    memset(tensor_.data, fill, bytes());
  }
  const gluon_roi_tensor& tensor() const { return tensor_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * size_of(tensor_.dtype); }
  double get(int64_t i) const {
    switch (tensor_.dtype) {
      case GLUON_ROI_FLOAT16: return double_of(static_cast<uint16_t*>(tensor_.data)[i]);
      case GLUON_ROI_FLOAT32: return static_cast<float*>(tensor_.data)[i];
      case GLUON_ROI_FLOAT64: return static_cast<double*>(tensor_.data)[i];
      case GLUON_ROI_INT32: return static_cast<int32_t*>(tensor_.data)[i];
      default: return static_cast<double>(static_cast<int64_t*>(tensor_.data)[i]);
    }
  }
  void set(int64_t i, double value) {
    switch (tensor_.dtype) {
      case GLUON_ROI_FLOAT16: static_cast<uint16_t*>(tensor_.data)[i] = half_of(value); break;
      case GLUON_ROI_FLOAT32: {
        const bool huge = std::isfinite(value) && std::fabs(value) > FLT_MAX;
        static_cast<float*>(tensor_.data)[i] =
            huge ? std::copysign(INFINITY, value) : static_cast<float>(value);
        break;
      }
      case GLUON_ROI_FLOAT64: static_cast<double*>(tensor_.data)[i] = value; break;
      case GLUON_ROI_INT32:
        static_cast<int32_t*>(tensor_.data)[i] = static_cast<int32_t>(value);
        break;
      default: static_cast<int64_t*>(tensor_.data)[i] = static_cast<int64_t>(value);
    }
  }
  bool same_bytes(const Array& other) const {
    return bytes() == other.bytes() &&
           (bytes() == 0 || memcmp(tensor_.data, other.tensor_.data, bytes()) == 0);
  }
  bool filled_with(int fill) const {
    const unsigned char* bytes_of = static_cast<unsigned char*>(tensor_.data);
    for (size_t i = 0; i < bytes(); ++i) {
      if (bytes_of[i] != fill) return false;
    }
    return true;
  }
  std::string text() const {
    std::string text = name_of(tensor_.dtype);
    for (int i = 0; i < tensor_.ndim; ++i) {
      text += (i ? ", " : " (") + std::to_string(tensor_.shape[i]);
    }
    return text + ")";
  }

 private:
  std::unique_ptr<char[]> memory_;
  gluon_roi_tensor tensor_{};
  int64_t size_ = 0;
};

}  // namespace sanitize
