// Instruction sets: chosen when the program runs, one source for all of them.
#pragma once
#include "../core/types.h"

namespace gluon_roi::cpu {

// Baseline: what the compiler assumes of every processor of the architecture, SSE2 or NEON. Both
// have registers of 16 bytes, of NEON twice as many.
enum class SimdLevel : int { kBaseline, kAvx2, kAvx512 };

// The best level of this processor, or the lower one that GLUON_ROI_SIMD names; decided once.
SimdLevel simd_level();
const char* simd_name(SimdLevel level);

// What a kernel knows about its level at compile time.
template <int register_bytes>
struct Simd {
  static constexpr int kRegisterBytes = register_bytes;
};

// Runs body(Simd<...>{}), a lambda [&](auto simd) INLINE_LAMBDA { ... }, compiled for the chosen
// level. Everything that body calls must be ALWAYS_INLINE: a function that is not inlined stays at
// the baseline, correct but slow. One source serves all levels, and without fused multiply-adds
// (-ffp-contract=off) all of them give the same bytes.
#ifdef __x86_64__
// Clang takes registers of 64 bytes where it has them; GCC has to be told.
#ifdef __clang__
#define WHOLE_REGISTERS
#else
#define WHOLE_REGISTERS ",prefer-vector-width=512"
#endif
template <class Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2" WHOLE_REGISTERS))) void run_avx512(
    const Body& body) {
  body(Simd<64>{});
}
template <class Body>
__attribute__((target("avx2"))) void run_avx2(const Body& body) {
  body(Simd<32>{});
}
template <class Body>
void run_simd(const Body& body) {
  switch (simd_level()) {
    case SimdLevel::kAvx512: return run_avx512(body);
    case SimdLevel::kAvx2: return run_avx2(body);
    default: return body(Simd<16>{});
  }
}
#else
template <class Body>
void run_simd(const Body& body) {
  body(Simd<16>{});
}
#endif

}  // namespace gluon_roi::cpu
