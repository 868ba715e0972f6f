// SPDX-License-Identifier: Apache-2.0
// Shape inference for MXNet, where sizes may be unknown.
#pragma once
#include <string>
#include <vector>

#include "../core/registry.h"

namespace gluon_roi {

using Shape = std::vector<unsigned int>;
using Shapes = std::vector<Shape>;

// MXNet's MXIsNumpyShape(), which mxnet.cc looks up; null if MXNet does not export it.
extern int (*is_np_shape)(int*);

// Converts a shape to a Tensor. If it has more dimensions than a Tensor, the batch dimensions are
// folded into one.
Tensor tensor_of(const std::vector<int64_t>& shape, Role role);

// Infers the shapes of the outputs from the known shapes of the inputs. Throws if an input has no
// shape, except in infer_shape_partial().
void infer(const Operator& op, const Attributes& attributes, Shapes* in, Shapes* out);

}  // namespace gluon_roi
