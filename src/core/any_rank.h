// SPDX-License-Identifier: Apache-2.0
// Operators of arrays of any number of dimensions, where a Tensor has at most 4.
#pragma once
#include <vector>

#include "params.h"

namespace gluon_roi {

// The sizes of an array of any number of dimensions. During shape inference -1 is an unknown size.
using ArraySizes = std::vector<int64_t>;
// Such an array, of float32.
struct SizedArray {
  float* data;
  ArraySizes sizes;
};

// An operator of arrays of any number of dimensions, as MXNet calls it (bindings/any_rank.h).
class AnyRank {
 public:
  // Returns the sizes of the output, and sets unknown sizes of inputs that follow from others.
  virtual ArraySizes infer(const Attributes& attributes, std::vector<ArraySizes>* inputs) const = 0;
  virtual void forward(const Attributes& attributes, const std::vector<SizedArray>& inputs,
                       const SizedArray& output) const = 0;

 protected:
  ~AnyRank() = default;
};

}  // namespace gluon_roi
