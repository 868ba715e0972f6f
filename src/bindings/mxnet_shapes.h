// SPDX-License-Identifier: Apache-2.0
// Shapes as MXNet infers them, where sizes may be unknown.
#pragma once
#include <string>
#include <vector>

#include "../core/registry.h"

namespace gluon_roi {

using Shape = std::vector<unsigned int>;
using Shapes = std::vector<Shape>;

// MXNet's MXIsNumpyShape(), which mxnet.cc looks up; null in a library that does not have it.
extern int (*is_np_shape)(int*);

// An array as an operator sees it: batches with more dimensions than a Tensor has become one.
Tensor tensor_of(const std::vector<int64_t>& shape, Role role);

// Infers the shapes of the outputs from those of the inputs, as far as these are known. Throws if
// an input has no shape, except in infer_shape_partial().
void infer(const Operator& op, const Attributes& attributes, Shapes* in, Shapes* out);

}  // namespace gluon_roi
