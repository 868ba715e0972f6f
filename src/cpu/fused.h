// SPDX-License-Identifier: Apache-2.0
// Fused multiply-adds, for the operators whose speed is that of the processor's arithmetic.
#pragma once
#include "convert.h"

namespace gluon_roi::cpu {

// GCC warns that these types would depend on the level if the function were not inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

// *sum += a * b, rounded once at levels that can, and twice at others (SSE2). So the bytes of a sum
// depend on the level there alone.
template <class Simd, class Register>
ALWAYS_INLINE void multiply_add(const Register& a, const Register& b, Register* sum) {
  if constexpr (!Simd::kFuses) {
    *sum += a * b;
  } else {
#if defined(__clang__)
    *sum = __builtin_elementwise_fma(a, b, *sum);
#elif defined(__aarch64__)
    static_assert(sizeof(Register) == 16, "NEON has one size of registers");
    *sum = vfmaq_f32(*sum, a, b);
#elif defined(SIMD_DISPATCH)
    if constexpr (sizeof(Register) == 16) {
      *sum = __builtin_ia32_vfmaddps(a, b, *sum);
    } else if constexpr (sizeof(Register) == 32) {
      *sum = __builtin_ia32_vfmaddps256(a, b, *sum);
    } else {
      constexpr int kAllLanes = -1, kRoundAsSet = 4;
      *sum = __builtin_ia32_vfmaddps512_mask(a, b, *sum, kAllLanes, kRoundAsSet);
    }
#endif
  }
}

#pragma GCC diagnostic pop

}  // namespace gluon_roi::cpu
