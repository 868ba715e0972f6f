#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace gluon_roi::cpu {

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

#ifdef _OPENMP
namespace {

// Of the threads that OpenMP has started, fork() copies none, but OpenMP would wait for them. So a
// child runs on the one thread that it has.
std::atomic<bool> in_child{false};
const int at_fork = pthread_atfork(nullptr, nullptr, [] { in_child = true; });

}  // namespace
#endif

int max_threads() {
#ifdef _OPENMP
  // MXNet's workers set their own number of threads, which OpenMP returns here.
  return at_fork != 0 || in_child ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

void parallel_for_impl(int64_t tasks, int64_t work, void (*run)(const void*, int64_t),
                       const void* body) {
#ifdef _OPENMP
  const int64_t useful = std::min<int64_t>(tasks, work / kElementsPerThread);
  const int threads = static_cast<int>(std::min<int64_t>(max_threads(), useful));
  if (threads > 1) {
    // Each thread has tasks that follow each other, and helps the others when it has done them.
    // Tasks that follow each other write to memory side by side. Were they done by different
    // threads at the same time, each would fetch early what the other is writing: 1 to 3 times as
    // long for K=2000, depending on which two cores the machine gave.
    std::vector<Share> shares(threads);
    for (int i = 0; i < threads; ++i) {
      shares[i].set(tasks * i / threads, tasks * (i + 1) / threads);
    }
    // No exception may leave the region; what can throw (memory) is caught and thrown again.
    std::exception_ptr error;
#pragma omp parallel num_threads(threads)
    for (int i = 0; i < threads; ++i) {
      Share& share = shares[(omp_get_thread_num() + i) % threads];
      for (int64_t task = share.take(i == 0); task >= 0; task = share.take(i == 0)) {
        try {
          run(body, task);
        } catch (...) {
#pragma omp critical
          error = std::current_exception();
        }
      }
    }
    if (error) std::rethrow_exception(error);
    return;
  }
#endif
  for (int64_t task = 0; task < tasks; ++task) run(body, task);
}

}  // namespace gluon_roi::cpu
