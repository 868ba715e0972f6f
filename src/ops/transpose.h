// SPDX-License-Identifier: Apache-2.0
// Transpose: an array with its axes in another order, for inference on the CPU. (MXNet 1.9.1's own
// transpose is oneDNN's for up to 4 axes; with more it copies single numbers: 43 MB with axes
// (1, 0, 2, 3, 4) take 65 ms, here 10.)
//
// Reads data, float32, with as many axes as there are `axes`, 1 to 8. Writes all of out, whose axis
// i is axis axes[i] of data.
//
// It has no gradient: the backward pass fails. Exact and deterministic.
//
// A worked number: [[1, 2, 3]] with axes (1, 0) gives [[1], [2], [3]].
#pragma once
#include "../core/any_rank.h"
#include "../core/contract.h"

namespace gluon_roi {

struct Transpose {
  static constexpr const char* kName = "Transpose";
  struct Params {
    int32_t axes[kMaxInList];
    int32_t count;
  };
  static constexpr Input kInputs[] = {{"data", Role::kFloat32, 0, false, false, false}};

  static void params(ParamVisitor* visit, Params* p) {
    visit->permutation(FIELD(axes), FIELD(count));
  }
  static int32_t array_count(const Params&) { return 1; }
  static ArraySizes infer(const Params& p, std::vector<ArraySizes>* inputs);
  static void forward(const Params& p, const std::vector<SizedArray>& inputs,
                      const SizedArray& out);
};

}  // namespace gluon_roi
