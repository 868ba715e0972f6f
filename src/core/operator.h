// From an operator's description (src/ops/*.h) to something that can be called: shapes and types
// are checked here, once for all operators and for both doors, MXNet and the C interface.
#pragma once
#include <limits>
#include <type_traits>
#include <vector>

#include "fields.h"
#include "geometry.h"

namespace gluon_roi {

// Where an operator runs: plain overloads, so that a forgotten CUDA half is a link error.
struct Cpu {};
// The stream is the caller's; the workspace is device memory of at
// least Op::workspace(...) bytes.
struct Gpu {
  void* stream;
  char* workspace;
  size_t workspace_size;
};

// A shape in inference: ndim -1 is unknown, and so is a dimension <= 0 (MXNet's 0, or np_shape's
// -1) until arrays exist.
inline Tensor unknown_tensor() {
  Tensor tensor{};
  tensor.ndim = -1;
  return tensor;
}

std::string shape_text(const Tensor& tensor);

// The most elements of an output: what MXNet holds without its build for large tensors, and what
// has a number of bytes that fits 64 bits.
constexpr int64_t kMostInMXNet = std::numeric_limits<int32_t>::max();
constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 8;

// Throws unless the shapes fit together; unknown ones are passed over. Returns K, <= 0 if unknown.
int64_t check_shapes(const char* op, const Tensor& data, const Tensor& rois,
                     const Tensor* rois_num);
// Throws if an output of this shape, as far as it is known, has more than `most` elements; the
// message names the argument that makes it so large.
void check_output_size(const char* op, const Tensor& out, bool has_output_dim, int64_t most);
// Throws unless a caller of the C interface described an array that can exist.
void check_tensor(const char* op, const char* name, const Tensor& tensor);
// Throws unless it has memory, aligned for its type, that `other` does not share.
void check_memory(const char* op, const char* name, const Tensor& tensor);
void check_apart(const char* op, const char* name, const Tensor& tensor, const char* other_name,
                 const Tensor& other);
// Throws unless the element types are ones that the kernels handle.
void check_dtypes(const char* op, int data, int rois, const int* rois_num);

// The channel layout of a position-sensitive operator; 0 for output_dim or the groups is the
// default (all channels, the pooled size). Throws unless C = output_dim * group_height *
// group_width.
PositionSensitive position_sensitive(const char* op, int64_t output_dim, int32_t group_height,
                                     int32_t group_width, int32_t pooled_height,
                                     int32_t pooled_width, int64_t channels);

// Writes zeros: the gradient of an input that has none.
void zero_fill(Cpu, const Tensor& tensor);
void zero_fill(const Gpu& gpu, const Tensor& tensor);

// Makes a large array of the CPU, about to be written whole, resident in huge pages as long as the
// system has these at hand. In fresh memory, which MXNet hands out for every output, faults of
// small pages would cost more than the operator: 70 of 115 ms for the 201 MB of 2000 RoIs x 512
// channels x 7 x 7. But a virtual machine that gives idle memory back to its host gets a huge page
// in 5 ms instead of 0.3: 600 ms for the same output. The environment variable GLUON_ROI_HUGE_PAGES
// decides by hand: 1 for all, 0 for none.
void use_huge_pages(const Tensor& tensor);

class Operator {
 public:
  explicit Operator(const char* name);
  virtual ~Operator() = default;
  const char* name() const { return name_; }

  // Throws on an unknown key or a bad value.
  virtual void check_attributes(const Attributes& attributes) const = 0;
  // Shape of the output, with -1 for what an unknown input leaves open. rois_num may be null.
  // (MXNet takes an output without a rank for a scalar.)
  virtual Tensor output_shape(const Attributes& attributes, const Tensor& data, const Tensor& rois,
                              const Tensor* rois_num) const = 0;
  virtual void forward(const Attributes& attributes, const Inputs& in, const Tensor& out,
                       const gluon_roi_device& device) const = 0;
  virtual void backward(const Attributes& attributes, const Inputs& in, const Tensor& d_out,
                        const Tensor& d_data, const Tensor* d_rois,
                        const gluon_roi_device& device) const = 0;
  // Bytes of device memory that a CUDA call wants.
  virtual size_t workspace(const Attributes& attributes, const Inputs& in, bool backward) const = 0;

 private:
  const char* name_;
};

// Every operator of the library, in no particular order.
std::vector<const Operator*>& operators();

// Runs body() and turns what it throws into a code and gluon_roi_last_error().
int guarded_impl(void (*run)(const void*), const void* body);
template <class Body>
int guarded(const Body& body) {
  return guarded_impl([](const void* self) { (*static_cast<const Body*>(self))(); }, &body);
}

[[noreturn]] inline void fail_without_cuda(const char* op) {
  throw Error(std::string(op) +
                  ": data is on a GPU, but gluon_roi was built without CUDA; run "
                  "'GLUON_ROI_CUDA=1 pip install --force-reinstall --no-deps .' in its source "
                  "folder, with nvcc on PATH or CUDA_HOME set",
              GLUON_ROI_NO_CUDA);
}

template <class Params, class = void>
struct requires_output_dim : std::false_type {};
template <class Params>
struct requires_output_dim<Params, std::void_t<decltype(Params::output_dim)>> : std::true_type {};

// Op has: kName, Params, fields(visitor, params), output_channels(params, C), and forward, backward
// for Cpu and, in CUDA builds, for Gpu with workspace().
template <class Op>
class OperatorFor final : public Operator {
 public:
  using Params = typename Op::Params;

  OperatorFor() : Operator(Op::kName) {}

  // ---- The door of MXNet: parameters as attributes ----
  static Params parse(const Attributes& attributes) {
    Params params{};
    FieldParser parser(Op::kName, attributes);
    Op::fields(&parser, &params);
    // Says that a third input is there; set by the Python functions, not by users.
    int32_t with_rois_num = 0;
    parser.boolean("rois_num", &with_rois_num, false);
    parser.reject_unknown();
    return params;
  }
  void check_attributes(const Attributes& attributes) const override { parse(attributes); }

  Tensor output_shape(const Attributes& attributes, const Tensor& data, const Tensor& rois,
                      const Tensor* rois_num) const override {
    return output_shape(parse(attributes), data, rois, rois_num, kMostInMXNet);
  }
  void forward(const Attributes& attributes, const Inputs& in, const Tensor& out,
               const gluon_roi_device& device) const override {
    forward(parse(attributes), in, out, device);
  }
  void backward(const Attributes& attributes, const Inputs& in, const Tensor& d_out,
                const Tensor& d_data, const Tensor* d_rois,
                const gluon_roi_device& device) const override {
    backward(parse(attributes), in, d_out, d_data, d_rois, device);
  }
  size_t workspace(const Attributes& attributes, const Inputs& in, bool backward) const override {
    return workspace(parse(attributes), in, backward);
  }

  // ---- The door of C: parameters as a struct ----
  void checked_forward(const Params* params, const Inputs* in, const Tensor* out,
                       const gluon_roi_device* device) const {
    check_call(params, in, out, device, /*backward=*/false);
    forward(*params, *in, *out, *device);
  }
  void checked_backward(const Params* params, const Inputs* in, const Tensor* d_out,
                        const Tensor* d_data, const Tensor* d_rois,
                        const gluon_roi_device* device) const {
    check_call(params, in, d_out, device, /*backward=*/true);
    check_output("d_data", d_data, in->data, *in, d_out);
    if (d_rois != nullptr) check_output("d_rois", d_rois, in->rois, *in, d_out);
    backward(*params, *in, *d_out, *d_data, d_rois, *device);
  }
  void checked_workspace(const Params* params, const Inputs* in, int backward, int32_t device,
                         size_t* bytes) const {
    if (params == nullptr || in == nullptr || bytes == nullptr) {
      fail(Op::kName, "expected params, inputs and bytes, got a NULL pointer");
    }
    check_params(*params, *in);
    *bytes = device == GLUON_ROI_CUDA ? workspace(*params, *in, backward != 0) : 0;
  }

 private:
  static Tensor output_shape(const Params& params, const Tensor& data, const Tensor& rois,
                             const Tensor* rois_num, int64_t most) {
    const int64_t rows = check_shapes(Op::kName, data, rois, rois_num);
    Tensor out{};
    out.dtype = data.dtype;
    out.ndim = 4;
    out.shape[0] = out.shape[1] = -1;
    out.shape[2] = params.pooled_height;
    out.shape[3] = params.pooled_width;
    // The bins first: what follows counts them.
    check_output_size(Op::kName, out, has_output_dim(params), most);
    out.shape[0] = rows;
    out.shape[1] = Op::output_channels(params, data.ndim < 0 ? -1 : data.shape[1]);
    check_output_size(Op::kName, out, has_output_dim(params), most);
    return out;
  }

  static void forward(const Params& params, const Inputs& in, const Tensor& out,
                      const gluon_roi_device& device) {
    if (elements(out) == 0) return;
    if (device.type == GLUON_ROI_CPU) {
      use_huge_pages(out);
      return Op::forward(Cpu{}, params, in, out);
    }
#ifdef GLUON_ROI_WITH_CUDA
    Op::forward(gpu(device), params, in, out);
#else
    fail_without_cuda(Op::kName);
#endif
  }
  static void backward(const Params& params, const Inputs& in, const Tensor& d_out,
                       const Tensor& d_data, const Tensor* d_rois, const gluon_roi_device& device) {
    if (device.type == GLUON_ROI_CPU) {
      use_huge_pages(d_data);
      return Op::backward(Cpu{}, params, in, d_out, d_data, d_rois);
    }
#ifdef GLUON_ROI_WITH_CUDA
    Op::backward(gpu(device), params, in, d_out, d_data, d_rois);
#else
    fail_without_cuda(Op::kName);
#endif
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

  static bool has_output_dim(const Params& params) {
    if constexpr (requires_output_dim<Params>::value) return params.output_dim > 0;
    return false;
  }
  static const Tensor* counts_of(const Inputs& in) {
    return in.rois_num.data == nullptr && in.rois_num.ndim == 0 ? nullptr : &in.rois_num;
  }
  // Returns the shape that the output must have.
  static Tensor check_params(const Params& params, const Inputs& in) {
    FieldChecker checker(Op::kName);
    Op::fields(&checker, const_cast<Params*>(&params));
    const Tensor* counts = counts_of(in);
    check_tensor(Op::kName, "data", in.data);
    check_tensor(Op::kName, "rois", in.rois);
    if (counts != nullptr) check_tensor(Op::kName, "rois_num", *counts);
    check_dtypes(Op::kName, in.data.dtype, in.rois.dtype, counts ? &counts->dtype : nullptr);
    return output_shape(params, in.data, in.rois, counts, kMost);
  }
  static void check_call(const Params* params, const Inputs* in, const Tensor* out,
                         const gluon_roi_device* device, bool backward) {
    if (params == nullptr || in == nullptr || out == nullptr || device == nullptr) {
      fail(Op::kName, "expected params, inputs, output and device, got a NULL pointer");
    }
    if (device->type != GLUON_ROI_CPU && device->type != GLUON_ROI_CUDA) {
      fail(Op::kName, "device type: expected GLUON_ROI_CPU or GLUON_ROI_CUDA, got ", device->type);
    }
    const Tensor expected = check_params(*params, *in);
    check_memory(Op::kName, "data", in->data);
    check_memory(Op::kName, "rois", in->rois);
    check_memory(Op::kName, "rois_num", in->rois_num);
    if (backward) {
      check_like("d_out", out, expected);
    } else {
      check_output("output", out, expected, *in, nullptr);
    }
    if (device->type == GLUON_ROI_CUDA) {
      const size_t needed = workspace(*params, *in, backward);
      const size_t got = device->workspace == nullptr ? 0 : device->workspace_size;
      if (got < needed) {
        fail(Op::kName, "device workspace: expected ", needed, " bytes, got ", got);
      }
    }
  }
  static void check_like(const char* what, const Tensor* got, const Tensor& expected) {
    if (got == nullptr) fail(Op::kName, what, ": expected an array, got NULL");
    check_tensor(Op::kName, what, *got);
    if (got->dtype != expected.dtype || shape_text(*got) != shape_text(expected)) {
      fail(Op::kName, what, ": expected ", dtype_name(expected.dtype), " ", shape_text(expected),
           ", got ", dtype_name(got->dtype), " ", shape_text(*got));
    }
    check_memory(Op::kName, what, *got);
  }
  // An array that the call writes, while it reads the inputs and d_out.
  static void check_output(const char* what, const Tensor* got, const Tensor& expected,
                           const Inputs& in, const Tensor* d_out) {
    check_like(what, got, expected);
    check_apart(Op::kName, what, *got, "data", in.data);
    check_apart(Op::kName, what, *got, "rois", in.rois);
    check_apart(Op::kName, what, *got, "rois_num", in.rois_num);
    if (d_out != nullptr) check_apart(Op::kName, what, *got, "d_out", *d_out);
  }
};

// Puts an operator into operators() and defines its functions of gluon_roi.h. Stands once, in the
// operator's .cc file.
#define GLUON_ROI_OPERATOR(Op, symbol)                                                         \
  static const OperatorFor<Op> symbol##_operator;                                              \
  }                                                                                            \
  extern "C" int gluon_roi_##symbol##_forward(                                                 \
      const gluon_roi_##symbol##_params* params, const gluon_roi_inputs* inputs,               \
      const gluon_roi_tensor* out, const gluon_roi_device* device) {                           \
    return gluon_roi::guarded(                                                                 \
        [&] { gluon_roi::symbol##_operator.checked_forward(params, inputs, out, device); });   \
  }                                                                                            \
  extern "C" int gluon_roi_##symbol##_backward(                                                \
      const gluon_roi_##symbol##_params* params, const gluon_roi_inputs* inputs,               \
      const gluon_roi_tensor* d_out, const gluon_roi_tensor* d_data,                           \
      const gluon_roi_tensor* d_rois, const gluon_roi_device* device) {                        \
    return gluon_roi::guarded([&] {                                                            \
      gluon_roi::symbol##_operator.checked_backward(params, inputs, d_out, d_data, d_rois,     \
                                                    device);                                   \
    });                                                                                        \
  }                                                                                            \
  extern "C" int gluon_roi_##symbol##_workspace(const gluon_roi_##symbol##_params* params,     \
                                                const gluon_roi_inputs* inputs, int backward,  \
                                                int32_t device, size_t* bytes) {               \
    return gluon_roi::guarded([&] {                                                            \
      gluon_roi::symbol##_operator.checked_workspace(params, inputs, backward, device, bytes); \
    });                                                                                        \
  }                                                                                            \
  namespace gluon_roi {

}  // namespace gluon_roi
