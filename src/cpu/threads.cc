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

// Waking the second thread costs some 5 us, in which one thread touches this many elements. The
// debug build is there to find faults, and uses all threads for the smallest of calls.
#ifdef GLUON_ROI_DEBUG
static constexpr int64_t kElementsPerThread = 1;
#else
static constexpr int64_t kElementsPerThread = 1 << 15;
#endif

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
    // Its sentence is kept, for exception_ptr needs a newer libstdc++ than the wheel asks for.
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
    // ThreadSanitizer does not see how libgomp's threads wait for each other, and would report all
    // that they share; of std::thread it knows.
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
