// SPDX-License-Identifier: Apache-2.0
// Defines the C functions of an operator, which call its OperatorFor.
#pragma once
#include "operator.h"

namespace gluon_roi {

// Runs body(), and converts an exception to a return code and gluon_roi_last_error().
int report_errors(void (*run)(const void*), const void* body);
template <class Body>
int report_errors(const Body& body) {
  return report_errors([](const void* self) { (*static_cast<const Body*>(self))(); }, &body);
}

}  // namespace gluon_roi

// Registers an operator in operators() and defines its functions of gluon_roi.h. Use it once, in
// the operator's .cc file, outside any namespace.
#define GLUON_ROI_OPERATOR(Op, symbol)                                                          \
  extern "C" {                                                                                  \
  GLUON_ROI_DECLARE(symbol)                                                                     \
  }                                                                                             \
  static const gluon_roi::OperatorFor<gluon_roi::Op> symbol##_operator(#symbol);                \
  extern "C" int gluon_roi_##symbol##_forward(                                                  \
      const gluon_roi_##symbol##_params* params, const gluon_roi_tensor* inputs, int32_t count, \
      const gluon_roi_tensor* out, const gluon_roi_device* device) {                            \
    return gluon_roi::report_errors(                                                            \
        [&] { symbol##_operator.checked_forward(params, inputs, count, out, device); });        \
  }                                                                                             \
  extern "C" int gluon_roi_##symbol##_backward(                                                 \
      const gluon_roi_##symbol##_params* params, const gluon_roi_tensor* inputs, int32_t count, \
      const gluon_roi_tensor* d_out, const gluon_roi_tensor* d_inputs,                          \
      const gluon_roi_device* device) {                                                         \
    return gluon_roi::report_errors([&] {                                                       \
      symbol##_operator.checked_backward(params, inputs, count, d_out, d_inputs, device);       \
    });                                                                                         \
  }                                                                                             \
  extern "C" int gluon_roi_##symbol##_workspace(const gluon_roi_##symbol##_params* params,      \
                                                const gluon_roi_tensor* inputs, int32_t count,  \
                                                int backward, int32_t device, size_t* bytes) {  \
    return gluon_roi::report_errors([&] {                                                       \
      symbol##_operator.checked_workspace(params, inputs, count, backward, device, bytes);      \
    });                                                                                         \
  }
