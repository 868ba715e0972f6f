// SPDX-License-Identifier: Apache-2.0
// Parallel loops on the threads that MXNet assigns to an operator.
#pragma once
#include <cstdint>

namespace gluon_roi::cpu {

// The number of threads; 1 in a child process of fork().
int max_threads();

// Runs body(task) for every task in [0, tasks). It uses a single thread if `work`, the number of
// elements that are read or written, is too small to justify waking a second. Tasks write disjoint
// outputs, so results do not depend on the number of threads.
void parallel_for_impl(int64_t tasks, int64_t work, void (*run)(const void*, int64_t),
                       const void* body);
template <class Body>
void parallel_for(int64_t tasks, int64_t work, const Body& body) {
  parallel_for_impl(
      tasks, work, [](const void* self, int64_t task) { (*static_cast<const Body*>(self))(task); },
      &body);
}

}  // namespace gluon_roi::cpu
