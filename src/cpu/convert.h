// SPDX-License-Identifier: Apache-2.0
// Loads, stores and copies with conversion: float16 in memory is float32 in registers.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>
#endif

#include <algorithm>
#include <type_traits>

#include "simd.h"

namespace gluon_roi::cpu {

// Whether registers can be loaded from and stored to arrays of T directly.
template <class T, class Simd>
constexpr bool kInRegisters = !std::is_same<T, Half>::value || Simd::kConvertsHalf;

// Load and store a register of 16 bytes, which every level has, or of 32. (Registers are passed by
// reference, because the ABI of a return value of 32 bytes depends on the level.)
template <class A, class Values>
ALWAYS_INLINE void load_register(const A* from, Values* to) {
  typedef A Stored __attribute__((vector_size(sizeof(Values)), aligned(alignof(A))));
  *to = *reinterpret_cast<const Stored*>(from);
}
template <class A, class Values>
ALWAYS_INLINE void store_register(A* to, const Values& from) {
  typedef A Stored __attribute__((vector_size(sizeof(Values)), aligned(alignof(A))));
  *reinterpret_cast<Stored*>(to) = from;
}

#if defined(__aarch64__) || defined(SIMD_DISPATCH)
// The same for float16, with the processor's conversions. (The levels of simd.h enable F16C. GCC
// warns that the ABI would depend on the level if these functions were not inlined.)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"
template <class Values>
ALWAYS_INLINE void load_register(const Half* from, Values* to) {
#if defined(__aarch64__)
  *to = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(&from->bits)));
#elif defined(__clang__)
  typedef __fp16 Halves __attribute__((vector_size(sizeof(Values) / 2)));
  Halves halves;
  memcpy(&halves, from, sizeof(halves));
  *to = __builtin_convertvector(halves, Values);
#else
  typedef int16_t Halves __attribute__((vector_size(16)));
  if constexpr (sizeof(Values) == 32) {
    Halves halves;
    memcpy(&halves, from, sizeof(halves));
    *to = __builtin_ia32_vcvtph2ps256(halves);
  } else {
    // (Without this, GCC copies half a register through memory, which stalls on store forwarding.)
    typedef int64_t Pair __attribute__((vector_size(16)));
    int64_t halves;
    memcpy(&halves, from, sizeof(halves));
    *to = __builtin_ia32_vcvtph2ps(reinterpret_cast<Halves>(Pair{halves, 0}));
  }
#endif
}
template <class Values>
ALWAYS_INLINE void store_register(Half* to, const Values& from) {
  // As in to_half(), there is only one NaN for each sign.
  using Bits = decltype(from == from);
  const Bits sign = reinterpret_cast<Bits>(from) & static_cast<int32_t>(0x80000000u);
  const Values values = from == from ? from : reinterpret_cast<Values>(sign | 0x7fc00000);
#if defined(__aarch64__)
  vst1_u16(&to->bits, vreinterpret_u16_f16(vcvt_f16_f32(values)));
#elif defined(__clang__)
  typedef __fp16 Halves __attribute__((vector_size(sizeof(Values) / 2)));
  const Halves halves = __builtin_convertvector(values, Halves);
  memcpy(to, &halves, sizeof(halves));
#else
  constexpr int kNearestEven = 0;
  typedef int16_t Halves __attribute__((vector_size(16)));
  Halves halves;
  if constexpr (sizeof(Values) == 32) {
    halves = __builtin_ia32_vcvtps2ph256(values, kNearestEven);
  } else {
    halves = __builtin_ia32_vcvtps2ph(values, kNearestEven);
  }
  memcpy(to, &halves, sizeof(Values) / 2);
#endif
}
#pragma GCC diagnostic pop
#endif

// Load and store one number.
template <class T, class Simd>
ALWAYS_INLINE SumOf<T> load_one(const T* from, Simd) {
#if defined(SIMD_DISPATCH)
  if constexpr (std::is_same<T, Half>::value && Simd::kConvertsHalf) {
#if defined(__clang__)
    __fp16 half;  // __fp16 cannot be a return type
    memcpy(&half, from, sizeof(half));
    return half;
#else
    typedef int16_t Halves __attribute__((vector_size(16)));
    const Halves halves{static_cast<int16_t>(from->bits)};
    return __builtin_ia32_vcvtph2ps(halves)[0];
#endif
  }
#endif
  return load(from);
}
template <class T, class Simd>
ALWAYS_INLINE void store_one(T* to, SumOf<T> value, Simd) {
#if defined(SIMD_DISPATCH)
  if constexpr (std::is_same<T, Half>::value && Simd::kConvertsHalf) {
    Half halves[4];
    const float __attribute__((vector_size(16))) values{value};
    store_register(halves, values);
    *to = halves[0];
    return;
  }
#endif
  store(to, value);
}

// run_simd for a body that loads or stores single numbers of type T: only float16 benefits from a
// higher level, through its conversions.
template <class T, class Body>
void run_scalar(const Body& body) {
  if constexpr (std::is_same<T, SumOf<T>>::value) {
    body(Baseline{});
  } else {
    run_simd(body);
  }
}

// Copies `count` numbers register by register; the last register overlaps the previous one. Returns
// false, without copying, if there are too few for one register.
template <int bytes, class From, class To>
ALWAYS_INLINE bool copy_registers(const From* from, int64_t count, To* to) {
  constexpr int64_t kSize = bytes / sizeof(SumOf<From>);
  if (count < kSize) return false;
  for (int64_t next = 0; next < count; next += kSize) {
    const int64_t i = std::min(next, count - kSize);
    typedef SumOf<From> Values __attribute__((vector_size(bytes)));
    Values values;
    load_register(from + i, &values);
    store_register(to + i, values);
  }
  return true;
}

// Copies `count` numbers between non-overlapping arrays of T and SumOf<T>.
template <class From, class To, class Simd>
ALWAYS_INLINE void copy_run(const From* from, int64_t count, To* to, Simd simd) {
  if constexpr (kInRegisters<From, Simd> && kInRegisters<To, Simd>) {
    constexpr int kWide = std::min(Simd::kRegisterBytes, 32);
    if (copy_registers<kWide>(from, count, to) || copy_registers<16>(from, count, to)) return;
  } else {
    // An inner loop of constant length, which GCC vectorises.
    constexpr int kSize = 16;
    for (; count >= kSize; count -= kSize, from += kSize, to += kSize) {
#pragma omp simd
      for (int i = 0; i < kSize; ++i) store(to + i, load(from + i));
    }
  }
  for (int64_t i = 0; i < count; ++i) store_one(to + i, load_one(from + i, simd), simd);
}

}  // namespace gluon_roi::cpu
