// What an operator declares of its inputs and outputs, and what follows from that for each array:
// which element types and numbers of dimensions it may have.
#pragma once
#include <limits>
#include <string>

#include "errors.h"
#include "types.h"

namespace gluon_roi {

// ---- Declarations -------------------------------------------------------------------------------

enum class Role : int32_t {
  kMaps,   // (N, C, H, W), float16, float32 or float64; the first input of most operators
  kRows,   // (..., n, w), of these types; batches are one dimension, however many they have
  kLike,   // an array of the type of the first input
  kRois,   // (K, 1 + coordinates), (N, R, coordinates), or (K, coordinates) with counts
  kCounts  // (N,), the boxes of each image
};

struct Input {
  const char* name;
  Role role;
  int32_t rank;       // dimensions; 0: not always the same
  bool optional;      // if so, an attribute of the same name tells MXNet's nodes that it is there
  bool has_gradient;  // if not, its gradient is 0 whatever the parameters
  bool several;       // as many in a row as Op::several(params) says
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

// ---- Where an operator runs ---------------------------------------------------------------------

// Plain overloads, so that a forgotten CUDA half is a link error.
struct Cpu {};
// The stream is the caller's; the workspace is device memory of at least Op::workspace(...) bytes.
struct Gpu {
  void* stream;
  char* workspace;
  size_t workspace_size;
};

// ---- Shapes and types ---------------------------------------------------------------------------

// A shape in inference: ndim -1 is unknown, and so is a dimension < 0, until arrays exist.
inline Tensor unknown_tensor() {
  Tensor tensor{};
  tensor.ndim = -1;
  return tensor;
}
// An optional input that was left out.
inline bool is_absent(const Tensor& tensor) { return tensor.ndim == 0 && tensor.data == nullptr; }

std::string shape_text(const Tensor& tensor);

// The most elements of an output: what MXNet holds without its build for large tensors, and what
// has a number of bytes that fits 64 bits.
constexpr int64_t kMostInMXNet = std::numeric_limits<int32_t>::max();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 8;

// Throws unless a shape, as far as it is known, has `rank` dimensions; `expected` are their names,
// "4 dimensions (N, C, H, W)".
void check_rank(const char* op, const char* name, const Tensor& tensor, int32_t rank,
                const char* expected);
// Throws unless dimension `axis`, if it is known, is `expected`, if that is; `why` says where it
// comes from.
void check_dimension(const char* op, const char* name, const Tensor& tensor, int axis,
                     int64_t expected, const char* why);
// Throws unless an array of this shape, as far as it is known, has at most `most` elements.
void check_elements(const char* op, const char* name, const Tensor& tensor, int64_t most);
// Throws unless the element type of an input, the i-th in MXNet's order, is one that the kernels
// handle together with that of the first.
void check_dtype(const char* op, const Input& input, int i, int dtype, const char* first_name,
                 int first);
// The type of an input that nobody gave one, for a first input of a known type.
int default_dtype(Role role, int first);

// Throws unless a caller of the C interface described an array that can exist.
void check_tensor(const char* op, const char* name, const Tensor& tensor);
// Throws unless it has memory, aligned for its type, ...
void check_memory(const char* op, const char* name, const Tensor& tensor);
// ... that it does not share with `other`.
void check_apart(const char* op, const char* name, const Tensor& tensor, const char* other_name,
                 const Tensor& other);

}  // namespace gluon_roi
