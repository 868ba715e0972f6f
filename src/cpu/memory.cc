// SPDX-License-Identifier: Apache-2.0
#include "memory.h"

#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstdlib>
#include <memory>

#include "simd.h"
#include "threads.h"

namespace gluon_roi {
namespace cpu {

void* thread_scratch(size_t bytes, Scratch which) {
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  struct Memory {
    std::unique_ptr<void, Free> place;
    size_t capacity = 0;
  };
  static thread_local Memory memories[2];
  Memory& memory = memories[static_cast<int>(which)];
#ifdef GLUON_ROI_DEBUG
  // The debug build allocates exactly this size each time, so that AddressSanitizer reports any
  // access past the end, and fills it with NaN, so that reading uninitialised memory shows in the
  // result.
  void* exact = nullptr;
  if (posix_memalign(&exact, 4096, bytes > 0 ? bytes : 1) != 0) throw NoMemory(bytes);
  memset(exact, 0xff, bytes);
  memory.place.reset(exact);
#else
  if (bytes > memory.capacity) {
    memory.place.reset();
    memory.capacity = 0;
    const size_t rounded = round_up(bytes, 4096);
    void* fresh = std::aligned_alloc(4096, rounded);
    if (fresh == nullptr) throw NoMemory(bytes);
    memory.place.reset(fresh);
    memory.capacity = rounded;
  }
#endif
  return memory.place.get();
}

// ---- Huge pages ---------------------------------------------------------------------------------

namespace {

enum class HugePages { kNone, kWhileFast, kAll };

HugePages requested_huge_pages() {
  static const HugePages requested = [] {
    const char* text = std::getenv("GLUON_ROI_HUGE_PAGES");
    if (text == nullptr || *text == '\0') return HugePages::kWhileFast;
    const std::string value = text;
    if (value != "0" && value != "1") {
      fail("gluon_roi", "environment variable GLUON_ROI_HUGE_PAGES: expected 0 or 1, got '", value,
           "'");
    }
    return value == "1" ? HugePages::kAll : HugePages::kNone;
  }();
  return requested;
}

// Processor time of this thread, which is not affected by other threads on a busy machine.
double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void check_environment() {
  simd_level();
  requested_huge_pages();
}

static void use_huge_pages(const Tensor& tensor) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHugePage = 2 << 20;
  // Each page is timed: Linux hands out the most recently freed pages first, so a few fast pages do
  // not predict the others. A page that was slow is usually fast in the next call. A call accepts a
  // quarter of slow pages, so a loop becomes fast within about four calls.
  constexpr double kSlow = 1e-3;
  const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data);
  const uintptr_t begin = round_up(address, kHugePage);
  const uintptr_t end =
      (address + static_cast<size_t>(elements(tensor)) * dtype_size(tensor.dtype)) / kHugePage *
      kHugePage;
  const HugePages requested = requested_huge_pages();
  if (requested == HugePages::kNone || end < begin + 2 * kHugePage) return;
  // This is only a hint, so a failure is ignored.
  if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) != 0) return;
  if (requested == HugePages::kAll) return;
  const uintptr_t max_slow = (end - begin) / kHugePage / 4 + 1;
  std::atomic<uintptr_t> slow{0};
  std::atomic<uintptr_t> next{begin};
  parallel_for(max_threads(), static_cast<int64_t>(end - begin), [&](int64_t) {
    while (slow <= max_slow) {
      const uintptr_t page = next.fetch_add(kHugePage);
      if (page >= end) return;
      const double start = thread_seconds();
      // Makes the page resident without changing its contents.
      __atomic_fetch_or(reinterpret_cast<char*>(page), 0, __ATOMIC_RELAXED);
      slow += thread_seconds() - start > kSlow;
    }
  });
  if (next < end) {
    madvise(reinterpret_cast<void*>(next.load()), end - next, MADV_NOHUGEPAGE);
  }
#endif
}

}  // namespace cpu

void prepare_output(const Tensor& tensor) { cpu::use_huge_pages(tensor); }

void zero_fill(Cpu, const Tensor& tensor) {
  const size_t bytes = static_cast<size_t>(elements(tensor)) * dtype_size(tensor.dtype);
  if (bytes > 0) memset(tensor.data, 0, bytes);
}

}  // namespace gluon_roi
