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

// Writes zeros, the gradient of an input that has none.
void zero_fill(Cpu, const Tensor& tensor);

// Asks for huge pages for an array that is about to be overwritten completely, if it is large, and
// makes them resident as long as that is fast.
void prepare_output(const Tensor& tensor);

namespace cpu {

// Throws unless the environment variables that kernels read are valid. It is called before anything
// is written.
void check_environment();

// The allocator of std::vector, except that it throws NoMemory.
template <class T>
struct Allocator {
  using value_type = T;
  Allocator() = default;
  template <class U>
  Allocator(const Allocator<U>&) {}
  T* allocate(size_t count) {
    constexpr size_t kMaxCount = std::numeric_limits<size_t>::max() / sizeof(T);
    const size_t bytes = std::min(count, kMaxCount) * sizeof(T);
    void* const memory = count > kMaxCount ? nullptr : ::operator new(bytes, std::nothrow);
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

// Scratch memory of this thread, which is kept between calls. Its contents are undefined. A task
// that runs while its caller uses the first needs the second.
enum class Scratch : int { kFirst, kSecond };
void* thread_scratch(size_t bytes, Scratch which);
template <class A>
A* scratch(int64_t count, Scratch which = Scratch::kFirst) {
  return static_cast<A*>(thread_scratch(static_cast<size_t>(count) * sizeof(A), which));
}

// Prefetches one element of each lane, `step` elements apart.
template <class T>
ALWAYS_INLINE void prefetch_lanes(int lanes, const T* from, int64_t step) {
  for (int lane = 0; lane < lanes; ++lane) __builtin_prefetch(from + lane * step, 1);
}

// Prefetches `count` elements in `steps` steps, which the caller distributes over the work before
// they are needed. Prefetching everything at once would fill the processor's queue of outstanding
// reads and stall the work. (ROIPool and ROIAlign with 2000 RoIs took 1.2 to 1.4 times as long.)
// Lines are prefetched for writing, even lines of d_out, which is only read.
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
  const T* line_;  // the next line to prefetch
  const T* goal_;  // prefetch up to here
  int64_t step_;
};

}  // namespace cpu
}  // namespace gluon_roi
