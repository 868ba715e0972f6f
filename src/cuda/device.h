// SPDX-License-Identifier: Apache-2.0
// CUDA functions for plain C++: including this needs no CUDA header.
#pragma once
#include "../core/contract.h"

namespace gluon_roi {

// Writes zeros, as the gradient of an input that has none.
void zero_fill(const char* op, const Gpu& gpu, const Tensor& tensor);

}  // namespace gluon_roi
