// SPDX-License-Identifier: Apache-2.0
#include "contract.h"

#include <algorithm>

namespace gluon_roi {

// "(2, 3": the closing parenthesis is added by the callers.
static std::string sizes_text(const int64_t* sizes, size_t dimensions) {
  std::string text = "(";
  for (size_t i = 0; i < dimensions; ++i) text += (i > 0 ? ", " : "") + std::to_string(sizes[i]);
  return text;
}

std::string shape_text(const int64_t* sizes, size_t dimensions) {
  return sizes_text(sizes, dimensions) + ")";
}

std::string shape_text(const Tensor& tensor) {
  const size_t stored = static_cast<size_t>(std::min(std::max(tensor.ndim, 0), 4));
  return sizes_text(tensor.shape, stored) + (tensor.ndim > 4 ? ", ...)" : ")");
}

void check_rank(const char* op, const char* name, const Tensor& tensor, int32_t rank,
                const char* expected) {
  if (tensor.ndim < 0 || tensor.ndim == rank) return;
  fail(op, name, " has shape ", shape_text(tensor), ", expected ", expected);
}

void check_dimension(const char* op, const char* name, const Tensor& tensor, int axis,
                     int64_t expected, const char* why) {
  if (tensor.ndim < 0 || tensor.shape[axis] < 0 || expected < 0) return;
  if (tensor.shape[axis] == expected) return;
  fail(op, name, " has shape ", shape_text(tensor), ", expected ", expected, " along axis ", axis,
       ", ", why);
}

void check_elements(const char* op, const char* name, const int64_t* sizes, size_t dimensions,
                    int64_t max_elements) {
  int64_t size = 1;
  for (size_t i = 0; i < dimensions; ++i) {
    if (sizes[i] <= 0) continue;
    if (!multiply_up_to(max_elements, size, sizes[i], &size)) {
      fail(op, name, " has shape ", shape_text(sizes, dimensions), ", expected at most ",
           max_elements, " elements");
    }
  }
}

void check_elements(const char* op, const char* name, const Tensor& tensor, int64_t max_elements) {
  check_elements(op, name, tensor.shape, static_cast<size_t>(std::max(tensor.ndim, 0)),
                 max_elements);
}

static bool is_real(int dtype) {
  return dtype == GLUON_ROI_FLOAT32 || dtype == GLUON_ROI_FLOAT64 || dtype == GLUON_ROI_FLOAT16;
}

void check_dtype(const char* op, const Input& input, int i, int dtype, const char* first_name,
                 int first) {
  if (input.role == Role::kFloat32) {
    if (dtype == GLUON_ROI_FLOAT32) return;
    fail(op, input.name, " has dtype ", dtype_name(dtype), ", expected float32");
  }
  const bool is_count = input.role == Role::kCounts;
  const bool is_int = dtype == GLUON_ROI_INT32 || dtype == GLUON_ROI_INT64;
  if (is_count ? !is_int && (!is_real(dtype) || dtype == GLUON_ROI_FLOAT16) : !is_real(dtype)) {
    fail(op, input.name, " has dtype ", dtype_name(dtype), ", expected ",
         is_count ? "int32, int64, float32 or float64" : "float16, float32 or float64");
  }
  if (is_count || input.role == Role::kRois || dtype == first) return;
  const bool is_map = input.role == Role::kMaps;
  fail(op, input.name, is_map ? " " + std::to_string(i) : "", " has dtype ", dtype_name(dtype),
       ", expected ", dtype_name(first), " as ", is_map ? "the first map" : first_name);
}

int default_dtype(Role role, int first) {
  switch (role) {
    case Role::kRois: return first == GLUON_ROI_FLOAT64 ? GLUON_ROI_FLOAT64 : GLUON_ROI_FLOAT32;
    case Role::kCounts: return GLUON_ROI_INT32;
    case Role::kFloat32: return GLUON_ROI_FLOAT32;
    default: return first;
  }
}

// ---- Calls from C -------------------------------------------------------------------------------

std::string Slots::name(size_t slot) const {
  const char* const name = inputs[slot].name;
  size_t first = slot, last = slot;
  while (first > 0 && inputs[first - 1].name == name) --first;
  while (last + 1 < inputs.size() && inputs[last + 1].name == name) ++last;
  return first == last ? name : name + (" " + std::to_string(slot - first));
}

// Throws unless the dimensions of a tensor are valid.
static void check_tensor(const char* op, const char* name, const Tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > 4) {
    fail(op, name, ": expected ndim from 0 to 4, got ", tensor.ndim);
  }
  int64_t size = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) {
      fail(op, name, " has shape ", shape_text(tensor), ", expected no negative size");
    }
    if (!multiply_up_to(kMaxElements, size, tensor.shape[i], &size)) {
      fail(op, name, " has shape ", shape_text(tensor), ", expected at most ", kMaxElements,
           " elements");
    }
  }
}

// Throws unless a tensor has memory that is aligned for its type.
static void check_memory(const char* op, const char* name, const Tensor& tensor) {
  if (elements(tensor) == 0 || tensor.ndim == 0) return;
  if (tensor.data == nullptr) fail(op, name, ": expected memory, got NULL");
  if (reinterpret_cast<uintptr_t>(tensor.data) % dtype_size(tensor.dtype) != 0) {
    fail(op, name, ": expected memory at a multiple of ", dtype_size(tensor.dtype), " bytes, got ",
         tensor.data);
  }
}

void check_no_overlap(const char* op, const char* name, const Tensor& tensor,
                      const char* other_name, const Tensor& other) {
  const auto begin_of = [](const Tensor& t) { return static_cast<const char*>(t.data); };
  const auto end_of = [&](const Tensor& t) {
    return begin_of(t) +
           (t.ndim == 0 ? 0 : elements(t)) * static_cast<int64_t>(dtype_size(t.dtype));
  };
  if (begin_of(tensor) < end_of(other) && begin_of(other) < end_of(tensor)) {
    fail(op, name, ": expected memory of its own, got some that is shared with ", other_name);
  }
}

void fail_null(const char* op, const char* expected) {
  fail(op, "expected ", expected, ", got a NULL pointer");
}

void fail_without_cuda(const char* op) {
  throw Error(std::string(op) +
                  ": data is on a GPU, but gluon_roi was built without CUDA; run "
                  "'GLUON_ROI_CUDA=1 pip install --force-reinstall --no-deps .' in its source "
                  "folder, with nvcc on PATH or CUDA_HOME set",
              GLUON_ROI_NO_CUDA);
}

void fail_without_memory(const char* op, size_t bytes) {
  throw Error(
      std::string(op) + ": there is not enough memory for " + std::to_string(bytes) + " bytes more",
      GLUON_ROI_NO_MEMORY);
}

void assign_inputs(Slots* slots, const Tensor* inputs, int32_t count) {
  const std::vector<Input>& declared = slots->inputs;
  const int max_count = static_cast<int>(declared.size());
  int min_count = max_count;
  while (declared[min_count - 1].optional) --min_count;
  if (count < min_count || count > max_count) {
    fail(slots->op, "expected ", min_count,
         min_count == max_count ? "" : " to " + std::to_string(max_count), " inputs, got ", count);
  }
  slots->tensors.assign(inputs, inputs + count);
  slots->tensors.resize(declared.size());
  for (int i = 0; i < max_count; ++i) {
    const Tensor& tensor = slots->tensors[i];
    const std::string name = slots->name(i);
    if (is_absent(tensor)) {
      if (declared[i].optional) continue;
      fail(slots->op, name, ": expected an array, got none (no data, ndim 0)");
    }
    check_tensor(slots->op, name.c_str(), tensor);
    check_dtype(slots->op, declared[i], i, tensor.dtype, declared[0].name, slots->tensors[0].dtype);
  }
}

void check_device(const char* op, const gluon_roi_device& device) {
  if (device.type == GLUON_ROI_CPU || device.type == GLUON_ROI_CUDA) return;
  fail(op, "device type: expected GLUON_ROI_CPU or GLUON_ROI_CUDA, got ", device.type);
}

void check_inputs_memory(const Slots& slots) {
  for (size_t i = 0; i < slots.tensors.size(); ++i) {
    check_memory(slots.op, slots.name(i).c_str(), slots.tensors[i]);
  }
}

static bool has_shape_of(const Tensor& tensor, const Tensor& other) {
  return tensor.ndim == other.ndim &&
         std::equal(tensor.shape, tensor.shape + tensor.ndim, other.shape);
}

void check_like(const char* op, const char* name, const Tensor& got, const Tensor& expected) {
  check_tensor(op, name, got);
  if (got.dtype != expected.dtype || !has_shape_of(got, expected)) {
    fail(op, name, ": expected ", dtype_name(expected.dtype), " ", shape_text(expected), ", got ",
         dtype_name(got.dtype), " ", shape_text(got));
  }
  check_memory(op, name, got);
}

void check_written(const char* name, const Tensor& got, const Tensor& expected,
                   const Slots& slots) {
  check_like(slots.op, name, got, expected);
  for (size_t i = 0; i < slots.tensors.size(); ++i) {
    check_no_overlap(slots.op, name, got, slots.name(i).c_str(), slots.tensors[i]);
  }
}

void check_workspace(const char* op, size_t needed, const gluon_roi_device& device) {
  const size_t got = device.workspace == nullptr ? 0 : device.workspace_size;
  if (got < needed) fail(op, "device workspace: expected ", needed, " bytes, got ", got);
}

}  // namespace gluon_roi
