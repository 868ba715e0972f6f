// What an operator declares of its inputs, and what follows from that: how many there are, which
// shapes and types they may have, and what a kernel sees of them.
#pragma once
#include <limits>
#include <string>

#include "errors.h"
#include "types.h"

namespace gluon_roi {

// ---- Declarations -------------------------------------------------------------------------------

enum class Role : int32_t {
  kMaps,     // (N, C, H, W), float16, float32 or float64
  kRois,     // (K, 1 + coordinates), (N, R, coordinates), or (K, coordinates) with counts
  kOffsets,  // (K, 2 * classes, T, T), of the type of the maps
  kCounts    // (N,), the boxes of each image
};

struct Input {
  const char* name;
  Role role;
  bool optional;      // if so, an attribute of the same name tells MXNet's nodes that it is there
  bool has_gradient;  // if not, its gradient is 0 whatever the parameters
};

// An operator lists its inputs in order: the maps first, then its rois, then the others.
constexpr Input kData{"data", Role::kMaps, false, true};
constexpr Input kRois{"rois", Role::kRois, false, true};
constexpr Input kRoisWithoutGradient{"rois", Role::kRois, false, false};
constexpr Input kRoisNum{"rois_num", Role::kCounts, true, false};

// What an operator is unless it says otherwise: one that reads one map and upright boxes.
struct OperatorBase {
  // Numbers that describe a box.
  static constexpr int kCoordinates = 4;
  // Maps that it reads.
  template <class Params>
  static int32_t maps(const Params&) {
    return 1;
  }
  // Whether rois get a gradient with these parameters.
  template <class Params>
  static bool rois_gradient(const Params&) {
    return false;
  }
  // Throws if inputs that are fit for any operator are not for this one. Sizes may be unknown.
  template <class Params, class Inputs>
  static void check_inputs(const Params&, const Inputs&) {}
};

// ---- What a kernel sees -------------------------------------------------------------------------

struct Inputs {
  Tensor data;         // the map; of several the first
  const Tensor* maps;  // all maps, data among them
  int32_t count;       // how many maps
  int32_t coordinates;
  Tensor rois;
  Tensor offsets;   // absent: no memory
  Tensor rois_num;  // absent: no memory
};

// Where gradients go; what has no memory is not wanted. Whatever is there is written whole.
struct Gradients {
  const Tensor* maps;
  Tensor data;  // of the first map
  Tensor rois;
  Tensor offsets;
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

// Throws unless the shapes of all inputs fit together; unknown ones are passed over. Returns K, -1
// if unknown.
int64_t check_shapes(const char* op, const Inputs& in);
// Throws unless the element type of an input, the i-th in MXNet's order, is one that the kernels
// handle together with that of the first map.
void check_dtype(const char* op, const Input& input, int i, int dtype, int maps);
// The type of an input that nobody gave one, for maps of a known type.
int default_dtype(Role role, int maps);

// Throws if an output of this shape, as far as it is known, has more than `most` elements; the
// message names the argument that makes it so large.
void check_output_size(const char* op, const Tensor& out, bool has_output_dim, int64_t most);
// Throws unless a caller of the C interface described an array that can exist.
void check_tensor(const char* op, const char* name, const Tensor& tensor);
// Throws unless it has memory, aligned for its type, ...
void check_memory(const char* op, const char* name, const Tensor& tensor);
// ... that it does not share with `other`.
void check_apart(const char* op, const char* name, const Tensor& tensor, const char* other_name,
                 const Tensor& other);

}  // namespace gluon_roi
