// SPDX-License-Identifier: Apache-2.0
// Runs CUDA kernels on the CPU, for tests on machines without a GPU. With this folder on the
// include path, g++ finds this header instead of the toolkit's, and compiles the same .cu files as
// nvcc.
//
// * The blocks of a launch run one after another; the threads of a block are fibers that switch at
//   __syncthreads(). GLUON_ROI_HOSTSIM_ORDER=forward|reverse|random is the order in which they run
//   between two barriers: code that lacks a barrier gives a different result for at least one
//   order.
// * A __syncthreads() that some threads of the block do not reach ends the process with a message.
// * __shared__ arrays are globals, so that AddressSanitizer guards their ends.
// * Streams are synchronous. There are no warp intrinsics, textures, atomics or dynamic shared
//   memory: a kernel that needs one has to add its model here.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
using cudaError_t = int;
using cudaStream_t = void*;
enum { cudaSuccess = 0, cudaErrorInvalidConfiguration = 9 };

namespace hostsim {

inline uint3 thread_index, block_index;
inline dim3 block_size, grid_size;

// Saves the callee-saved registers and the stack pointer at *from, and continues at `to`.
extern "C" void hostsim_switch(void** from, void* to);
asm(R"(
.text
.weak hostsim_switch
.type hostsim_switch,@function
hostsim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

struct Fiber {
  char* stack = nullptr;
  void* stack_pointer = nullptr;
  uint3 index{};
  bool done = false;
  int barriers = 0;  // reached so far
};

constexpr size_t kStack = 256 << 10;

inline std::vector<Fiber> fibers;
inline Fiber* current = nullptr;
inline void* scheduler = nullptr;  // its stack pointer, while a fiber runs
inline const std::function<void()>* kernel_body = nullptr;

[[noreturn]] inline void fiber_main() {
  (*kernel_body)();
  current->done = true;
  hostsim_switch(&current->stack_pointer, scheduler);
  abort();
}

inline void barrier() {
  ++current->barriers;
  hostsim_switch(&current->stack_pointer, scheduler);
  thread_index = current->index;
}

inline void start(Fiber* fiber, unsigned thread) {
  if (fiber->stack == nullptr) {
    void* memory =
        mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    fiber->stack = static_cast<char*>(memory);
  }
  fiber->index = {thread % block_size.x, thread / block_size.x % block_size.y,
                  thread / block_size.x / block_size.y};
  fiber->done = false;
  fiber->barriers = 0;
  // What hostsim_switch pops: six registers and a return address, on an aligned stack.
  void** top = reinterpret_cast<void**>(fiber->stack + kStack);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&fiber_main);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  fiber->stack_pointer = top;
}

inline void run_block(unsigned threads, const std::function<void()>& body) {
  const char* variable = getenv("GLUON_ROI_HOSTSIM_ORDER");
  const std::string mode = variable != nullptr ? variable : "forward";
  static std::mt19937 random(12345);
  if (fibers.size() < threads) fibers.resize(threads);
  std::vector<unsigned> order(threads);
  std::iota(order.begin(), order.end(), 0u);
  if (mode == "reverse") std::reverse(order.begin(), order.end());
  kernel_body = &body;
  for (unsigned i = 0; i < threads; ++i) start(&fibers[i], i);
  for (unsigned live = threads; live > 0;) {
    if (mode == "random") std::shuffle(order.begin(), order.end(), random);
    for (const unsigned i : order) {
      if (fibers[i].done) continue;
      current = &fibers[i];
      thread_index = current->index;
      hostsim_switch(&scheduler, current->stack_pointer);
      if (current->done) --live;
    }
    current = nullptr;
    // Threads that have left the kernel must have passed every barrier at which others wait.
    if (live == 0) break;
    int waiting = 0;
    for (unsigned i = 0; i < threads; ++i) waiting = std::max(waiting, fibers[i].barriers);
    for (unsigned i = 0; i < threads; ++i) {
      if (fibers[i].barriers == waiting) continue;
      fprintf(stderr, "hostsim: divergent __syncthreads(): thread %u left after %d of %d\n", i,
              fibers[i].barriers, waiting);
      abort();
    }
  }
}

template <class... Parameters, size_t... I>
void run(void (*kernel)(Parameters...), void** arguments, std::index_sequence<I...>) {
  const std::function<void()> body = [&] { kernel(*static_cast<Parameters*>(arguments[I])...); };
  const unsigned threads = block_size.x * block_size.y * block_size.z;
  const int64_t blocks = static_cast<int64_t>(grid_size.x) * grid_size.y * grid_size.z;
  for (int64_t i = 0; i < blocks; ++i) {
    block_index = {static_cast<unsigned>(i % grid_size.x),
                   static_cast<unsigned>(i / grid_size.x % grid_size.y),
                   static_cast<unsigned>(i / grid_size.x / grid_size.y)};
    run_block(threads, body);
  }
}

}  // namespace hostsim

#define threadIdx hostsim::thread_index
#define blockIdx hostsim::block_index
#define blockDim hostsim::block_size
#define gridDim hostsim::grid_size
#define __syncthreads() hostsim::barrier()

inline int __ffs(unsigned bits) { return __builtin_ffs(static_cast<int>(bits)); }

template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 grid, dim3 block, void** arguments,
                             size_t shared, cudaStream_t) {
  // The limits of a device.
  const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024 || grid.x == 0 || grid.x > 0x7fffffffu || grid.y == 0 ||
      grid.y > 65535 || grid.z == 0 || grid.z > 65535 || shared != 0) {
    return cudaErrorInvalidConfiguration;
  }
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  hostsim::grid_size = grid;
  hostsim::block_size = block;
  hostsim::run(kernel, arguments, std::index_sequence_for<Parameters...>());
  return cudaSuccess;
}
inline cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t) {
  memset(memory, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorInvalidConfiguration ? "invalid configuration argument" : "no error";
}
