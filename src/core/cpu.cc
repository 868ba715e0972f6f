#include "cpu.h"

#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace gluon_roi {

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

// Waking the second thread costs some 5 us, in which one thread touches this many elements.
static constexpr int64_t kElementsPerThread = 1 << 15;

#ifdef _OPENMP
namespace {

// The tasks of one thread that are still to be done, on cache lines of their own.
class alignas(64) Share {
 public:
  void set(int64_t begin, int64_t end) { begin_ = begin, end_ = end; }
  // The next task: its owner's come from the front, those of other threads from the back. Negative
  // if there is none.
  int64_t take(bool own) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begin_ == end_) return -1;
    return own ? begin_++ : --end_;
  }

 private:
  std::mutex mutex_;
  int64_t begin_ = 0, end_ = 0;
};

}  // namespace
#endif

void parallel_for_impl(int64_t tasks, int64_t work, void (*run)(const void*, int64_t),
                       const void* body) {
#ifdef _OPENMP
  // MXNet's workers set their own number of threads, which omp_get_max_threads() returns here.
  const int64_t useful = std::min<int64_t>(tasks, work / kElementsPerThread);
  const int threads = static_cast<int>(std::min<int64_t>(omp_get_max_threads(), useful));
  if (threads > 1) {
    // Each thread has tasks that follow each other, and helps the others when it has done them.
    // Tasks that follow each other write to memory side by side. Were they done by different
    // threads at the same time, each would fetch early what the other is writing: 1 to 3 times as
    // long for K=2000, depending on which two cores the machine gave.
    std::vector<Share> shares(threads);
    for (int i = 0; i < threads; ++i) {
      shares[i].set(tasks * i / threads, tasks * (i + 1) / threads);
    }
    // No exception may leave the region; what can throw (memory) is caught and thrown again. Not by
    // std::exception_ptr, whose symbols are newer than manylinux_2_28.
    std::string error;
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < threads; ++i) {
      Share& share = shares[(omp_get_thread_num() + i) % threads];
      for (int64_t task = share.take(i == 0); task >= 0; task = share.take(i == 0)) {
        try {
          run(body, task);
        } catch (const std::exception& caught) {
#pragma omp critical
          error = caught.what();
        }
      }
    }
    if (!error.empty()) throw std::runtime_error(error);
    return;
  }
#endif
  for (int64_t task = 0; task < tasks; ++task) run(body, task);
}

void* thread_scratch(size_t bytes) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  static thread_local std::unique_ptr<void, Free> memory;
  static thread_local size_t capacity = 0;
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    const size_t rounded = (bytes + 4095) / 4096 * 4096;
    void* fresh = std::aligned_alloc(4096, rounded);
    if (fresh == nullptr) throw std::bad_alloc();
    memory.reset(fresh);
    capacity = rounded;
  }
  return memory.get();
}

}  // namespace gluon_roi
