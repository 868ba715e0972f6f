// What CUDA offers to plain C++: no CUDA header is needed to include this.
#pragma once
#include "../core/contract.h"

namespace gluon_roi {

// Writes zeros: the gradient of an input that has none.
void zero_fill(const Gpu& gpu, const Tensor& tensor);

}  // namespace gluon_roi
