// SPDX-License-Identifier: Apache-2.0
#include "checks.h"

namespace gluon_roi {

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

void take_inputs(Slots* slots, const Tensor* inputs, int32_t count) {
  const std::vector<Input>& declared = slots->inputs;
  const int most = static_cast<int>(declared.size());
  int least = most;
  while (declared[least - 1].optional) --least;
  if (count < least || count > most) {
    fail(slots->op, "expected ", least, least == most ? "" : " to " + std::to_string(most),
         " inputs, got ", count);
  }
  slots->tensors.assign(inputs, inputs + count);
  slots->tensors.resize(declared.size());
  for (int i = 0; i < most; ++i) {
    const Tensor& tensor = slots->tensors[i];
    if (declared[i].optional && is_absent(tensor)) continue;
    check_tensor(slots->op, declared[i].name, tensor);
    check_dtype(slots->op, declared[i], i, tensor.dtype, declared[0].name, slots->tensors[0].dtype);
  }
}

void check_device(const char* op, const gluon_roi_device& device) {
  if (device.type == GLUON_ROI_CPU || device.type == GLUON_ROI_CUDA) return;
  fail(op, "device type: expected GLUON_ROI_CPU or GLUON_ROI_CUDA, got ", device.type);
}

void check_inputs_memory(const Slots& slots) {
  for (size_t i = 0; i < slots.tensors.size(); ++i) {
    check_memory(slots.op, slots.inputs[i].name, slots.tensors[i]);
  }
}

void check_like(const char* op, const char* name, const Tensor& got, const Tensor& expected) {
  check_tensor(op, name, got);
  if (got.dtype != expected.dtype || shape_text(got) != shape_text(expected)) {
    fail(op, name, ": expected ", dtype_name(expected.dtype), " ", shape_text(expected), ", got ",
         dtype_name(got.dtype), " ", shape_text(got));
  }
  check_memory(op, name, got);
}

void check_written(const char* name, const Tensor& got, const Tensor& expected, const Slots& slots,
                   const Tensor* others, size_t count, const char* other_name) {
  check_like(slots.op, name, got, expected);
  for (size_t i = 0; i < slots.tensors.size(); ++i) {
    check_apart(slots.op, name, got, slots.inputs[i].name, slots.tensors[i]);
  }
  for (size_t i = 0; i < count; ++i) check_apart(slots.op, name, got, other_name, others[i]);
}

void check_workspace(const char* op, size_t needed, const gluon_roi_device& device) {
  const size_t got = device.workspace == nullptr ? 0 : device.workspace_size;
  if (got < needed) fail(op, "device workspace: expected ", needed, " bytes, got ", got);
}

}  // namespace gluon_roi
