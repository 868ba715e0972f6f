// SPDX-License-Identifier: Apache-2.0
// CPU memory: arrays, scratch memory and prefetching.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <vector>

#include "../core/contract.h"

namespace gluon_roi {

// Writes zeros, as the gradient of an input that has none.
void zero_fill(Cpu, const Tensor& tensor);

// Called with an array that is about to be written completely.
void prepare_output(const Tensor& tensor);

namespace cpu {

// Throws unless the environment variables that kernels read are valid, so that a call that is
// rejected for one has written nothing.
void check_environment();

// That of std::vector, which throws NoMemory.
template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) {}
  T* allocate(size_t count) {
    constexpr size_t kMost = std::numeric_limits<size_t>::max() / sizeof(T);
    const size_t bytes = std::min(count, kMost) * sizeof(T);
    void* const memory = count > kMost ? nullptr : ::operator new(bytes, std::nothrow);
    if (memory == nullptr) throw NoMemory(bytes);
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t) { ::operator delete(static_cast<void*>(memory)); }
  friend bool operator==(const Allocator&, const Allocator&) { return true; }
  friend bool operator!=(const Allocator&, const Allocator&) { return false; }
};
// Arrays whose size depends on a call.
template <class T>
using Vector = std::vector<T, Allocator<T>>;

// Scratch memory of this thread, kept between calls; contents are undefined.
void* thread_scratch(size_t bytes);
template <class A>
A* scratch(int64_t count) {
  return static_cast<A*>(thread_scratch(static_cast<size_t>(count) * sizeof(A)));
}

// Prefetches one element of each lane, `step` elements apart.
template <class T>
ALWAYS_INLINE void prefetch_lanes(int lanes, const T* from, int64_t step) {
  for (int lane = 0; lane < lanes; ++lane) __builtin_prefetch(from + lane * step, 1);
}

// Prefetches `count` elements in `steps` steps, which the caller spreads over the preceding work.
// All at once would fill the processor's queue of outstanding reads, and the work would wait for
// it. (ROIPool and ROIAlign with 2000 RoIs took 1.2 to 1.4 times as long.)
template <class T>
class GradualPrefetch {
 public:
  ALWAYS_INLINE GradualPrefetch(const T* from, int64_t count, int64_t steps)
      : line_(from), goal_(from), step_(steps > 0 ? div_up(count, steps) : 0) {}
  ALWAYS_INLINE void next(int64_t steps = 1) {
    constexpr int64_t kLine = 64 / sizeof(T);
    goal_ += steps * step_;
    for (; line_ < goal_; line_ += kLine) __builtin_prefetch(line_, 1);
  }

 private:
  const T* line_;  // the next to prefetch
  const T* goal_;  // the end of the steps so far
  int64_t step_;
};

}  // namespace cpu
}  // namespace gluon_roi
