// SPDX-License-Identifier: Apache-2.0
// The single block of device memory that a call of an operator may use.
#pragma once
#include "launch.h"

namespace gluon_roi::cuda {

// Carves arrays out of the workspace. With a null pointer it only measures: Op::workspace() runs
// the same constructors as the call itself, so the two cannot disagree.
class Carver {
 public:
  explicit Carver(char* memory = nullptr) : memory_(memory) {}
  template <class T>
  T* take(int64_t count) {
    T* array = memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + size_);
    int64_t bytes;
    if (!multiply_up_to(kMaxElements, count, sizeof(T), &bytes) ||
        bytes > kMaxElements - static_cast<int64_t>(size_)) {
      fail("gluon_roi", "a workspace of more than ", kMaxElements, " bytes would be needed");
    }
    size_ += round_up(static_cast<size_t>(bytes), 256);
    return array;
  }
  size_t size() const { return size_; }

 private:
  char* memory_;
  size_t size_ = 0;
};

}  // namespace gluon_roi::cuda
