// SPDX-License-Identifier: Apache-2.0
// Invalid calls, which fail with a message and write nothing.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "right_calls.h"

namespace sanitize {

// Returns whether the tensor may still be valid: smaller than the array that it describes.
inline bool spoil_tensor(Random* random, Tensor* tensor) {
  const int last = std::max(tensor->ndim - 1, 0);
  int64_t& some_size = tensor->shape[random->integer(0, last)];
  switch (random->integer(0, 6)) {
    case 0: tensor->data = nullptr; return true;  // an empty array needs no memory
    case 1: {
      tensor->data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(tensor->data) + 1);
      return true;
    }
    case 2: tensor->ndim = random->pick({-1, 5, INT32_MIN, INT32_MAX}); return false;
    case 3: tensor->ndim = static_cast<int32_t>(random->integer(0, 4)); return true;
    case 4: tensor->dtype = random->pick({-1, 3, 5, 7, 12, 99, INT32_MAX}); return false;
    case 5: some_size = random->pick({int64_t{-1}, INT64_MIN, int64_t{-5}}); return false;
    default: some_size = 0; return true;
  }
}

inline uint64_t wrong_call(Random* random, const Call& call) {
  Params params = call.params;
  std::vector<Tensor> inputs = tensors(call.inputs);
  Device device{GLUON_ROI_CPU, nullptr, nullptr, 0};
  const int fill = 0x5a;
  const Array out_array = like(call.d_out, fill), second_array = like(call.second, fill);
  std::vector<Array> d_arrays;
  for (const Array& input : call.inputs) d_arrays.push_back(like(input, fill));
  std::vector<Tensor> d_inputs = tensors(d_arrays);
  Tensor outputs[] = {out_array.tensor(), second_array.tensor()};
  Tensor given[] = {call.d_out.tensor(), call.second.tensor()};
  Tensor &out = outputs[0], &d_out = given[0];
  const Params* params_or_null = &params;
  const Tensor *inputs_or_null = inputs.data(), *d_inputs_or_null = d_inputs.data();
  const Tensor *out_or_null = outputs, *d_out_or_null = given;
  const Device* device_or_null = &device;
  int32_t count = call.count;
  bool forward_may_pass = false, backward_may_pass = false, workspace_may_pass = true;
  Array spoiled;
  switch (random->integer(0, 10)) {
    case 0: {
      call.op->spoil(random, &params);
      workspace_may_pass = false;
      break;
    }
    case 1: {
      device.type = random->pick<int32_t>({GLUON_ROI_CUDA, -1, 2, INT32_MAX});
      // An empty output needs no device.
      forward_may_pass = call.d_out.size() == 0;
      break;
    }
    case 2: {
      switch (random->integer(0, 3)) {
        case 0: params_or_null = nullptr; break;
        case 1: inputs_or_null = nullptr; break;
        case 2: out_or_null = nullptr, d_inputs_or_null = nullptr; break;
        default: device_or_null = nullptr;
      }
      break;
    }
    case 3: {
      // Memory that is written must not be read.
      if (call.inputs[0].size() == 0) return 0;
      out.data = d_inputs[0].data = inputs[0].data;
      forward_may_pass = call.d_out.size() == 0;
      break;
    }
    case 4: {
      const int32_t maps = static_cast<int32_t>(call.maps());
      count = random->pick(
          {-1, 0, maps, static_cast<int32_t>(inputs.size()) + 1, INT32_MIN, INT32_MAX});
      workspace_may_pass = false;
      break;
    }
    case 5: {
      // A row of record that is none, or a row of im_info.
      const std::string name = call.op->name();
      const bool is_record = name == "BoxNMS";
      const Array& values = is_record ? call.second : call.inputs.back();
      if ((!is_record && name != "Proposal") || values.size() == 0) return 0;
      spoiled = like(values, 0);
      memcpy(spoiled.tensor().data, values.tensor().data, values.bytes());
      const double size = static_cast<double>(values.size());
      spoiled.set(random->integer(0, is_record ? values.size() - 1 : 1),
                  is_record ? random->pick({size, 2147483647.0})
                            : random->pick({NAN * 1.0, INFINITY * 1.0, -1.0}));
      (is_record ? given[1] : inputs.back()) = spoiled.tensor();
      forward_may_pass = is_record;
      backward_may_pass = !is_record;
      break;
    }
    default: {
      // An input, out and d_out, or a gradient.
      const int64_t last = static_cast<int64_t>(inputs.size()) - 1;
      const int64_t which = random->integer(0, 2 * last + 2);
      const bool is_input = which <= last, is_out = which == 2 * last + 2;
      Tensor* tensor = is_out     ? &d_out
                       : is_input ? &inputs[static_cast<size_t>(which)]
                                  : &d_inputs[static_cast<size_t>(which - last - 1)];
      if (!is_out && which % (last + 1) >= call.count) return 0;
      // An absent input is valid, and so is the gradient of one.
      const bool was_absent = tensor->ndim == 0;
      const bool may_pass = spoil_tensor(random, tensor) || was_absent;
      if (is_out) {
        // For out this is also invalid, but it is memory to be written to.
        void* const memory = d_out.data == nullptr ? nullptr : out.data;
        out = d_out;
        out.data = memory;
      }
      forward_may_pass = may_pass || !is_input;
      backward_may_pass = may_pass;
      workspace_may_pass = may_pass || !is_input;
    }
  }
  // A call that passes writes only to the arrays above, or to parts of them; AddressSanitizer
  // checks this.
  Digest digest;
  const auto done = [&](const char* what, int code, bool may_pass) {
    // (With CUDA, a library refuses a call for a GPU with another code than without.)
    const bool any_code = device.type == GLUON_ROI_CUDA && code != GLUON_ROI_OK;
    digest.add(static_cast<uint64_t>(any_code ? GLUON_ROI_NO_CUDA : code));
    if (code == GLUON_ROI_OK && !may_pass) fail(std::string(what) + " took a wrong call");
    return code != GLUON_ROI_OK;
  };
  omp_set_num_threads(2);
  const char* name = call.op->name();
  if (done("forward",
           call.op->forward(params_or_null, inputs_or_null, count, out_or_null, device_or_null),
           forward_may_pass)) {
    check_refused("forward", name, {&out_array, &second_array}, fill);
  }
  if (done("backward",
           call.op->backward(params_or_null, inputs_or_null, count, d_out_or_null, d_inputs_or_null,
                             device_or_null),
           backward_may_pass && !call.refused)) {
    check_refused("backward", name, pointers(d_arrays), fill);
  }
  size_t bytes = 99;
  const int code =
      call.op->workspace(params_or_null, inputs_or_null, count, 1, GLUON_ROI_CPU, &bytes);
  done("workspace", code, workspace_may_pass);
  if (code == GLUON_ROI_OK && bytes != 0) fail("workspace: the CPU needs none");
  return digest.value();
}

}  // namespace sanitize
