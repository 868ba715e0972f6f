// SPDX-License-Identifier: Apache-2.0
// An operator's declaration of its inputs and outputs, and the checks that follow from it: the
// element types and numbers of dimensions that each array may have, and whether a call from C is
// valid.
#pragma once
#include <limits>
#include <string>
#include <vector>

#include "errors.h"
#include "types.h"

namespace gluon_roi {

// ---- Declarations -------------------------------------------------------------------------------

enum class Role : int32_t {
  kMaps,    // (N, C, H, W), float16, float32 or float64; the first input of most operators
  kRows,    // (..., n, w), of the same types; batches are folded into one dimension
  kBoxes,   // (..., w), a box in each row; leading dimensions are folded into one
  kLike,    // an array of the same type as the first input
  kRois,    // (K, 1 + coordinates), (N, R, coordinates), or (K, coordinates) with counts
  kCounts,  // (N,), number of boxes of each image
  kFloat32  // float32 alone: maps and weights of operators for inference
};

struct Input {
  const char* name;
  Role role;
  int32_t rank;       // number of dimensions; 0 if it varies
  bool optional;      // an attribute of the same name on MXNet's node is True if it is given
  bool has_gradient;  // false: the gradient is 0 whatever the parameters are
  bool variadic;  // a list of Op::array_count(params) arrays; gluon_roi_operators() has "several"
};

constexpr Input kData{"data", Role::kMaps, 4, false, true, false};
constexpr Input kVariadicMaps{"data", Role::kMaps, 4, false, true, true};
constexpr Input kRois{"rois", Role::kRois, 0, false, true, false};
constexpr Input kRoisWithoutGradient{"rois", Role::kRois, 0, false, false, false};
constexpr Input kRoisNum{"rois_num", Role::kCounts, 1, true, false, false};

struct Output {
  const char* name;
  int32_t dtype;  // kLikeFirst: the type of the first input
};
constexpr int32_t kLikeFirst = -1;

// The outputs of a call, or their gradients in a backward pass. It converts to a Tensor for
// operators with a single output.
struct Outputs {
  const Tensor* tensors;
  const Tensor& operator[](size_t i) const { return tensors[i]; }
  operator const Tensor&() const { return tensors[0]; }
};

// ---- Devices ------------------------------------------------------------------------------------

// Selects the CPU's zero_fill().
struct Cpu {};
// The caller provides the stream, and a workspace in device memory of CudaKernels<Op>::workspace()
// bytes.
struct Gpu {
  const char* op;  // operator name for error messages
  void* stream;
  char* workspace;
};

// ---- Operators ----------------------------------------------------------------------------------

// Base class of the operators that do not pool boxes.
template <class Op>
struct ArrayOperator {
  static constexpr int kCoordinates = 0;
  template <class Params>
  static int32_t array_count(const Params&) {
    return 1;
  }
  template <class Params>
  static bool computes_gradient(const Params&, size_t) {
    return true;
  }
  template <class Params>
  static auto gradients(const Params& params, const Tensor* slots) {
    return Op::view(params, slots);
  }
};

// Whether any input has a gradient.
template <class Op>
constexpr bool has_gradients() {
  for (const Input& input : Op::kInputs) {
    if (input.has_gradient) return true;
  }
  return false;
}

// ---- Shapes and types ---------------------------------------------------------------------------

// A tensor whose shape is unknown during shape inference: ndim is -1. A single unknown dimension is
// negative.
inline Tensor unknown_tensor() {
  Tensor tensor{};
  tensor.ndim = -1;
  return tensor;
}
// Whether an optional input was omitted.
inline bool is_absent(const Tensor& tensor) { return tensor.ndim == 0 && tensor.data == nullptr; }

std::string shape_text(const Tensor& tensor);
std::string shape_text(const int64_t* sizes, size_t dimensions);

// The maximum number of elements of an output: in MXNet, whose default build has 32-bit sizes, and
// otherwise, where the size in bytes must fit in 64 bits.
constexpr int64_t kMaxElementsInMXNet = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;

// Throws unless a shape has `rank` dimensions or is unknown. `expected` describes them: "4
// dimensions (N, C, H, W)".
void check_rank(const char* op, const char* name, const Tensor& tensor, int32_t rank,
                const char* expected);
// Throws if dimension `axis` is known to differ from `expected`. `why` explains where `expected`
// comes from.
void check_dimension(const char* op, const char* name, const Tensor& tensor, int axis,
                     int64_t expected, const char* why);
// Throws if the known dimensions of an array already give more than `max_elements` elements.
void check_elements(const char* op, const char* name, const Tensor& tensor, int64_t max_elements);
void check_elements(const char* op, const char* name, const int64_t* sizes, size_t dimensions,
                    int64_t max_elements);
// Throws unless the kernels support the element type of input i (in MXNet's order) together with
// the type of the first input.
void check_dtype(const char* op, const Input& input, int i, int dtype, const char* first_name,
                 int first);
// The default type of an input, given the type of the first input.
int default_dtype(Role role, int first);

// ---- Calls from C -------------------------------------------------------------------------------

// An operator's inputs for one set of parameters, with a slot for each optional input as well.
struct Slots {
  const char* op;
  std::vector<Input> inputs;
  std::vector<Tensor> tensors;  // absent if omitted: no memory, no dimensions

  // "rois"; for an input with several maps "data 2".
  std::string name(size_t slot) const;
};

[[noreturn]] void fail_null(const char* op, const char* expected);
[[noreturn]] void fail_without_cuda(const char* op);
[[noreturn]] void fail_without_memory(const char* op, size_t bytes);

// Assigns the `count` tensors of a call to the first slots. Throws if a required input is missing,
// or has an invalid shape or type. Memory is checked later.
void assign_inputs(Slots* slots, const Tensor* inputs, int32_t count);
void check_device(const char* op, const gluon_roi_device& device);
void check_inputs_memory(const Slots& slots);

// Throws unless an array has the expected shape and type, and memory.
void check_like(const char* op, const char* name, const Tensor& got, const Tensor& expected);
// Throws if an array that the call writes overlaps another array in memory.
void check_no_overlap(const char* op, const char* name, const Tensor& tensor,
                      const char* other_name, const Tensor& other);
// Runs check_like() on an array that the call writes, and check_no_overlap() against every input.
void check_written(const char* name, const Tensor& got, const Tensor& expected, const Slots& slots);
void check_workspace(const char* op, size_t needed, const gluon_roi_device& device);

}  // namespace gluon_roi
