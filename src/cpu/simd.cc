// SPDX-License-Identifier: Apache-2.0
#include "simd.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdlib>
#include <string>

#include "../core/errors.h"

namespace gluon_roi::cpu {

const char* simd_name(SimdLevel level) {
  switch (level) {
    case SimdLevel::kAvx512: return "avx512";
    case SimdLevel::kAvx2: return "avx2";
    default: break;
  }
#if defined(__x86_64__)
  return "sse2";
#elif defined(__aarch64__)
  return "neon";
#else
  return "baseline";
#endif
}

#ifdef SIMD_DISPATCH
// __builtin_cpu_supports() of older compilers does not support "f16c".
static bool has_f16c() {
  unsigned int eax, ebx, ecx, edx;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

static SimdLevel best_simd_level() {
#ifdef SIMD_DISPATCH
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c()) {
    return SimdLevel::kBaseline;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return SimdLevel::kAvx512;
  }
  return SimdLevel::kAvx2;
#else
  return SimdLevel::kBaseline;
#endif
}

static SimdLevel choose_simd_level() {
  const SimdLevel best = best_simd_level();
  const char* requested = std::getenv("GLUON_ROI_SIMD");
  if (requested == nullptr || *requested == '\0') return best;
  std::string supported;
#ifdef __x86_64__
  constexpr SimdLevel kHighest = SimdLevel::kAvx512;
#else
  constexpr SimdLevel kHighest = SimdLevel::kBaseline;
#endif
  for (SimdLevel level : {SimdLevel::kBaseline, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (level <= kHighest && std::string(requested) == simd_name(level)) {
      return std::min(level, best);
    }
    if (level <= best) {
      supported += (supported.empty() ? "" : " or ") + std::string(simd_name(level));
    }
  }
  fail("gluon_roi", "environment variable GLUON_ROI_SIMD: expected ", supported,
       ", which this processor has, got '", requested, "'");
}

SimdLevel simd_level() {
  static const SimdLevel level = choose_simd_level();
  return level;
}

}  // namespace gluon_roi::cpu
