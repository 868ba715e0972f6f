// SPDX-License-Identifier: Apache-2.0
// What the operators for inference do with a sum: + bias, + residual, activation.
#pragma once
#include "../core/convolution.h"

namespace gluon_roi::cpu {

struct Epilogue {
  const float* row_bias;  // for each row of a Gemm, which alone reads it
  const float* residual;  // in the layout of the output; may be null
  int32_t activation;
  float slope;
  bool adds_last;

  explicit Epilogue(const ActivationParams& p)
      : row_bias(nullptr),
        residual(nullptr),
        activation(p.act_type),
        slope(static_cast<float>(p.slope)),
        adds_last(p.adds_last != 0) {}
};

// Activations of a number or a register of numbers.
template <class Value>
ALWAYS_INLINE void relu(Value* value) {
  *value = *value < Value{} ? Value{} : *value;
}
template <class Value>
ALWAYS_INLINE void relu6(const Value& six, Value* value) {
  relu(value);
  *value = *value > six ? six : *value;
}
template <class Value>
ALWAYS_INLINE void leaky_relu(const Value& slope, Value* value) {
  *value = *value < Value{} ? *value * slope : *value;
}

// A number or a register of numbers, to which the bias has been added, for the output at `place`.
// `slope` has last.slope in all of its elements.
template <class Value>
ALWAYS_INLINE void finish(const Epilogue& last, int64_t place, const Value& slope, Value* value) {
  Value residual{};
  if (last.residual != nullptr) memcpy(&residual, last.residual + place, sizeof(residual));
  if (last.residual != nullptr && !last.adds_last) *value += residual;
  if (last.activation == kRelu) relu(value);
  if (last.activation == kRelu6) relu6(Value{} + 6, value);
  if (last.activation == kLeaky) leaky_relu(slope, value);
  if (last.residual != nullptr && last.adds_last) *value += residual;
}

}  // namespace gluon_roi::cpu
