// SPDX-License-Identifier: Apache-2.0
#include "threads.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "../core/errors.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace gluon_roi::cpu {

#ifdef _OPENMP
namespace {

// Waking a second thread costs about 5 us, in which one thread processes this many elements. The
// debug build uses all threads even for the smallest call, to find races.
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

// The exception of the first task that failed, as with a single thread. (exception_ptr needs a
// newer libstdc++ than the wheel requires.) Storing NoMemory does not allocate.
class Failure {
 public:
  void keep(int64_t task, const Error* error, size_t bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (task_ >= 0 && task_ < task) return;
    task_ = task;
    bytes_ = bytes;
    error_.reset();
    if (error != nullptr) error_.emplace(*error);
  }
  void throw_again() const {
    if (task_ < 0) return;
    if (error_.has_value()) throw Error(*error_);
    throw NoMemory(bytes_);
  }

 private:
  std::mutex mutex_;
  int64_t task_ = -1;
  std::optional<Error> error_;  // empty for NoMemory
  size_t bytes_ = 0;
};

// fork() does not copy the threads that OpenMP has started, but OpenMP would wait for them, so a
// child process uses a single thread.
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
    // Each thread starts with consecutive tasks, and then helps the others. Consecutive tasks write
    // adjacent memory; if two threads ran them at the same time, each would prefetch what the other
    // is writing (K = 2000: 1 to 3 times as long, depending on which two cores the machine
    // provides).
    std::vector<Share> shares(threads);
    for (int i = 0; i < threads; ++i) {
      shares[i].set(tasks * i / threads, tasks * (i + 1) / threads);
    }
    // Exceptions must not leave the OpenMP region, so they are caught and rethrown after it.
    Failure failure;
    const auto run_share = [&](int thread) {
      for (int i = 0; i < threads; ++i) {
        Share& share = shares[(thread + i) % threads];
        for (int64_t task = share.take(i == 0); task >= 0; task = share.take(i == 0)) {
          try {
            run(body, task);
          } catch (const Error& thrown) {
            failure.keep(task, &thrown, 0);
          } catch (const NoMemory& thrown) {
            failure.keep(task, nullptr, thrown.bytes);
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
    failure.throw_again();
    return;
  }
#endif
  for (int64_t task = 0; task < tasks; ++task) run(body, task);
}

}  // namespace gluon_roi::cpu
