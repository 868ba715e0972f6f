// SPDX-License-Identifier: Apache-2.0
// ExclusiveCopy: a copy of an array of MXNet, made while no other operator reads the array.
//
// MXNet's engine runs operators that read an array at the same time, and Deconvolution, which
// declares its weights as read, exchanges their first two axes while it runs. So a copy that only
// reads them may be exchanged. This operator declares that it writes its input: the engine runs it
// when no other operator has the array. It writes nothing but its output.
//
// Reads data (..., n, w), float16, float32 or float64. Writes all of out, of that shape. It has no
// gradient. Deterministic.
//
// A worked number: [[1, 2]] gives [[1, 2]].
#pragma once
#include "../core/contract.h"
#include "../core/params.h"

namespace gluon_roi {

struct ExclusiveCopy {
  static constexpr const char* kName = "ExclusiveCopy";
  static constexpr bool kIsExclusive = true;
  struct Params {};
  static constexpr Input kInputs[] = {{"data", Role::kRows, 0, false, false, false}};
  static constexpr Output kOutputs[] = {{"output", kLikeFirst}};
  static void params(ParamVisitor*, Params*) {}

  using View = Tensor;
  static View view(const Tensor* slots) { return slots[0]; }
  static void infer(const Params&, const View& in, Tensor* outputs, int64_t max_elements);
  static void forward(const Params&, const View& in, const Tensor& out);
};

}  // namespace gluon_roi
