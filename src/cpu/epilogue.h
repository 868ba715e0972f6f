// SPDX-License-Identifier: Apache-2.0
// What the operators for inference do with a sum: + bias, + residual, activation.
#pragma once
#include "../core/types.h"

namespace gluon_roi::cpu {

enum Activation : int32_t { kNoActivation, kRelu, kLeaky };

// Pointers may be null.
struct Epilogue {
  const float* row_bias;   // for each row of a product
  const float* lane_bias;  // for each lane, readable up to the next multiple of 16
  const float* residual;   // in the layout of the output
  int32_t activation;      // an Activation
  float slope;             // of kLeaky
  bool adds_last;          // the residual is added behind the activation, not before it
};

// Both for a number or a register of them. NaN stays.
template <class Value>
ALWAYS_INLINE void relu(Value* value) {
  *value = *value < Value{} ? Value{} : *value;
}
template <class Value>
ALWAYS_INLINE void leaky_relu(const Value& slope, Value* value) {
  *value = *value < Value{} ? *value * slope : *value;
}

}  // namespace gluon_roi::cpu
