// SPDX-License-Identifier: Apache-2.0
#include "mxnet_shapes.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "../core/any_rank.h"

namespace gluon_roi {

// MXNet does not pass this setting to operators, but it exports the function with which Python
// reads it.
int (*is_np_shape)(int*) = nullptr;

namespace {

// An unknown size. The library API has no value for it: MXNet's sizes are signed 64-bit with -1 for
// unknown, but it passes them to operators as unsigned 32-bit. UINT_MAX is -1 truncated to 32 bits;
// Python shows it as -1 again, but MXNet itself reads it as a huge size.
constexpr unsigned int kUnknown = UINT_MAX;

constexpr size_t kMaxDimensions = 4;
size_t folded_dimensions(size_t dimensions, Role role) {
  if (role == Role::kBoxes && dimensions > 2) return dimensions - 1;
  return role == Role::kRows && dimensions > kMaxDimensions ? dimensions - kMaxDimensions + 1 : 1;
}

// Whether this thread is inside mx.util.np_shape(), where -1 means an unknown size and 0 an empty
// array. Outside, both mean unknown.
bool may_be_empty() {
  int inside = 0;
  if (is_np_shape != nullptr) is_np_shape(&inside);
  return inside != 0;
}

// Searches this thread's call stack for Symbol.infer_shape_partial(), which may leave shapes
// unknown. MXNet does not pass this to operators in any other way.
bool is_called_by_infer_shape_partial() {
  void* frames[128];
  const int count = backtrace(frames, 128);
  return std::any_of(frames, frames + count, [](void* frame) {
    Dl_info found;
    return dladdr(frame, &found) != 0 && found.dli_sname != nullptr &&
           std::strstr(found.dli_sname, "InferShapePartial") != nullptr;
  });
}

// The sizes that MXNet passes; -1 is an unknown size.
std::vector<int64_t> sizes_of(const Shape& shape, bool with_empty_arrays) {
  std::vector<int64_t> sizes;
  sizes.reserve(shape.size());
  for (const unsigned int size : shape) {
    const bool unknown = size == kUnknown || (size == 0 && !with_empty_arrays);
    sizes.push_back(unknown ? -1 : static_cast<int64_t>(size));
  }
  return sizes;
}

[[noreturn]] void fail_without_shape(const Operator& op, const char* input) {
  fail(op.name(), input, " has no shape, expected one given or inferred");
}

// An input during shape inference. The size is checked before dimensions are folded, so that their
// product does not overflow and the error shows all of them.
Tensor tensor_of(const char* op, const Input& input, const Shape& shape, bool with_empty_arrays) {
  if (shape.empty()) return unknown_tensor();
  const std::vector<int64_t> sizes = sizes_of(shape, with_empty_arrays);
  if (folded_dimensions(sizes.size(), input.role) > 1) {
    check_elements(op, input.name, sizes.data(), sizes.size(), kMaxElementsInMXNet);
  }
  return gluon_roi::tensor_of(sizes, input.role);
}

bool is_unknown(int64_t size) { return size < 0; }

bool is_complete(const Tensor& tensor) {
  return tensor.ndim >= 0 && std::none_of(tensor.shape, tensor.shape + tensor.ndim, is_unknown);
}

// Whether every dimension is unknown. The rank may still be known, from the input's guard.
bool has_no_shape(const Tensor& tensor) {
  return std::all_of(tensor.shape, tensor.shape + std::max(tensor.ndim, 0), is_unknown);
}

// Whether the guard of an input contains zeros of the input's shape, which MXNet rejects if they
// have 2^31 or more elements. The rules are those of gluon_roi/bridge/guard.py.
bool has_zeros(const std::vector<Input>& declared, size_t input) {
  const Role role = declared[input].role;
  return role != Role::kFloat32 && (role != Role::kMaps || declared.size() > 2);
}

// The shape of an output for MXNet outside np_shape().
Shape shape_of(const Tensor& tensor, bool is_convolved, bool in_part) {
  Shape shape;
  for (int i = 0; i < tensor.ndim; ++i) {
    // MXNet's convolutions reject a map without channels or cells.
    const unsigned int unknown = is_convolved && in_part && i > 0 ? kUnknown : 0;
    shape.push_back(is_unknown(tensor.shape[i]) ? unknown
                                                : static_cast<unsigned int>(tensor.shape[i]));
  }
  return shape;
}

// The shape of an output for MXNet inside np_shape().
Shape np_shape_of(const Tensor& tensor, bool is_map, bool in_part) {
  Shape shape;
  bool known = true;
  // Rows are often the input of another operator, whose guard has zeros.
  const unsigned int unknown = in_part && !is_map ? 0 : kUnknown;
  for (int i = 0; i < tensor.ndim; ++i) {
    // After -1 channels the bins are -1 as well, because later operators multiply the three, and
    // reject -1 * 2 * 3.
    known = !is_unknown(tensor.shape[i]) && (known || i < 2 || !is_map);
    shape.push_back(known ? static_cast<unsigned int>(tensor.shape[i]) : unknown);
  }
  return shape;
}

// The same for an operator of arrays of any number of dimensions.
void infer_any_rank(const Operator& op, const Attributes& attributes, Shapes* in, Shapes* out) {
  const bool with_empty_arrays = may_be_empty();
  const bool in_part =
      std::any_of(in->begin(), in->end(), [](const Shape& shape) { return shape.empty(); }) &&
      is_called_by_infer_shape_partial();
  std::vector<ArraySizes> inputs;
  inputs.reserve(in->size());
  for (const Shape& shape : *in) {
    if (shape.empty()) {
      if (!in_part || with_empty_arrays) fail_without_shape(op, op.declared().inputs[0].name);
      (*out)[0].clear();
      return;
    }
    inputs.push_back(sizes_of(shape, with_empty_arrays));
  }
  const auto shape_of = [&](const ArraySizes& sizes) {
    Shape shape;
    for (const int64_t size : sizes) {
      const unsigned int unknown = with_empty_arrays ? kUnknown : 0;
      shape.push_back(is_unknown(size) ? unknown : static_cast<unsigned int>(size));
    }
    return shape;
  };
  (*out)[0] = shape_of(op.any_rank()->infer(attributes, &inputs));
  std::transform(inputs.begin(), inputs.end(), in->begin(), shape_of);
}

}  // namespace

Tensor tensor_of(const std::vector<int64_t>& shape, Role role) {
  Tensor tensor{};
  const size_t folded = folded_dimensions(shape.size(), role);
  tensor.ndim = static_cast<int32_t>(shape.size() - folded + 1);
  const size_t dimensions = std::min(kMaxDimensions, shape.size() - folded + 1);
  for (size_t i = 0; i < dimensions; ++i) {
    tensor.shape[i] = i > 0 ? shape[i + folded - 1] : shape[0];
  }
  for (size_t i = 1; i < folded; ++i) {
    const bool known = tensor.shape[0] >= 0 && shape[i] >= 0;
    tensor.shape[0] = known ? tensor.shape[0] * shape[i] : -1;
  }
  return tensor;
}

void infer(const Operator& op, const Attributes& attributes, Shapes* in, Shapes* out) {
  if (op.any_rank() != nullptr) return infer_any_rank(op, attributes, in, out);
  const bool with_empty_arrays = may_be_empty();
  const std::vector<Input> declared = op.inputs(attributes);
  std::vector<Tensor> inputs;
  inputs.reserve(declared.size());
  for (size_t i = 0; i < declared.size(); ++i) {
    inputs.push_back(tensor_of(op.name(), declared[i], (*in)[i], with_empty_arrays));
  }
  const std::vector<Tensor> outputs = op.infer(attributes, inputs);
  const bool in_part =
      !std::all_of(inputs.begin(), inputs.end(), is_complete) && is_called_by_infer_shape_partial();
  // The library API has no value for "no shape" either: MXNet would treat such an input as a scalar
  // or an empty array, and would silently bind the graph.
  const auto missing = std::find_if(inputs.begin(), inputs.end(), has_no_shape);
  // The same holds for an output whose rank depends on that input, inside np_shape(), where () is a
  // scalar.
  const bool has_no_rank = with_empty_arrays && outputs[0].ndim < 0;
  if (missing != inputs.end() && (!in_part || has_no_rank)) {
    fail_without_shape(op, declared[static_cast<size_t>(missing - inputs.begin())].name);
  }
  const bool is_map = (declared[0].role == Role::kMaps || declared[0].role == Role::kFloat32) &&
                      outputs[0].ndim == 4;
  const bool pools = std::any_of(declared.begin(), declared.end(),
                                 [](const Input& input) { return input.role == Role::kRois; });
  for (size_t i = 0; i < outputs.size(); ++i) {
    Shape& shape = (*out)[i];
    shape = with_empty_arrays ? np_shape_of(outputs[i], is_map, in_part)
                              : shape_of(outputs[i], is_map && !pools, in_part);
    // Unfolds: dimension n of an output is the first dimension of input n, if that was folded.
    for (size_t n = std::min(inputs.size(), shape.size()); n-- > 0;) {
      const size_t folded = folded_dimensions((*in)[n].size(), declared[n].role);
      if (folded == 1) continue;
      const auto position = shape.erase(shape.begin() + static_cast<std::ptrdiff_t>(n));
      const auto first = (*in)[n].begin();
      shape.insert(position, first, first + static_cast<std::ptrdiff_t>(folded));
    }
  }
  // MXNet reads these as the inferred shapes of the inputs. An unknown size, UINT_MAX, would be too
  // large for the zeros of a guard, but a graph that is being bound must keep it.
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool stays = !has_no_shape(inputs[i]) && !(in_part && has_zeros(declared, i));
    if (with_empty_arrays && stays) continue;
    std::replace((*in)[i].begin(), (*in)[i].end(), kUnknown, 0u);
  }
}

}  // namespace gluon_roi
