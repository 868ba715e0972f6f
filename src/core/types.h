// SPDX-License-Identifier: Apache-2.0
// Common definitions: inlining, element types, tensors.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../include/gluon_roi/common.h"

// Marks functions that CPU and CUDA kernels share.
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__ __forceinline__
#else
#define HOST_DEVICE inline __attribute__((always_inline))
#endif
// Marks functions of a CPU kernel. They must be inlined into their caller, whose target attribute
// selects the instruction set.
#define ALWAYS_INLINE inline __attribute__((always_inline))
// The same for lambdas: [&](auto simd) INLINE_LAMBDA { ... }
#define INLINE_LAMBDA __attribute__((always_inline))

namespace gluon_roi {

// IEEE binary16 in memory. Kernels convert it to float, compute in float, and round once at the
// end.
struct Half {
  uint16_t bits;
};

template <class To, class From>
HOST_DEVICE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

// All NaNs are converted to this one with their sign, because processors preserve different payload
// bits.
constexpr uint32_t kHalfNan = 0x7e00u;

#if defined(__aarch64__) && !defined(__CUDACC__)
// The processor's own conversions, which GCC and Clang vectorise.
HOST_DEVICE float to_float(Half half) { return bit_cast<__fp16>(half.bits); }
HOST_DEVICE Half to_half(float value) {
  const uint16_t bits = bit_cast<uint16_t>(static_cast<__fp16>(value));
  return Half{value == value ? bits : static_cast<uint16_t>((bits & 0x8000u) | kHalfNan)};
}
#else
// Both conversions use integer selects instead of branches, so that loops over them vectorise.
HOST_DEVICE float to_float(Half half) {
  const uint32_t magnitude = half.bits & 0x7fffu;
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  // Rebias the exponent by a multiplication, which renormalises subnormals as well.
  const float scaled = bit_cast<float>(magnitude << 13) * bit_cast<float>(0x77800000u);  // 2^112
  const uint32_t finite = bit_cast<uint32_t>(scaled);
  const uint32_t special = 0x7f800000u | (magnitude << 13);  // infinity or NaN
  return bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

// Round to nearest, ties to even.
HOST_DEVICE Half to_half(float value) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t sign = bits & 0x80000000u;
  const uint32_t magnitude = bits ^ sign;
  const uint32_t special = magnitude > 0x7f800000u ? kHalfNan : 0x7c00u;
  // Adding 0.5 shifts a subnormal's bits to the bottom and lets the hardware round them.
  const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t odd = (magnitude >> 13) & 1u;
  const uint32_t normal = (magnitude + 0xc8000fffu + odd) >> 13;
  const uint32_t rounded = magnitude >= 0x47800000u  ? special
                           : magnitude < 0x38800000u ? subnormal
                                                     : normal;
  return Half{static_cast<uint16_t>(rounded | (sign >> 16))};
}
#endif

// Maps the element type of data to the type of sums, in which coordinates are computed as well.
template <class T>
struct TypeTraits;
template <>
struct TypeTraits<float> {
  using Sum = float;
  static constexpr int kDtype = GLUON_ROI_FLOAT32;
};
template <>
struct TypeTraits<double> {
  using Sum = double;
  static constexpr int kDtype = GLUON_ROI_FLOAT64;
};
template <>
struct TypeTraits<Half> {
  using Sum = float;
  static constexpr int kDtype = GLUON_ROI_FLOAT16;
};
template <class T>
using SumOf = typename TypeTraits<T>::Sum;

// The initial value of a maximum: the lowest finite number of the element type.
template <class T>
constexpr SumOf<T> kLowest = std::is_same<T, Half>::value ? static_cast<SumOf<T>>(-65504)
                                                          : std::numeric_limits<SumOf<T>>::lowest();

HOST_DEVICE float load(const float* p) { return *p; }
HOST_DEVICE double load(const double* p) { return *p; }
HOST_DEVICE float load(const Half* p) { return to_float(*p); }
HOST_DEVICE void store(float* p, float value) { *p = value; }
HOST_DEVICE void store(double* p, double value) { *p = value; }
HOST_DEVICE void store(Half* p, float value) { *p = to_half(value); }

using Tensor = gluon_roi_tensor;

inline const char* dtype_name(int dtype) {
  switch (dtype) {
    case GLUON_ROI_FLOAT32: return "float32";
    case GLUON_ROI_FLOAT64: return "float64";
    case GLUON_ROI_FLOAT16: return "float16";
    case 3: return "uint8";
    case GLUON_ROI_INT32: return "int32";
    case 5: return "int8";
    case GLUON_ROI_INT64: return "int64";
    case 7: return "bool";
    case 12: return "bfloat16";
    default: return "an unknown type";
  }
}

// The data pointer of a tensor with elements of type T.
template <class T>
T* data_of(const Tensor& tensor) {
  return static_cast<T*>(tensor.data);
}

inline size_t dtype_size(int dtype) {
  switch (dtype) {
    case GLUON_ROI_FLOAT64:
    case GLUON_ROI_INT64: return 8;
    case GLUON_ROI_FLOAT16: return 2;
    default: return 4;
  }
}

// ceil(number / divisor), and `number` rounded up to a multiple of `divisor`, for number >= 0 and
// divisor > 0.
template <class N, class D>
HOST_DEVICE constexpr auto div_up(N number, D divisor) {
  return (number + divisor - 1) / divisor;
}
template <class N, class D>
HOST_DEVICE constexpr auto round_up(N number, D divisor) {
  return div_up(number, divisor) * divisor;
}

// Returns whether a * b <= limit, for numbers >= 0, and if so sets *product.
inline bool multiply_up_to(int64_t limit, int64_t a, int64_t b, int64_t* product) {
  return !__builtin_mul_overflow(a, b, product) && *product <= limit;
}

// The number of elements of a tensor. The sizes were checked, so the product does not overflow.
inline int64_t elements(const Tensor& tensor) {
  int64_t n = 1;
  for (int i = 0; i < tensor.ndim; ++i) n *= tensor.shape[i];
  return n;
}

// Calls body(T{}) with the element type of dtype: float, double or Half.
template <class Body>
void with_dtype(int dtype, const Body& body) {
  if (dtype == GLUON_ROI_FLOAT32) return body(float{});
  if (dtype == GLUON_ROI_FLOAT64) return body(double{});
  return body(Half{});
}

}  // namespace gluon_roi
