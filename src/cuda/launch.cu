// SPDX-License-Identifier: Apache-2.0
#include "launch.h"

namespace gluon_roi {

namespace cuda {

void check_cuda(const char* op, cudaError_t error) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // clears the error, so that a later call does not report it again
  throw Error(std::string(op) + ": CUDA: " + cudaGetErrorString(error), GLUON_ROI_CUDA_ERROR);
}

}  // namespace cuda

void zero_fill(const Gpu& gpu, const Tensor& tensor) {
  const size_t bytes = static_cast<size_t>(elements(tensor)) * dtype_size(tensor.dtype);
  if (bytes == 0) return;
  cuda::check_cuda(gpu.op,
                   cudaMemsetAsync(tensor.data, 0, bytes, static_cast<cudaStream_t>(gpu.stream)));
}

}  // namespace gluon_roi
