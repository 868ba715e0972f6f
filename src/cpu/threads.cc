// SPDX-License-Identifier: Apache-2.0
#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

namespace gluon_roi::cpu {

#ifdef _OPENMP
namespace {

// Waking the second thread costs some 5 us, in which one thread touches this many elements. The
// debug build uses all threads even for the smallest call, to find faults.
#ifdef GLUON_ROI_DEBUG
constexpr int64_t kElementsPerThread = 1;
#else
constexpr int64_t kElementsPerThread = 1 << 15;
#endif

// The remaining tasks of one thread, on separate cache lines.
class alignas(64) Share {
 public:
  void set(int64_t begin, int64_t end) { begin_ = begin, end_ = end; }
  // The next task, or a negative number if there is none. The owner takes tasks from the front,
  // other threads from the back.
  int64_t take(bool from_front) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begin_ == end_) return -1;
    return from_front ? begin_++ : --end_;
  }

 private:
  std::mutex mutex_;
  int64_t begin_ = 0, end_ = 0;
};

// fork() does not copy the threads that OpenMP has started, but OpenMP would wait for them. So a
// child process uses its single thread.
std::atomic<bool> in_child{false};
const int at_fork = pthread_atfork(nullptr, nullptr, [] { in_child = true; });

}  // namespace
#endif

int max_threads() {
#ifdef _OPENMP
  // MXNet's worker threads set their number of threads, which OpenMP returns here.
  return at_fork != 0 || in_child ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

void parallel_for_impl(int64_t tasks, [[maybe_unused]] int64_t work,
                       void (*run)(const void*, int64_t), const void* body) {
#ifdef _OPENMP
  const int64_t useful = std::min<int64_t>(tasks, work / kElementsPerThread);
  const int threads = static_cast<int>(std::min<int64_t>(max_threads(), useful));
  if (threads > 1) {
    // Each thread has consecutive tasks, and helps the others when it is done. Consecutive tasks
    // write adjacent memory. If different threads ran them at the same time, each would prefetch
    // what the other is writing: 1 to 3 times as long for K=2000, depending on which two cores the
    // machine provides.
    std::vector<Share> shares(threads);
    for (int i = 0; i < threads; ++i) {
      shares[i].set(tasks * i / threads, tasks * (i + 1) / threads);
    }
    // No exception may leave the region, so errors (of memory) are caught and thrown again. Only
    // the message is kept, because exception_ptr needs a newer libstdc++ than the wheel requires.
    std::mutex error_mutex;
    std::string error;
    const auto run_share = [&](int thread) {
      for (int i = 0; i < threads; ++i) {
        Share& share = shares[(thread + i) % threads];
        for (int64_t task = share.take(i == 0); task >= 0; task = share.take(i == 0)) {
          try {
            run(body, task);
          } catch (const std::exception& thrown) {
            const std::lock_guard<std::mutex> lock(error_mutex);
            error = thrown.what();
          }
        }
      }
    };
#ifdef __SANITIZE_THREAD__
    // ThreadSanitizer does not see how libgomp's threads synchronise, and would report all shared
    // data. It understands std::thread.
    std::vector<std::thread> team;
    for (int i = 1; i < threads; ++i) team.emplace_back(run_share, i);
    run_share(0);
    for (std::thread& member : team) member.join();
#else
#pragma omp parallel num_threads(threads)
    run_share(omp_get_thread_num());
#endif
    if (!error.empty()) throw std::runtime_error(error);
    return;
  }
#endif
  for (int64_t task = 0; task < tasks; ++task) run(body, task);
}

}  // namespace gluon_roi::cpu
