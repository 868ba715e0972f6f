// From an operator's description (src/ops/*.h) to something that can be called: both entry points,
// MXNet's and the C interface's, are checked here, once for all operators.
#pragma once
#include <type_traits>
#include <vector>

#include "contract.h"
#include "params.h"

namespace gluon_roi {

// Where an operator runs: plain overloads, so that a forgotten CUDA half is a link error.
struct Cpu {};
// The stream is the caller's; the workspace is device memory of at least Op::workspace(...) bytes.
struct Gpu {
  void* stream;
  char* workspace;
  size_t workspace_size;
};

// Writes zeros: the gradient of an input that has none.
void zero_fill(Cpu, const Tensor& tensor);
void zero_fill(const Gpu& gpu, const Tensor& tensor);

// Called with an array of the CPU that is about to be written whole.
void prepare_output(const Tensor& tensor);

class Operator {
 public:
  Operator(const char* name, const char* symbol);
  virtual ~Operator() = default;
  const char* name() const { return name_; }      // as in Python: PSROIPool
  const char* symbol() const { return symbol_; }  // as in C: ps_roi_pool

  // ---- MXNet's entry point: parameters as attributes, and the inputs that are there. All of these
  // throw on an unknown key or a bad value.
  virtual std::vector<Input> inputs(const Attributes& attributes) const = 0;
  // Shape of the output, with -1 for what an unknown input leaves open.
  virtual Tensor output_shape(const Attributes& attributes,
                              const std::vector<Tensor>& inputs) const = 0;
  virtual void forward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                       const Tensor& out, const gluon_roi_device& device) const = 0;
  virtual void backward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                        const Tensor& d_out, const std::vector<Tensor>& d_inputs,
                        const gluon_roi_device& device) const = 0;
  // Bytes of device memory that a CUDA call wants.
  virtual size_t workspace(const Attributes& attributes, const std::vector<Tensor>& inputs,
                           bool backward) const = 0;

  // What it declares, as a JSON object.
  virtual std::string describe() const = 0;

 private:
  const char *name_, *symbol_;
};

// Every operator of the library, in no particular order.
std::vector<const Operator*>& operators();

[[noreturn]] void fail_without_cuda(const char* op);

template <class Params, class = void>
struct HasOutputDim : std::false_type {};
template <class Params>
struct HasOutputDim<Params, std::void_t<decltype(Params::output_dim)>> : std::true_type {};

// Op derives from OperatorBase and has: kName, kInputs, Params, params(visitor, params),
// output_channels(params, C), and forward and backward for Cpu and, in CUDA builds, for Gpu with
// workspace().
template <class Op>
class OperatorFor final : public Operator {
 public:
  using Params = typename Op::Params;

  explicit OperatorFor(const char* symbol) : Operator(Op::kName, symbol) {}

  // ---- MXNet's entry point ----
  std::vector<Input> inputs(const Attributes& attributes) const override {
    const Parsed parsed = parse(attributes);
    std::vector<Input> there(static_cast<size_t>(Op::maps(parsed.params)), Op::kInputs[0]);
    for (int i = 1; i < kDeclared; ++i) {
      if (parsed.there[i]) there.push_back(Op::kInputs[i]);
    }
    return there;
  }
  Tensor output_shape(const Attributes& attributes,
                      const std::vector<Tensor>& inputs) const override {
    const Parsed parsed = parse(attributes);
    const std::vector<Tensor> slots = spread(parsed, inputs);
    return output_shape(parsed.params, view(parsed.params, slots.data()), kMostInMXNet);
  }
  void forward(const Attributes& attributes, const std::vector<Tensor>& inputs, const Tensor& out,
               const gluon_roi_device& device) const override {
    const Parsed parsed = parse(attributes);
    const std::vector<Tensor> slots = spread(parsed, inputs);
    forward(parsed.params, checked_view(parsed.params, slots), out, device);
  }
  void backward(const Attributes& attributes, const std::vector<Tensor>& inputs,
                const Tensor& d_out, const std::vector<Tensor>& d_inputs,
                const gluon_roi_device& device) const override {
    const Parsed parsed = parse(attributes);
    const std::vector<Tensor> slots = spread(parsed, inputs), d_slots = spread(parsed, d_inputs);
    backward(parsed.params, checked_view(parsed.params, slots), d_out, d_slots, device);
  }
  size_t workspace(const Attributes& attributes, const std::vector<Tensor>& inputs,
                   bool backward) const override {
    const Parsed parsed = parse(attributes);
    const std::vector<Tensor> slots = spread(parsed, inputs);
    return workspace(parsed.params, view(parsed.params, slots.data()), backward);
  }
  std::string describe() const override {
    Params params{};
    ParamDescriber describer(&params);
    Op::params(&describer, &params);
    std::string inputs;
    for (const Input& input : Op::kInputs) {
      static const char* const roles[] = {"maps", "rois", "offsets", "counts"};
      inputs += std::string(inputs.empty() ? "" : ", ") + "{\"name\": \"" + input.name +
                "\", \"role\": \"" + roles[static_cast<int>(input.role)] +
                "\", \"optional\": " + (input.optional ? "true" : "false") +
                ", \"has_gradient\": " + (input.has_gradient ? "true" : "false") + "}";
    }
    return std::string("{\"name\": \"") + name() + "\", \"symbol\": \"" + symbol() +
           "\", \"inputs\": [" + inputs +
           "], \"coordinates\": " + std::to_string(Op::kCoordinates) +
           ", \"params_size\": " + std::to_string(sizeof(Params)) + ", \"params\": [" +
           describer.json() + "]}";
  }

  // ---- The C interface's entry point: parameters as a struct, and all inputs, of which the
  // optional ones may be absent ----
  void checked_forward(const Params* params, const Tensor* inputs, int32_t count, const Tensor* out,
                       const gluon_roi_device* device) const {
    if (out == nullptr || device == nullptr) fail_null("params, inputs, output and device");
    const std::vector<Tensor> slots = check_call(params, inputs, count, *device);
    check_output("output", *out, checked_shape(*params, slots), slots, nullptr);
    check_workspace(*params, slots, *device, /*backward=*/false);
    forward(*params, view(*params, slots.data()), *out, *device);
  }
  void checked_backward(const Params* params, const Tensor* inputs, int32_t count,
                        const Tensor* d_out, const Tensor* d_inputs,
                        const gluon_roi_device* device) const {
    if (d_out == nullptr || device == nullptr || d_inputs == nullptr) {
      fail_null("params, inputs, d_out, d_inputs and device");
    }
    const std::vector<Tensor> slots = check_call(params, inputs, count, *device);
    check_like("d_out", *d_out, checked_shape(*params, slots));
    std::vector<Tensor> d_slots(d_inputs, d_inputs + count);
    d_slots.resize(slots.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      const Input& input = declared(*params, static_cast<int>(i));
      if (is_absent(d_slots[i]) && input.role != Role::kMaps) continue;
      const std::string name = std::string("d_") + input.name;
      if (is_absent(slots[i])) {
        fail(Op::kName, name, " is given, expected none where there is no ", input.name);
      }
      check_output(name.c_str(), d_slots[i], slots[i], slots, d_out);
    }
    check_workspace(*params, slots, *device, /*backward=*/true);
    backward(*params, view(*params, slots.data()), *d_out, d_slots, *device);
  }
  void checked_workspace(const Params* params, const Tensor* inputs, int32_t count, int backward,
                         int32_t device, size_t* bytes) const {
    if (bytes == nullptr) fail_null("params, inputs and bytes");
    const std::vector<Tensor> slots = check_inputs(params, inputs, count);
    checked_shape(*params, slots);
    *bytes = device == GLUON_ROI_CUDA
                 ? workspace(*params, view(*params, slots.data()), backward != 0)
                 : 0;
  }

 private:
  static constexpr int kDeclared = static_cast<int>(std::size(Op::kInputs));

  struct Parsed {
    Params params;
    bool there[kDeclared];  // which inputs
  };
  static Parsed parse(const Attributes& attributes) {
    Parsed parsed{};
    ParamParser parser(Op::kName, attributes);
    Op::params(&parser, &parsed.params);
    for (int i = 0; i < kDeclared; ++i) {
      int32_t there = 1;
      // Set by the Python functions, not by users.
      if (Op::kInputs[i].optional) parser.boolean(Op::kInputs[i].name, &there, false);
      parsed.there[i] = there != 0;
    }
    parser.reject_unknown();
    return parsed;
  }

  // All inputs have a slot: first the maps, then the others in their order.
  static int slots_of(const Params& params) { return Op::maps(params) + kDeclared - 1; }
  static const Input& declared(const Params& params, int slot) {
    return Op::kInputs[std::max(0, slot - Op::maps(params) + 1)];
  }
  static std::vector<Tensor> spread(const Parsed& parsed, const std::vector<Tensor>& there) {
    const int maps = Op::maps(parsed.params);
    std::vector<Tensor> slots(there.begin(), there.begin() + maps);
    size_t next = static_cast<size_t>(maps);
    for (int i = 1; i < kDeclared; ++i) {
      slots.push_back(parsed.there[i] ? there[next++] : Tensor{});
    }
    return slots;
  }
  static Inputs view(const Params& params, const Tensor* slots) {
    Inputs in{};
    in.maps = slots;
    in.count = Op::maps(params);
    in.data = slots[0];
    in.coordinates = Op::kCoordinates;
    for (int i = 1; i < kDeclared; ++i) {
      const Tensor& tensor = slots[in.count + i - 1];
      switch (Op::kInputs[i].role) {
        case Role::kRois: in.rois = tensor; break;
        case Role::kOffsets: in.offsets = tensor; break;
        default: in.rois_num = tensor;
      }
    }
    return in;
  }

  // MXNet takes an input whose shape it never learnt for a scalar.
  static Inputs checked_view(const Params& params, const std::vector<Tensor>& slots) {
    const Inputs in = view(params, slots.data());
    check_shapes(Op::kName, in);
    return in;
  }

  static Tensor output_shape(const Params& params, const Inputs& in, int64_t most) {
    constexpr bool has_output_dim = HasOutputDim<Params>::value;
    const int64_t rows = check_shapes(Op::kName, in);
    Tensor out{};
    out.dtype = in.data.dtype;
    out.ndim = 4;
    out.shape[0] = out.shape[1] = -1;
    out.shape[2] = params.pooled_height;
    out.shape[3] = params.pooled_width;
    // The bins first: what follows counts them.
    check_output_size(Op::kName, out, has_output_dim, most);
    out.shape[0] = rows;
    out.shape[1] = Op::output_channels(params, in.data.ndim < 0 ? -1 : in.data.shape[1]);
    check_output_size(Op::kName, out, has_output_dim, most);
    Op::check_inputs(params, in);
    return out;
  }

  static void forward(const Params& params, const Inputs& in, const Tensor& out,
                      const gluon_roi_device& device) {
    if (elements(out) == 0) return;
    if (device.type == GLUON_ROI_CPU) {
      prepare_output(out);
      return Op::forward(Cpu{}, params, in, out);
    }
#ifdef GLUON_ROI_WITH_CUDA
    Op::forward(gpu(device), params, in, out);
#else
    fail_without_cuda(Op::kName);
#endif
  }
  static void backward(const Params& params, const Inputs& in, const Tensor& d_out,
                       const std::vector<Tensor>& d_slots, const gluon_roi_device& device) {
    if (device.type == GLUON_ROI_CPU) {
      for (int i = 0; i < in.count; ++i) prepare_output(d_slots[i]);
      Op::backward(Cpu{}, params, in, d_out, gradients(params, d_slots));
      return zero_others(Cpu{}, params, d_slots);
    }
#ifdef GLUON_ROI_WITH_CUDA
    Op::backward(gpu(device), params, in, d_out, gradients(params, d_slots));
    zero_others(gpu(device), params, d_slots);
#else
    fail_without_cuda(Op::kName);
#endif
  }
  // Whether the operator computes the gradient of declared input i, which is no map.
  static bool computes_gradient(const Params& params, int i) {
    const Role role = Op::kInputs[i].role;
    return role == Role::kOffsets || (role == Role::kRois && Op::rois_gradient(params));
  }
  static const Tensor& gradient_of(const Params& params, const std::vector<Tensor>& d_slots,
                                   int i) {
    return d_slots[static_cast<size_t>(Op::maps(params) + i - 1)];
  }
  static Gradients gradients(const Params& params, const std::vector<Tensor>& d_slots) {
    Gradients d{};
    d.maps = d_slots.data();
    d.data = d_slots[0];
    for (int i = 1; i < kDeclared; ++i) {
      if (!computes_gradient(params, i)) continue;
      Tensor& slot = Op::kInputs[i].role == Role::kOffsets ? d.offsets : d.rois;
      slot = gradient_of(params, d_slots, i);
    }
    return d;
  }
  // The gradients of inputs that have none; last, because a call that is refused writes nothing.
  template <class Device>
  static void zero_others(const Device& device, const Params& params,
                          const std::vector<Tensor>& d_slots) {
    for (int i = 1; i < kDeclared; ++i) {
      const Tensor& tensor = gradient_of(params, d_slots, i);
      if (!computes_gradient(params, i) && !is_absent(tensor)) zero_fill(device, tensor);
    }
  }
  static size_t workspace(const Params& params, const Inputs& in, bool backward) {
#ifdef GLUON_ROI_WITH_CUDA
    return Op::workspace(params, in, backward);
#else
    static_cast<void>(params), static_cast<void>(in), static_cast<void>(backward);
    fail_without_cuda(Op::kName);
#endif
  }
  static Gpu gpu(const gluon_roi_device& device) {
    return Gpu{device.stream, static_cast<char*>(device.workspace), device.workspace_size};
  }

  // ---- Checks of the C interface ----
  [[noreturn]] static void fail_null(const char* expected) {
    fail(Op::kName, "expected ", expected, ", got a NULL pointer");
  }
  static std::vector<Tensor> check_inputs(const Params* params, const Tensor* inputs,
                                          int32_t count) {
    if (params == nullptr || inputs == nullptr) fail_null("params and inputs");
    ParamChecker checker(Op::kName);
    Op::params(&checker, const_cast<Params*>(params));
    const int most = slots_of(*params);
    int least = most;
    while (declared(*params, least - 1).optional) --least;
    if (count < least || count > most) {
      fail(Op::kName, "expected ", least, least == most ? "" : " to " + std::to_string(most),
           " inputs, got ", count);
    }
    std::vector<Tensor> slots(inputs, inputs + count);
    slots.resize(static_cast<size_t>(most));
    for (int i = 0; i < most; ++i) {
      const Input& input = declared(*params, i);
      if (input.optional && is_absent(slots[i])) continue;
      check_tensor(Op::kName, input.name, slots[i]);
      check_dtype(Op::kName, input, i, slots[i].dtype, slots[0].dtype);
    }
    return slots;
  }
  static std::vector<Tensor> check_call(const Params* params, const Tensor* inputs, int32_t count,
                                        const gluon_roi_device& device) {
    const std::vector<Tensor> slots = check_inputs(params, inputs, count);
    if (device.type != GLUON_ROI_CPU && device.type != GLUON_ROI_CUDA) {
      fail(Op::kName, "device type: expected GLUON_ROI_CPU or GLUON_ROI_CUDA, got ", device.type);
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      check_memory(Op::kName, declared(*params, static_cast<int>(i)).name, slots[i]);
    }
    return slots;
  }
  static Tensor checked_shape(const Params& params, const std::vector<Tensor>& slots) {
    return output_shape(params, view(params, slots.data()), kMost);
  }
  static void check_workspace(const Params& params, const std::vector<Tensor>& slots,
                              const gluon_roi_device& device, bool backward) {
    if (device.type != GLUON_ROI_CUDA) return;
    const size_t needed = workspace(params, view(params, slots.data()), backward);
    const size_t got = device.workspace == nullptr ? 0 : device.workspace_size;
    if (got < needed) fail(Op::kName, "device workspace: expected ", needed, " bytes, got ", got);
  }
  static void check_like(const char* what, const Tensor& got, const Tensor& expected) {
    check_tensor(Op::kName, what, got);
    if (got.dtype != expected.dtype || shape_text(got) != shape_text(expected)) {
      fail(Op::kName, what, ": expected ", dtype_name(expected.dtype), " ", shape_text(expected),
           ", got ", dtype_name(got.dtype), " ", shape_text(got));
    }
    check_memory(Op::kName, what, got);
  }
  // An array that the call writes, while it reads the inputs and d_out.
  static void check_output(const char* what, const Tensor& got, const Tensor& expected,
                           const std::vector<Tensor>& slots, const Tensor* d_out) {
    check_like(what, got, expected);
    for (size_t i = 0; i < slots.size(); ++i) {
      const int first = static_cast<int>(slots.size()) - kDeclared + 1;
      const char* name = Op::kInputs[std::max(0, static_cast<int>(i) - first + 1)].name;
      check_apart(Op::kName, what, got, name, slots[i]);
    }
    if (d_out != nullptr) check_apart(Op::kName, what, got, "d_out", *d_out);
  }
};

}  // namespace gluon_roi
