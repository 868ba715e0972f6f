// SPDX-License-Identifier: Apache-2.0
// Convolutions as products of matrices: filters are the rows, outputs of an image the lanes.
// Operators differ in what they pack.
#pragma once
#include "gemm.h"
#include "memory.h"
#include "threads.h"

namespace gluon_roi::cpu {

// Throws unless packed weights have the shape (panels, depth, 12), where this is known.
inline void check_packed_weight(const char* op, const Tensor& weight, int64_t panels,
                                const char* of_panels, int64_t depth, const char* of_depth) {
  check_rank(op, "weight", weight, 3, "3 dimensions (panels, K, 12)");
  check_dimension(op, "weight", weight, 0, panels, of_panels);
  check_dimension(op, "weight", weight, 1, depth, of_depth);
  check_dimension(op, "weight", weight, 2, kPanelRows, "the rows of a panel");
}

// A group of filters reads a group of channels.
struct Convolution {
  int64_t images, groups;
  int64_t filters, outputs;  // filters of a group, outputs of a filter in an image
  int64_t depth;             // products in a sum
  int64_t atomic;            // parts of a sum begin at multiples, >= 1
  const float* weight;
  const float *bias, *residual;  // residual may be null
  float* out;
  ActivationParams activation;

  Convolution(const Tensor& weights, const Tensor& biases, const Tensor& residuals,
              const Tensor& output, int64_t group_count, int64_t multiple,
              const ActivationParams& act)
      : images(output.shape[0]),
        groups(group_count),
        filters(output.shape[1] / group_count),
        outputs(output.shape[2] * output.shape[3]),
        depth(weights.shape[1]),
        atomic(multiple),
        weight(data_of<const float>(weights)),
        bias(data_of<const float>(biases)),
        residual(data_of<const float>(residuals)),
        out(data_of<float>(output)),
        activation(act) {}
};

// Consecutive outputs of an image, and a group.
struct OutputChunk {
  int64_t image, group;
  int64_t first, count;  // outputs
};

// k is divided into parts of at most max_depth (or of `atomic`, if that is more), so that a panel
// of weights stays in the first-level cache. The packed numbers of a task, at most max_floats, and
// as many that the next task will read, stay in the second.
struct PartLimits {
  int64_t max_depth, max_floats;
};
inline PartLimits part_limits(int64_t atomic) {
  // Processors without AVX-512 often have 512 KB of second-level cache, those with it 1 MB or more.
  // (With AVX2, these limits and a prefetch for each tile, see gemm.cc, took .91 to 1 of a layer's
  // time.) 288 is 32 channels of a 3 x 3 kernel. Samples of deformable convolutions, which come in
  // larger units and are not prefetched, took 1.05 to 1.1 times as long.
  if (simd_level() == SimdLevel::kAvx2 && atomic == 1) return {288, 3 << 14};
  return {512, 3 << 15};
}
// The maximum number of outputs of a task; and its unit, a tile of registers at every level.
constexpr int64_t kMaxOutputs = 1024, kMinOutputs = 32;

// The division of a call into tasks: images, groups, chunks of outputs and, if there are more
// threads, parts of the filters, each of which packs the outputs again.
struct ConvolutionPlan {
  int64_t part_depth;
  int64_t chunks, chunk;  // their number in an image, and the outputs of each
  int64_t parts, part;    // parts of a group's filters, and the filters of each

  explicit ConvolutionPlan(const Convolution& c) {
    const PartLimits limits = part_limits(c.atomic);
    part_depth = div_up(c.depth, std::max<int64_t>(div_up(c.depth, limits.max_depth), 1));
    part_depth = std::max(part_depth / c.atomic, int64_t{1}) * c.atomic;
    const int64_t fitting = std::max<int64_t>(limits.max_floats / part_depth / kMinOutputs, 1);
    chunks = div_up(c.outputs, std::min(fitting * kMinOutputs, kMaxOutputs));
    // Threads that have a few tasks each should have the same number.
    constexpr int64_t kFewTasks = 4;
    const int64_t threads = max_threads(), pairs = c.images * c.groups;
    if (pairs * chunks < kFewTasks * threads) {
      chunks = div_up(round_up(pairs * chunks, threads), pairs);
    }
    chunk = round_up(div_up(c.outputs, chunks), kMinOutputs);
    chunks = div_up(c.outputs, chunk);
    part = round_up(div_up(c.filters, div_up(threads, pairs * chunks)), kPanelRows);
    parts = div_up(c.filters, part);
  }
};

// Runs a convolution, whose output is not empty. Packing has
//   scratch(outputs), the floats that it needs for a chunk besides the packed ones;
//   prepare(chunk, scratch), which fills them;
//   pack(chunk, begin, end, scratch, b, b_step), which packs k = begin ... end - 1 as Gemm reads
//     them, with any finite numbers behind the last output;
//   ahead(chunk, begin, end), the numbers that this will read, as far as it pays to prefetch them.
template <class Packing>
void convolve(const Convolution& c, const Packing& packing) {
  const ConvolutionPlan plan(c);
  const int64_t panels = div_up(c.filters, kPanelRows);
  // An odd number of cache lines: a power of two would put all blocks into the same lines.
  const int64_t b_step = (plan.part_depth | 1) * kBlockLanes;

  const int64_t tasks = c.images * c.groups * plan.chunks * plan.parts;
  const int64_t work = c.images * c.groups * c.filters * c.outputs * (c.depth + 1);
  parallel_for(tasks, work, [&](int64_t task) {
    const int64_t filter = task % plan.parts * plan.part;  // of the group
    const int64_t number = task / plan.parts, pair = number / plan.chunks;
    const int64_t first = number % plan.chunks * plan.chunk;
    const OutputChunk chunk{pair / c.groups, pair % c.groups, first,
                            std::min(plan.chunk, c.outputs - first)};
    const float* const panel =
        c.weight + (chunk.group * panels + filter / kPanelRows) * c.depth * kPanelRows;
    const int64_t offset = (pair * c.filters + filter) * c.outputs + first;
    Epilogue epilogue(c.activation);
    epilogue.row_bias = c.bias + chunk.group * c.filters + filter;
    epilogue.residual = c.residual == nullptr ? nullptr : c.residual + offset;
    Gemm gemm{};
    gemm.rows = std::min(plan.part, c.filters - filter);
    gemm.lanes = chunk.count;
    gemm.a_step = c.depth * kPanelRows;
    gemm.b_step = b_step;
    gemm.out = c.out + offset;
    gemm.row_step = c.outputs;
    gemm.block_step = kBlockLanes;
    const int64_t packed = div_up(chunk.count, kBlockLanes) * b_step;
    float* const b = scratch<float>(packed + packing.scratch(chunk.count));
    gemm.b = b;
    packing.prepare(chunk, b + packed);
    int64_t begin = 0;
    do {
      const int64_t end = std::min(begin + plan.part_depth, c.depth);
      packing.pack(chunk, begin, end, b + packed, b, b_step);
      gemm.depth = end - begin;
      gemm.a = panel + begin * kPanelRows;
      gemm.continues = begin > 0;
      gemm.epilogue = end == c.depth ? &epilogue : nullptr;
      if (end < c.depth) {
        gemm.ahead = packing.ahead(chunk, end, std::min(end + plan.part_depth, c.depth));
      } else {
        const int64_t next = first + chunk.count;
        gemm.ahead =
            packing.ahead({chunk.image, chunk.group, next, std::min(plan.chunk, c.outputs - next)},
                          0, plan.part_depth);
      }
      multiply(gemm);
      begin = end;
    } while (begin < c.depth);
  });
}

}  // namespace gluon_roi::cpu
