// SPDX-License-Identifier: Apache-2.0
// Registers every Operator as a custom operator of MXNet's library API. An exception thrown here
// becomes an MXNetError in Python, with the same message.
#include <dlfcn.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "../core/any_rank.h"
#include "lib_api.h"
#include "mxnet_shapes.h"

namespace gluon_roi {
namespace {

using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using mxnet::ext::OpResource;

Tensor tensor_of(const MXTensor& source, Role role) {
  Tensor tensor = tensor_of(source.shape, role);
  tensor.data = source.data_ptr;
  tensor.dtype = source.dtype;
  return tensor;
}

// The inputs of a call, which start at sources[begin].
std::vector<Tensor> inputs_of(const std::vector<Input>& declared,
                              const std::vector<MXTensor>& sources, size_t begin) {
  std::vector<Tensor> tensors;
  tensors.reserve(declared.size());
  for (const Input& input : declared) {
    tensors.push_back(tensor_of(sources[begin++], input.role));
  }
  return tensors;
}
// The outputs of a call, which start at sources[begin].
std::vector<Tensor> outputs_of(const Operator& op, const std::vector<MXTensor>& sources,
                               size_t begin) {
  std::vector<Tensor> tensors;
  tensors.reserve(op.outputs().size());
  for (size_t i = 0; i < op.outputs().size(); ++i) {
    tensors.push_back(tensor_of(sources[begin + i], Role::kRows));
  }
  return tensors;
}

// MXNet provides a single workspace per call, so it is requested once for everything.
gluon_roi_device device_of(const Operator& op, const Attributes& attributes,
                           const std::vector<Tensor>& inputs, bool backward, const MXTensor& tensor,
                           const OpResource& resource) {
  gluon_roi_device device{};
  if (tensor.ctx.dev_type != "gpu") return device;
  device.type = GLUON_ROI_CUDA;
  device.stream = resource.get_cuda_stream();
  device.workspace_size = op.workspace(attributes, inputs, backward);
  if (device.workspace_size > INT_MAX) {
    fail(op.name(), "needs a workspace of ", device.workspace_size, " bytes, MXNet gives at most ",
         INT_MAX);
  }
  if (device.workspace_size > 0) {
    device.workspace = resource.alloc_gpu(static_cast<int>(device.workspace_size));
  }
  return device;
}

// Whether a node has one more input, its last, whose rank MXNet's shape inference needs
// (gluon_roi/bridge/guard.py). No operator sees it.
bool has_ranks(const Attributes& attributes) { return attributes.count("__gluon_roi_ranks__") > 0; }

MXReturnValue parse_attributes(const Operator& op, const Attributes& attributes, int* inputs,
                               int* outputs) {
  // MXNet calls this 6 times in a forward and 32 times in a backward pass. Without this cache,
  // parsing took a tenth of the time of a small call.
  static thread_local const Operator* cached_op = nullptr;
  static thread_local Attributes cached_attributes;
  static thread_local int cached_inputs;
  if (cached_op != &op || cached_attributes != attributes) {
    cached_inputs =
        static_cast<int>(op.inputs(attributes).size()) + (has_ranks(attributes) ? 1 : 0);
    cached_op = &op;
    cached_attributes = attributes;
  }
  *inputs = cached_inputs;
  *outputs = static_cast<int>(op.outputs().size());
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_types(const Operator& op, const Attributes& attributes, std::vector<int>* in,
                          std::vector<int>* out) {
  constexpr int kUnknown = -1;
  const std::vector<Input> inputs = op.inputs(attributes);
  const int first = (*in)[0];
  for (size_t i = 0; i < out->size(); ++i) {
    const int32_t dtype = op.outputs()[i].dtype;
    (*out)[i] = dtype == kLikeFirst ? first : dtype;
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    int& type = (*in)[i];
    if (type == kUnknown) type = default_dtype(inputs[i].role, first);
    if (type == kUnknown || first == kUnknown) continue;
    check_dtype(op.name(), inputs[i], static_cast<int>(i), type, inputs[0].name, first);
  }
  return mxnet::ext::MX_SUCCESS;
}

// All arrays are dense. Without this function MXNet rejects storage types that are not inferred
// yet, as in the backward pass of a loop.
MXReturnValue infer_storage_types(const Attributes&, std::vector<int>* in, std::vector<int>* out) {
  std::fill(in->begin(), in->end(), mxnet::ext::kDefaultStorage);
  std::fill(out->begin(), out->end(), mxnet::ext::kDefaultStorage);
  return mxnet::ext::MX_SUCCESS;
}

// Looks up a function that MXNet exports, in the library that contains the address `inside_mxnet`.
// Returns null if there is none.
template <class Function>
Function* mxnet_function(void* inside_mxnet, const char* name) {
  Dl_info found;
  if (dladdr(inside_mxnet, &found) == 0) return nullptr;
  void* const library = dlopen(found.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  void* const function = dlsym(library, name);
  dlclose(library);
  return reinterpret_cast<Function*>(function);
}

MXReturnValue forward(const Operator& op, const Attributes& attributes,
                      const std::vector<MXTensor>& in, const std::vector<MXTensor>& out,
                      const OpResource& resource) {
  const std::vector<Input> declared = op.inputs(attributes);
  const std::vector<Tensor> inputs = inputs_of(declared, in, 0);
  const std::vector<Tensor> outputs = outputs_of(op, out, 0);
  // MXNet never plans an output of a custom operator in the memory of an input, but out= may.
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = 0; j < inputs.size(); ++j) {
      check_no_overlap(op.name(), op.outputs()[i].name, outputs[i], declared[j].name, inputs[j]);
    }
  }
  op.forward(attributes, inputs, outputs,
             device_of(op, attributes, inputs, false, in[0], resource));
  return mxnet::ext::MX_SUCCESS;
}

// All numbers of an array as a row.
Tensor row_of(const MXTensor& source) {
  Tensor row{};
  row.data = source.data_ptr;
  row.dtype = source.dtype;
  row.ndim = 1;
  row.shape[0] = source.size();
  return row;
}

MXReturnValue forward_any_rank(const Operator& op, const Attributes& attributes,
                               const std::vector<MXTensor>& in, const MXTensor& out,
                               const OpResource& resource) {
  const Tensor row = row_of(out);
  device_of(op, attributes, {}, false, in[0], resource);  // fails for arrays on a GPU
  std::vector<SizedArray> inputs;
  inputs.reserve(in.size());
  for (const MXTensor& source : in) {
    check_no_overlap(op.name(), op.outputs()[0].name, row, "data", row_of(source));
    inputs.push_back({static_cast<float*>(source.data_ptr), source.shape});
  }
  op.any_rank()->forward(attributes, inputs, {static_cast<float*>(out.data_ptr), out.shape});
  return mxnet::ext::MX_SUCCESS;
}

// MXNet passes [d_outputs..., inputs..., outputs...] and expects a gradient for every input.
MXReturnValue backward(const Operator& op, const Attributes& attributes,
                       const std::vector<MXTensor>& in, const std::vector<MXTensor>& gradients,
                       const OpResource& resource) {
  const size_t count = op.outputs().size();
  const std::vector<Input> declared = op.inputs(attributes);
  const std::vector<Tensor> inputs = inputs_of(declared, in, count);
  std::vector<Tensor> d_outputs = outputs_of(op, in, 0);
  const std::vector<Tensor> outputs = outputs_of(op, in, count + gradients.size());
  for (size_t i = 0; i < count; ++i) {
    if (op.outputs()[i].dtype != kLikeFirst) d_outputs[i] = outputs[i];
  }
  op.backward(attributes, inputs, d_outputs, inputs_of(declared, gradients, 0),
              device_of(op, attributes, inputs, true, in[0], resource));
  return mxnet::ext::MX_SUCCESS;
}

// The operators() followed by the inference_operators().
const std::vector<const Operator*>& all_operators() {
  static const std::vector<const Operator*> all = [] {
    std::vector<const Operator*> both = operators();
    both.insert(both.end(), inference_operators().begin(), inference_operators().end());
    return both;
  }();
  return all;
}
// The library API takes a set of plain function pointers for each operator, and does not pass them
// the operator: EntryPoints<I> has the functions of all_operators()[I]. The template parameter is
// an index instead of the operator's class, because the operators' files do not include MXNet's
// header.
template <size_t I>
struct EntryPoints {
  static const Operator& op() { return *all_operators()[I]; }
  static MXReturnValue parse(const Attributes& attributes, int* inputs, int* outputs) {
    return parse_attributes(op(), attributes, inputs, outputs);
  }
  static MXReturnValue types(const Attributes& attributes, std::vector<int>* in,
                             std::vector<int>* out) {
    return infer_types(op(), attributes, in, out);
  }
  static MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
    infer(op(), attributes, in, out);
    return mxnet::ext::MX_SUCCESS;
  }
  static MXReturnValue forward(const Attributes& attributes, std::vector<MXTensor>* in,
                               std::vector<MXTensor>* out, const OpResource& resource) {
    if (op().any_rank() != nullptr) {
      return forward_any_rank(op(), attributes, *in, (*out)[0], resource);
    }
    return gluon_roi::forward(op(), attributes, *in, *out, resource);
  }
  static MXReturnValue backward(const Attributes& attributes, std::vector<MXTensor>* in,
                                std::vector<MXTensor>* out, const OpResource& resource) {
    return gluon_roi::backward(op(), attributes, *in, *out, resource);
  }
  static MXReturnValue exclusive_inputs(const Attributes&, std::vector<int>* indices) {
    indices->push_back(0);
    return mxnet::ext::MX_SUCCESS;
  }
  static void add() {
    if (I >= all_operators().size()) return;
    // Static, because MXNet keeps the pointer.
    static const std::string name = std::string("_gluon_roi_") + op().name();
    auto& custom = mxnet::ext::Registry<mxnet::ext::CustomOp>::get()->add(name.c_str());
    custom.setParseAttrs(parse)
        .setInferType(types)
        .setInferSType(infer_storage_types)
        .setInferShape(shapes)
        .setForward(forward, "cpu")
        .setForward(forward, "gpu")
        .setBackward(backward, "cpu")
        .setBackward(backward, "gpu");
    if (op().is_exclusive()) custom.setMutateInputs(exclusive_inputs);
  }
};

// The maximum number of operators; initialize() fails if there are more.
#ifndef GLUON_ROI_MAX_OPERATORS
#define GLUON_ROI_MAX_OPERATORS 64
#endif
constexpr size_t kMaxOperators = GLUON_ROI_MAX_OPERATORS;
template <size_t... I>
void add_operators(std::index_sequence<I...>) {
  (EntryPoints<I>::add(), ...);
}

}  // namespace
}  // namespace gluon_roi

// Returns the version of the library API. MXNet calls this first, and accepts only its own version:
// 10 in MXNet 1.8 and 11 in 1.9. They differ only in stateful operators, which this library does
// not have. Other callers get the version that MXNet got.
int _opVersion() {
  static int version = MX_LIBRARY_VERSION;
  auto* const mxnet_version =
      gluon_roi::mxnet_function<int(int*)>(__builtin_return_address(0), "MXGetVersion");
  int mxnet = 0;
  if (mxnet_version != nullptr && mxnet_version(&mxnet) == 0 && mxnet < 10900) version = 10;
  return version;
}

// MXNet calls this when it loads the library, before it reads the list of operators.
mxnet::ext::MXReturnValue initialize(int version) {
  if (version < 10800) {
    MX_ERROR_MSG << "gluon_roi needs MXNet 1.8 or newer";
    return mxnet::ext::MX_FAIL;
  }
  if (gluon_roi::all_operators().size() > gluon_roi::kMaxOperators) {
    MX_ERROR_MSG << "gluon_roi has " << gluon_roi::all_operators().size()
                 << " operators, expected at most " << gluon_roi::kMaxOperators
                 << " (GLUON_ROI_MAX_OPERATORS in src/bindings/mxnet.cc)";
    return mxnet::ext::MX_FAIL;
  }
  gluon_roi::is_np_shape =
      gluon_roi::mxnet_function<int(int*)>(__builtin_return_address(0), "MXIsNumpyShape");
  gluon_roi::add_operators(std::make_index_sequence<gluon_roi::kMaxOperators>());
  return mxnet::ext::MX_SUCCESS;
}
