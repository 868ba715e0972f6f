#include "simd.h"

#include <algorithm>
#include <cstdlib>
#include <string>

#include "../core/errors.h"

namespace gluon_roi::cpu {

const char* simd_name(SimdLevel level) {
  switch (level) {
    case SimdLevel::kAvx512: return "avx512";
    case SimdLevel::kAvx2: return "avx2";
    default: return "sse2";
  }
}

static SimdLevel detect_simd_level() {
  __builtin_cpu_init();
  SimdLevel best = SimdLevel::kSse2;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) best = SimdLevel::kAvx2;
  if (best == SimdLevel::kAvx2 && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    best = SimdLevel::kAvx512;
  }
  const char* wanted = std::getenv("GLUON_ROI_SIMD");
  if (wanted == nullptr || *wanted == '\0') return best;
  for (SimdLevel level : {SimdLevel::kSse2, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
    if (std::string(wanted) == simd_name(level)) return std::min(level, best);
  }
  fail("gluon_roi", "environment variable GLUON_ROI_SIMD: expected sse2, avx2 or avx512, got '",
       wanted, "'");
}

SimdLevel simd_level() {
  static const SimdLevel level = detect_simd_level();
  return level;
}

}  // namespace gluon_roi::cpu
