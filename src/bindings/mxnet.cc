// The one place that knows MXNet: turns every Operator into a custom operator of its library API.
// An exception thrown here surfaces in Python as one MXNetError with the same sentence.
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <utility>

#include "../core/operator.h"
#include "lib_api.h"

namespace gluon_roi {
namespace {

using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using mxnet::ext::OpResource;
using Shapes = std::vector<std::vector<unsigned int>>;

// An unknown dimension is -1 inside of np_shape(), where there are arrays of 0 elements; elsewhere
// it is 0 or -1.
Tensor tensor_of(const std::vector<unsigned int>& shape, bool with_empty_arrays) {
  if (shape.empty()) return unknown_tensor();
  Tensor tensor{};
  tensor.ndim = static_cast<int32_t>(shape.size());
  for (size_t i = 0; i < shape.size() && i < 4; ++i) {
    const bool unknown = shape[i] == UINT_MAX || (shape[i] == 0 && !with_empty_arrays);
    tensor.shape[i] = unknown ? -1 : static_cast<int64_t>(shape[i]);
  }
  return tensor;
}

Tensor tensor_of(const MXTensor& source) {
  Tensor tensor{};
  tensor.data = source.data_ptr;
  tensor.dtype = source.dtype;
  tensor.ndim = static_cast<int32_t>(source.shape.size());
  for (size_t i = 0; i < source.shape.size() && i < 4; ++i) tensor.shape[i] = source.shape[i];
  return tensor;
}

std::vector<Tensor> tensors_of(const std::vector<MXTensor>& sources, size_t begin, size_t count) {
  std::vector<Tensor> tensors;
  for (size_t i = begin; i < begin + count; ++i) tensors.push_back(tensor_of(sources[i]));
  return tensors;
}

// MXNet hands out one workspace a call: asked for once, for the whole call.
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

MXReturnValue parse_attributes(const Operator& op, const Attributes& attributes, int* inputs,
                               int* outputs) {
  // MXNet asks 6 times in a forward and 32 times in a backward pass; parsing each time took a tenth
  // of a small call.
  static thread_local const Operator* known = nullptr;
  static thread_local Attributes known_attributes;
  static thread_local int known_inputs;
  if (known != &op || known_attributes != attributes) {
    known_inputs = static_cast<int>(op.inputs(attributes).size());
    known = &op;
    known_attributes = attributes;
  }
  *inputs = known_inputs;
  *outputs = 1;
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_types(const Operator& op, const Attributes& attributes, std::vector<int>* in,
                          std::vector<int>* out) {
  constexpr int kUnknown = -1;
  const std::vector<Input> inputs = op.inputs(attributes);
  const int maps = (*in)[0];
  (*out)[0] = maps;
  for (size_t i = 0; i < inputs.size(); ++i) {
    int& type = (*in)[i];
    if (type == kUnknown) type = default_dtype(inputs[i].role, maps);
    if (type == kUnknown || maps == kUnknown) continue;
    check_dtype(op.name(), inputs[i], static_cast<int>(i), type, maps);
  }
  return mxnet::ext::MX_SUCCESS;
}

// A function that MXNet exports, found by an address inside of MXNet; null in another library.
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

// Whether this thread is inside mx.util.np_shape(), where an unknown dimension is -1 and 0 is one
// without elements. Elsewhere both are 0. MXNet does not tell, but the library that called
// initialize() exports the function that Python asks.
int (*is_np_shape)(int*) = nullptr;

bool np_shape() {
  int inside = 0;
  if (is_np_shape != nullptr) is_np_shape(&inside);
  return inside != 0;
}

// Of an input that has no shape, its guard may tell the rank.
bool has_no_shape(const Tensor& tensor) {
  return std::all_of(tensor.shape, tensor.shape + std::max(tensor.ndim, 0),
                     [](int64_t n) { return n < 0; });
}

// Whether this thread is inside Symbol.infer_shape_partial(), which leaves unknown what it cannot
// know. MXNet does not tell.
bool infers_in_part() {
  void* frames[128];
  const int count = backtrace(frames, 128);
  return std::any_of(frames, frames + count, [](void* frame) {
    Dl_info found;
    return dladdr(frame, &found) != 0 && found.dli_sname != nullptr &&
           std::strstr(found.dli_sname, "InferShapePartial") != nullptr;
  });
}

MXReturnValue infer_shapes(const Operator& op, const Attributes& attributes, Shapes* in,
                           Shapes* out) {
  const bool with_empty_arrays = np_shape();
  std::vector<Tensor> inputs;
  for (const auto& input : *in) inputs.push_back(tensor_of(input, with_empty_arrays));
  const Tensor shape = op.output_shape(attributes, inputs);
  // The library API has no word for "no shape": MXNet takes such an input for a scalar, or for one
  // of 0 elements, and would bind the graph in silence.
  const auto missing = std::find_if(inputs.begin(), inputs.end(), has_no_shape);
  if (missing != inputs.end() && !infers_in_part()) {
    const size_t i = static_cast<size_t>(missing - inputs.begin());
    fail(op.name(), op.inputs(attributes)[i].name, " has no shape, expected one given or inferred");
  }
  // The library API has no word for "unknown". -1 comes near it: it is 2^32 - 1 to MXNet, which
  // counts in 32 bits. With -1 channels the bins are -1 as well, for operators behind this one
  // multiply the three, and -1 * 2 * 3 is nothing that they take.
  const bool channels_known = shape.shape[1] >= 0;
  (*out)[0].clear();
  for (int i = 0; i < shape.ndim; ++i) {
    const bool known = shape.shape[i] >= 0 && (i < 2 || channels_known || !with_empty_arrays);
    (*out)[0].push_back(known               ? static_cast<unsigned int>(shape.shape[i])
                        : with_empty_arrays ? UINT_MAX
                                            : 0);
  }
  // What the inputs lack comes back as MXNet gave it, and would be 2^32 - 1 as well: too many for
  // the zeros of a guard that tells a rank.
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (with_empty_arrays && !has_no_shape(inputs[i])) continue;
    std::replace((*in)[i].begin(), (*in)[i].end(), UINT_MAX, 0u);
  }
  return mxnet::ext::MX_SUCCESS;
}

MXReturnValue forward(const Operator& op, const Attributes& attributes,
                      const std::vector<MXTensor>& in, const std::vector<MXTensor>& out,
                      const OpResource& resource) {
  const std::vector<Tensor> inputs = tensors_of(in, 0, in.size());
  op.forward(attributes, inputs, tensor_of(out[0]),
             device_of(op, attributes, inputs, false, in[0], resource));
  return mxnet::ext::MX_SUCCESS;
}

// MXNet passes [d_out, inputs..., out] and wants a gradient written for every input.
MXReturnValue backward(const Operator& op, const Attributes& attributes,
                       const std::vector<MXTensor>& in, const std::vector<MXTensor>& gradients,
                       const OpResource& resource) {
  const std::vector<Tensor> inputs = tensors_of(in, 1, gradients.size());
  op.backward(attributes, inputs, tensor_of(in[0]), tensors_of(gradients, 0, gradients.size()),
              device_of(op, attributes, inputs, true, in[0], resource));
  return mxnet::ext::MX_SUCCESS;
}

// The library API takes plain function pointers, one set for each operator, without room for "which
// operator": Slot<I> is the set of operator number I.
template <size_t I>
struct Slot {
  static const Operator& op() { return *operators()[I]; }
  static MXReturnValue parse(const Attributes& attributes, int* inputs, int* outputs) {
    return parse_attributes(op(), attributes, inputs, outputs);
  }
  static MXReturnValue types(const Attributes& attributes, std::vector<int>* in,
                             std::vector<int>* out) {
    return infer_types(op(), attributes, in, out);
  }
  static MXReturnValue shapes(const Attributes& attributes, Shapes* in, Shapes* out) {
    return infer_shapes(op(), attributes, in, out);
  }
  static MXReturnValue forward(const Attributes& attributes, std::vector<MXTensor>* in,
                               std::vector<MXTensor>* out, const OpResource& resource) {
    return gluon_roi::forward(op(), attributes, *in, *out, resource);
  }
  static MXReturnValue backward(const Attributes& attributes, std::vector<MXTensor>* in,
                                std::vector<MXTensor>* out, const OpResource& resource) {
    return gluon_roi::backward(op(), attributes, *in, *out, resource);
  }
  static void add() {
    if (I >= operators().size()) return;
    // MXNet keeps the pointer.
    static const std::string name = std::string("_gluon_roi_") + op().name();
    mxnet::ext::Registry<mxnet::ext::CustomOp>::get()
        ->add(name.c_str())
        .setParseAttrs(parse)
        .setInferType(types)
        .setInferShape(shapes)
        .setForward(forward, "cpu")
        .setForward(forward, "gpu")
        .setBackward(backward, "cpu")
        .setBackward(backward, "gpu");
  }
};

// More than there are operators: initialize() refuses to load a library that has more.
#ifndef GLUON_ROI_SLOTS
#define GLUON_ROI_SLOTS 64
#endif
constexpr size_t kSlots = GLUON_ROI_SLOTS;
template <size_t... I>
void add_operators(std::index_sequence<I...>) {
  (Slot<I>::add(), ...);
}

}  // namespace
}  // namespace gluon_roi

// The version of the library API that MXNet insists on; it asks before all else. MXNet 1.8 has 10,
// and 1.9 has 11, which differs in stateful operators alone: there are none here. Asked by anybody
// else, the version that MXNet was given.
int _opVersion() {
  static int version = MX_LIBRARY_VERSION;
  auto* const mxnet_version =
      gluon_roi::mxnet_function<int(int*)>(__builtin_return_address(0), "MXGetVersion");
  int mxnet = 0;
  if (mxnet_version != nullptr && mxnet_version(&mxnet) == 0 && mxnet < 10900) version = 10;
  return version;
}

// Called by MXNet when it loads the library, before it asks for the operators.
mxnet::ext::MXReturnValue initialize(int version) {
  if (version < 10800) {
    MX_ERROR_MSG << "gluon_roi needs MXNet 1.8 or newer";
    return mxnet::ext::MX_FAIL;
  }
  if (gluon_roi::operators().size() > gluon_roi::kSlots) {
    MX_ERROR_MSG << "gluon_roi has " << gluon_roi::operators().size()
                 << " operators, expected at most " << gluon_roi::kSlots
                 << " (GLUON_ROI_SLOTS in src/bindings/mxnet.cc)";
    return mxnet::ext::MX_FAIL;
  }
  gluon_roi::is_np_shape =
      gluon_roi::mxnet_function<int(int*)>(__builtin_return_address(0), "MXIsNumpyShape");
  gluon_roi::add_operators(std::make_index_sequence<gluon_roi::kSlots>());
  return mxnet::ext::MX_SUCCESS;
}
