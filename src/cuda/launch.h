// SPDX-License-Identifier: Apache-2.0
// Launching of CUDA kernels. Only .cu files include this; for the tests g++ compiles them as well,
// with tests/hostsim/cuda_runtime.h.
//
// Every CUDA operator follows this contract. It launches on the caller's stream and never
// synchronises. All its scratch memory comes from one workspace. Offsets into arrays are 64-bit.
// Nothing is launched for an empty output. There are no atomics: every element of an output belongs
// to one thread, which adds its terms in a fixed order, so results repeat bit for bit.
#pragma once
#include <cuda_runtime.h>

#include <limits>
#include <type_traits>

#include "../core/roi_contract.h"
#include "backend.h"

// Marks device functions of a kernel.
#define DEVICE_INLINE __device__ __forceinline__

namespace gluon_roi::cuda {

void check_cuda(const char* op, cudaError_t error);

// Runs kernel(arguments...) on gpu.stream, with one-dimensional blocks.
template <class... Parameters>
void launch(const Gpu& gpu, void (*kernel)(Parameters...), int64_t blocks, int threads,
            std::common_type_t<Parameters>... arguments) {
  if (blocks == 0) return;
  if (blocks > std::numeric_limits<int32_t>::max()) {
    fail(gpu.op, "needs ", blocks, " thread blocks, CUDA launches at most ",
         std::numeric_limits<int32_t>::max());
  }
  void* pointers[] = {static_cast<void*>(&arguments)...};
  check_cuda(gpu.op, cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)),
                                      dim3(static_cast<unsigned>(threads)), pointers, 0,
                                      static_cast<cudaStream_t>(gpu.stream)));
}

// Reduces each sums[i], which has an element for each thread of the block, to its sum in
// sums[i][0], in a tree of fixed shape.
template <class A, int count, int threads>
__device__ void sum_over_threads(A (&sums)[count][threads]) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int half = threads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread >= half) continue;
    for (int i = 0; i < count; ++i) sums[i][thread] += sums[i][thread + half];
  }
  __syncthreads();
}

}  // namespace gluon_roi::cuda
