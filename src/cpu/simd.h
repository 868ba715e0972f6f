// SPDX-License-Identifier: Apache-2.0
// Dispatch to instruction sets: one source, compiled for all of them, chosen at run time.
#pragma once
#include "../core/types.h"

namespace gluon_roi::cpu {

// The baseline is what the compiler may assume of every processor of the architecture: SSE2 or
// NEON. Both have registers of 16 bytes; NEON has twice as many. AVX2 comes with F16C, the
// conversions of float16, and with FMA.
enum class SimdLevel : int { kBaseline, kAvx2, kAvx512 };

// The best level of this processor, or a lower one from GLUON_ROI_SIMD. It is chosen once.
SimdLevel simd_level();
const char* simd_name(SimdLevel level);

// Properties of a level that kernels use at compile time.
template <int register_bytes>
struct Simd {
  static constexpr int kRegisterBytes = register_bytes;
  // Whether the processor converts float16.
#ifdef __aarch64__
  static constexpr bool kConvertsHalf = true;
#else
  static constexpr bool kConvertsHalf = register_bytes > 16;
#endif
  // Whether it fuses a multiplication and an addition, which multiply_add() of fused.h uses.
#ifdef __aarch64__
  static constexpr bool kFuses = true;
#else
  static constexpr bool kFuses = register_bytes > 16;
#endif
};
using Baseline = Simd<16>;

// Runs body(Simd<...>{}), a lambda [&](auto simd) INLINE_LAMBDA { ... }, compiled for the chosen
// level. Everything that body calls must be ALWAYS_INLINE: a function that is not inlined stays at
// the baseline, correct but slow. All levels share this source, and without fused multiply-adds
// (-ffp-contract=off) they return the same bytes; fused.h has the explicit ones.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(GLUON_ROI_BASELINE)
// ThreadSanitizer builds have the baseline only, because threads do the same at each level.
#define SIMD_DISPATCH
// Clang uses registers of 64 bytes by default, GCC only with this option.
#ifdef __clang__
#define PREFER_512_BIT
#else
#define PREFER_512_BIT ",prefer-vector-width=512"
#endif
template <class Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c" PREFER_512_BIT))) void
run_avx512(const Body& body) {
  body(Simd<64>{});
}
template <class Body>
__attribute__((target("avx2,fma,f16c"))) void run_avx2(const Body& body) {
  body(Simd<32>{});
}
template <class Body>
void run_simd(const Body& body) {
  switch (simd_level()) {
    case SimdLevel::kAvx512: return run_avx512(body);
    case SimdLevel::kAvx2: return run_avx2(body);
    default: return body(Baseline{});
  }
}
#else
template <class Body>
void run_simd(const Body& body) {
  body(Baseline{});
}
#endif

}  // namespace gluon_roi::cpu
