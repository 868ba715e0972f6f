// SPDX-License-Identifier: Apache-2.0
// An operator's declaration of its inputs and outputs, and the checks that follow from it: which
// element types and numbers of dimensions each array may have, and whether a call from C is one
// that an operator may see.
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
  kLike,    // an array of the type of the first input
  kRois,    // (K, 1 + coordinates), (N, R, coordinates), or (K, coordinates) with counts
  kCounts,  // (N,), number of boxes of each image
  kFloat32  // float32 alone: maps and weights of operators for inference
};

struct Input {
  const char* name;
  Role role;
  int32_t rank;       // number of dimensions; 0 if it varies
  bool optional;      // if so, an attribute of the same name says on MXNet's nodes if it is given
  bool has_gradient;  // if not, its gradient is 0 for all parameters
  bool several;       // a list of Op::several(params) arrays
};

constexpr Input kData{"data", Role::kMaps, 4, false, true, false};
constexpr Input kSeveralMaps{"data", Role::kMaps, 4, false, true, true};
constexpr Input kRois{"rois", Role::kRois, 0, false, true, false};
constexpr Input kRoisWithoutGradient{"rois", Role::kRois, 0, false, false, false};
constexpr Input kRoisNum{"rois_num", Role::kCounts, 1, true, false, false};

struct Output {
  const char* name;
  int32_t dtype;  // kLikeFirst: that of the first input
};
constexpr int32_t kLikeFirst = -1;

// The outputs of a call, or their gradients in a backward pass. Converts to a Tensor for operators
// with a single output.
struct Outputs {
  const Tensor* tensors;
  const Tensor& operator[](size_t i) const { return tensors[i]; }
  operator const Tensor&() const { return tensors[0]; }
};

// ---- Where an operator runs ---------------------------------------------------------------------

struct Cpu {};
// The stream is the caller's; the workspace is device memory of CudaHalf<Op>::workspace() bytes.
struct Gpu {
  const char* op;  // for errors
  void* stream;
  char* workspace;
};

// The base class of operators that pool no boxes.
template <class Op>
struct ArrayOperator {
  static constexpr int kCoordinates = 0;
  template <class Params>
  static int32_t several(const Params&) {
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

// A shape during inference: ndim -1 means unknown, and so does a dimension < 0.
inline Tensor unknown_tensor() {
  Tensor tensor{};
  tensor.ndim = -1;
  return tensor;
}
// An optional input that was left out.
inline bool is_absent(const Tensor& tensor) { return tensor.ndim == 0 && tensor.data == nullptr; }

std::string shape_text(const Tensor& tensor);
std::string shape_text(const int64_t* sizes, size_t dimensions);

// The maximum number of elements of an output: in MXNet, without its build for large tensors, and
// in general, where the number of bytes must fit 64 bits.
constexpr int64_t kMaxElementsInMXNet = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;

// Throws unless a shape, as far as it is known, has `rank` dimensions; `expected` describes them:
// "4 dimensions (N, C, H, W)".
void check_rank(const char* op, const char* name, const Tensor& tensor, int32_t rank,
                const char* expected);
// Throws unless dimension `axis` is `expected`, if both are known; `why` is the source of
// `expected`.
void check_dimension(const char* op, const char* name, const Tensor& tensor, int axis,
                     int64_t expected, const char* why);
// Throws unless an array of this shape, as far as it is known, has at most `most` elements.
void check_elements(const char* op, const char* name, const Tensor& tensor, int64_t most);
void check_elements(const char* op, const char* name, const int64_t* sizes, size_t dimensions,
                    int64_t most);
// Throws unless the kernels support the element type of an input, the i-th in MXNet's order,
// together with that of the first input.
void check_dtype(const char* op, const Input& input, int i, int dtype, const char* first_name,
                 int first);
// The default type of an input, for the type of the first input.
int default_dtype(Role role, int first);

// ---- Calls from C -------------------------------------------------------------------------------

// An operator's inputs for one set of parameters: all slots, including those of optional inputs.
struct Slots {
  const char* op;
  std::vector<Input> inputs;
  std::vector<Tensor> tensors;  // absent: no memory, no dimensions

  // "rois", or of several maps "data 2".
  std::string name(size_t slot) const;
};

[[noreturn]] void fail_null(const char* op, const char* expected);
[[noreturn]] void fail_without_cuda(const char* op);
[[noreturn]] void fail_without_memory(const char* op, size_t bytes);

// Assigns the `count` tensors of a call to the first slots, and throws if a required one is
// missing. Checks shapes and types, but not memory.
void take_inputs(Slots* slots, const Tensor* inputs, int32_t count);
void check_device(const char* op, const gluon_roi_device& device);
void check_inputs_memory(const Slots& slots);

// Throws unless an array has memory and the expected shape and type.
void check_like(const char* op, const char* name, const Tensor& got, const Tensor& expected);
// Throws if an array that the call writes shares memory with another.
void check_apart(const char* op, const char* name, const Tensor& tensor, const char* other_name,
                 const Tensor& other);
// Both, of an array that the call writes: it must share no memory with an input.
void check_written(const char* name, const Tensor& got, const Tensor& expected, const Slots& slots);
void check_workspace(const char* op, size_t needed, const gluon_roi_device& device);

}  // namespace gluon_roi
