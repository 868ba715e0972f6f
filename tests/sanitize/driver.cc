// Random hostile calls of every operator through the C interface, to be built with sanitizers; run
// by tests/sanitize/run.py.
//
//   driver SEED FIRST COUNT     makes the calls FIRST, FIRST + 1, ... of this seed
//
// Of right calls it checks that results are the same bytes for 1, 2 and 3 threads, when repeated,
// and from several threads at once; that all of the outputs is written; that nothing is read which
// was not written before (scratch memory is full of NaN in this build); rows of zeros for padding,
// and of NaN for unusable coordinates; finite results from finite maps; and the adjoint identity
// <y, g> = <x, J^T g>. Of wrong calls, that they are refused with a sentence, and write nothing.
//
// Prints "level LEVEL", and for each call its number and a digest of its results, which must not
// depend on the level. A failure ends the process; the last line says how to repeat it.
//
// To add an operator: a row in kOperators, a member of Params, and for it a randomize() and a
// spoil().
#include <omp.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cfloat>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gluon_roi.h"

namespace {

// ---- What goes on, for the last line ------------------------------------------------------------

uint64_t seed;
std::string program;
std::string current;  // the call that is being made

[[noreturn]] void fail(const std::string& sentence) {
  fflush(stdout);
  fprintf(stderr, "\n%s\n%s\n", sentence.c_str(), current.c_str());
  _exit(1);
}

// Where a sanitizer has ended the process, or a call takes too long.
void on_signal(int number) {
  fail(number == SIGALRM ? "a call still runs after 5 minutes"
                         : "a sanitizer found the fault above");
}

// ---- Random numbers -----------------------------------------------------------------------------

// Of one call: calls do not depend on those before them.
class Random {
 public:
  Random(uint64_t stream, uint64_t call) : state_(stream * 0x9e3779b97f4a7c15u ^ call << 20) {
    for (int i = 0; i < 4; ++i) bits();
  }
  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  double unit() { return static_cast<double>(bits() >> 11) * 0x1p-53; }  // [0, 1)
  double uniform(double low, double high) { return low + (high - low) * unit(); }
  int64_t integer(int64_t low, int64_t high) {  // both included
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return unit() < probability; }
  double sign() { return chance(0.5) ? 1 : -1; }
  double normal() { return std::sqrt(-2 * std::log(1 - unit())) * std::cos(6.283185307 * unit()); }
  template <class T>
  T pick(std::initializer_list<T> values) {
    return values.begin()[integer(0, static_cast<int64_t>(values.size()) - 1)];
  }

 private:
  uint64_t state_;
};

// ---- Arrays -------------------------------------------------------------------------------------

uint16_t half_of(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520) return sign | 0x7c00;
  if (magnitude < 0x1p-14) return sign | static_cast<uint16_t>(std::nearbyint(magnitude * 0x1p24));
  int exponent;
  const double fraction = std::frexp(magnitude, &exponent);  // [0.5, 1)
  // A fraction that rounds up to 1 carries into the exponent, as it should.
  return sign | static_cast<uint16_t>((exponent + 13) * 1024 + std::nearbyint(fraction * 2048));
}

double double_of(uint16_t half) {
  const double sign = half & 0x8000 ? -1 : 1;
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

size_t size_of(int32_t dtype) {
  switch (dtype) {
    case GLUON_ROI_FLOAT16: return 2;
    case GLUON_ROI_FLOAT64:
    case GLUON_ROI_INT64: return 8;
    default: return 4;
  }
}

const char* name_of(int32_t dtype) {
  switch (dtype) {
    case GLUON_ROI_FLOAT16: return "float16";
    case GLUON_ROI_FLOAT32: return "float32";
    case GLUON_ROI_FLOAT64: return "float64";
    case GLUON_ROI_INT32: return "int32";
    default: return "int64";
  }
}

// An array at the end of memory of its own, as far from an aligned address as its type allows. One
// without elements may lie nowhere.
class Array {
 public:
  Array() = default;  // absent
  Array(int32_t dtype, const std::vector<int64_t>& shape, int64_t elements_before, int fill)
      : tensor_{nullptr, dtype, static_cast<int32_t>(shape.size()), {}} {
    size_ = 1;
    for (size_t i = 0; i < shape.size(); ++i) size_ *= tensor_.shape[i] = shape[i];
    if (size_ == 0 && elements_before % 2) return;
    const size_t before = static_cast<size_t>(elements_before) * size_of(dtype);
    memory_.reset(new char[before + bytes()]);
    tensor_.data = memory_.get() + before;
    memset(tensor_.data, fill, bytes());
  }
  const gluon_roi_tensor& tensor() const { return tensor_; }
  int64_t size() const { return size_; }
  size_t bytes() const { return static_cast<size_t>(size_) * size_of(tensor_.dtype); }
  double get(int64_t i) const {
    switch (tensor_.dtype) {
      case GLUON_ROI_FLOAT16: return double_of(static_cast<uint16_t*>(tensor_.data)[i]);
      case GLUON_ROI_FLOAT32: return static_cast<float*>(tensor_.data)[i];
      case GLUON_ROI_FLOAT64: return static_cast<double*>(tensor_.data)[i];
      case GLUON_ROI_INT32: return static_cast<int32_t*>(tensor_.data)[i];
      default: return static_cast<double>(static_cast<int64_t*>(tensor_.data)[i]);
    }
  }
  void set(int64_t i, double value) {
    switch (tensor_.dtype) {
      case GLUON_ROI_FLOAT16: static_cast<uint16_t*>(tensor_.data)[i] = half_of(value); break;
      case GLUON_ROI_FLOAT32: {
        const bool huge = std::isfinite(value) && std::fabs(value) > FLT_MAX;
        static_cast<float*>(tensor_.data)[i] =
            huge ? std::copysign(INFINITY, value) : static_cast<float>(value);
        break;
      }
      case GLUON_ROI_FLOAT64: static_cast<double*>(tensor_.data)[i] = value; break;
      case GLUON_ROI_INT32:
        static_cast<int32_t*>(tensor_.data)[i] = static_cast<int32_t>(value);
        break;
      default: static_cast<int64_t*>(tensor_.data)[i] = static_cast<int64_t>(value);
    }
  }
  bool same_bytes(const Array& other) const {
    return bytes() == other.bytes() &&
           (bytes() == 0 || memcmp(tensor_.data, other.tensor_.data, bytes()) == 0);
  }
  bool filled_with(int fill) const {
    const unsigned char* bytes_of = static_cast<unsigned char*>(tensor_.data);
    for (size_t i = 0; i < bytes(); ++i) {
      if (bytes_of[i] != fill) return false;
    }
    return true;
  }
  std::string text() const {
    std::string text = name_of(tensor_.dtype);
    for (int i = 0; i < tensor_.ndim; ++i) {
      text += (i ? ", " : " (") + std::to_string(tensor_.shape[i]);
    }
    return text + ")";
  }

 private:
  std::unique_ptr<char[]> memory_;
  gluon_roi_tensor tensor_{};
  int64_t size_ = 0;
};

// ---- Operators ----------------------------------------------------------------------------------

union Params {
  gluon_roi_roi_pool_params roi_pool;
  gluon_roi_roi_align_params roi_align;
  gluon_roi_ps_roi_pool_params ps_roi_pool;
  gluon_roi_ps_roi_align_params ps_roi_align;
  gluon_roi_rotated_roi_align_params rotated_roi_align;
  gluon_roi_pr_roi_pool_params pr_roi_pool;
  gluon_roi_deformable_ps_roi_pool_params deformable_ps_roi_pool;
  gluon_roi_pyramid_roi_align_params pyramid_roi_align;
};

// What follows from the parameters.
struct Consequences {
  int64_t pooled_height, pooled_width;
  std::vector<double> scales;     // of each map
  int64_t groups = 1;             // channels of the map for each channel of the output
  int64_t* output_dim = nullptr;  // to be set to the channels of the output, or left 0
  bool rois_grad = false;
  bool pad_beyond = false;
  int64_t part_height = 0, part_width = 0;  // of trans; 0 if the operator reads none
};

template <class P>
Consequences randomize_common(Random* random, P* p) {
  const int most = random->chance(0.1) ? 14 : 4;
  p->pooled_height = static_cast<int32_t>(random->integer(1, most));
  p->pooled_width = static_cast<int32_t>(random->integer(1, most));
  if (random->chance(0.03)) p->pooled_height = 1, p->pooled_width = 70;
  p->bad_index = random->chance(0.3) ? GLUON_ROI_BAD_INDEX_PADDING : GLUON_ROI_BAD_INDEX_ERROR;
  Consequences so{p->pooled_height, p->pooled_width, {}};
  so.pad_beyond = p->bad_index == GLUON_ROI_BAD_INDEX_PADDING;
  return so;
}

template <class P>
void randomize_scale(Random* random, P* p, Consequences* so) {
  p->spatial_scale = random->chance(0.93)
                         ? random->pick({1.0 / 16, 0.25, 1.0, 0.3, 1.0 / 7})
                         : random->pick({1e-30, 1e30, 1e300, 1e-300, 5e-324, DBL_MAX, 1e9, 1e-9});
  so->scales = {p->spatial_scale};
}

template <class P>
void randomize_samples(Random* random, P* p, Consequences* so) {
  p->sampling_ratio = random->pick({-1, -1, 0, 1, 2, 3, 5, 64, 1000, INT32_MIN});
  p->aligned = random->chance(0.5);
  p->rois_grad = random->chance(0.5);
  so->rois_grad = p->rois_grad != 0;
}

template <class P>
void randomize_groups(Random* random, P* p, Consequences* so) {
  if (random->chance(0.4)) {
    p->group_height = static_cast<int32_t>(random->integer(1, 5));
    p->group_width = static_cast<int32_t>(random->integer(1, 5));
  }
  so->groups =
      p->group_height ? p->group_height * p->group_width : so->pooled_height * so->pooled_width;
  so->output_dim = &p->output_dim;
}

Consequences randomize(Random* random, gluon_roi_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  return so;
}

Consequences randomize(Random* random, gluon_roi_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_samples(random, p, &so);
  return so;
}

Consequences randomize(Random* random, gluon_roi_ps_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_groups(random, p, &so);
  p->convention = random->pick<int32_t>({GLUON_ROI_RFCN, GLUON_ROI_TORCHVISION});
  return so;
}

Consequences randomize(Random* random, gluon_roi_ps_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  so.groups = so.pooled_height * so.pooled_width;
  so.output_dim = &p->output_dim;
  randomize_samples(random, p, &so);
  return so;
}

Consequences randomize(Random* random, gluon_roi_rotated_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_samples(random, p, &so);
  // Each of its samples has a place of its own: a bin takes the square of this.
  p->sampling_ratio = std::min(p->sampling_ratio, 16);
  return so;
}

Consequences randomize(Random* random, gluon_roi_pr_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  p->rois_grad = random->chance(0.5);
  so.rois_grad = p->rois_grad != 0;
  return so;
}

Consequences randomize(Random* random, gluon_roi_deformable_ps_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_groups(random, p, &so);
  if (random->chance(0.4)) {
    p->part_height = static_cast<int32_t>(random->integer(1, 9));
    p->part_width = static_cast<int32_t>(random->integer(1, 9));
  }
  so.part_height = p->part_height ? p->part_height : p->pooled_height;
  so.part_width = p->part_width ? p->part_width : p->pooled_width;
  p->sample_per_part = random->pick({1, 2, 3, 4, 64, 1000});
  p->trans_std = random->pick({0.1, 0.1, 1.0, -0.5, 0.0, 1e-30, 1e9});
  return so;
}

Consequences randomize(Random* random, gluon_roi_pyramid_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  p->maps = static_cast<int32_t>(random->integer(1, random->chance(0.1) ? GLUON_ROI_MOST_MAPS : 4));
  double scale = random->pick({1.0, 0.25, 0.25, 0.3, 1e9, 1e-9, 1e300, 1e-300});
  for (int32_t map = 0; map < p->maps; ++map) {
    so.scales.push_back(p->spatial_scale[map] = scale);
    scale *= random->pick({0.5, 0.5, 0.5, 0.25, 0.3});
  }
  randomize_samples(random, p, &so);
  p->canonical_size = random->pick({224.0, 224.0, 16.0, 1.0, 1e-300, 1e300});
  p->canonical_level = random->pick({4, 4, 2, 0, -3, INT32_MIN, INT32_MAX});
  return so;
}

// Parameters that have to be refused.
int32_t no_boolean(Random* random) { return random->pick({-1, 2, INT32_MIN, INT32_MAX}); }
double no_scale(Random* random) {
  return random->pick({0.0, -0.0, -1.0, -DBL_MAX, NAN * 1.0, INFINITY * 1.0});
}
int64_t no_output_dim(Random* random) {
  return random->pick(
      {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 62, (int64_t{1} << 62) + 1});
}
template <class P>
void spoil_common(Random* random, P* p) {
  switch (random->integer(0, 2)) {
    case 0: p->pooled_height = random->pick({0, -1, INT32_MIN, INT32_MAX, (1 << 24) + 1}); break;
    case 1: p->pooled_width = random->pick({0, -1, INT32_MIN, INT32_MAX, (1 << 24) + 1}); break;
    default: p->bad_index = no_boolean(random);
  }
}
void spoil(Random* random, gluon_roi_roi_pool_params* p) {
  if (random->chance(0.3)) return void(p->spatial_scale = no_scale(random));
  spoil_common(random, p);
}
void spoil(Random* random, gluon_roi_roi_align_params* p) {
  switch (random->integer(0, 3)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->aligned = no_boolean(random); break;
    case 2: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
void spoil(Random* random, gluon_roi_ps_roi_pool_params* p) {
  switch (random->integer(0, 4)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->output_dim = no_output_dim(random); break;
    case 2: p->group_height = random->pick({-1, INT32_MIN, INT32_MAX}); break;
    case 3: p->convention = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
void spoil(Random* random, gluon_roi_ps_roi_align_params* p) {
  switch (random->integer(0, 4)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->output_dim = no_output_dim(random); break;
    case 2: p->aligned = no_boolean(random); break;
    case 3: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
void spoil(Random* random, gluon_roi_rotated_roi_align_params* p) {
  switch (random->integer(0, 3)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->aligned = no_boolean(random); break;
    case 2: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
void spoil(Random* random, gluon_roi_pr_roi_pool_params* p) {
  switch (random->integer(0, 2)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
void spoil(Random* random, gluon_roi_deformable_ps_roi_pool_params* p) {
  switch (random->integer(0, 6)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->output_dim = no_output_dim(random); break;
    case 2: p->group_height = random->pick({-1, INT32_MIN, INT32_MAX}); break;
    case 3: p->part_width = random->pick({-1, INT32_MIN, INT32_MAX}); break;
    case 4: p->sample_per_part = random->pick({0, -1, INT32_MIN, INT32_MAX}); break;
    case 5: p->trans_std = random->pick({NAN * 1.0, INFINITY * 1.0, -INFINITY * 1.0}); break;
    default: spoil_common(random, p);
  }
}
void spoil(Random* random, gluon_roi_pyramid_roi_align_params* p) {
  switch (random->integer(0, 5)) {
    case 0: p->spatial_scale[random->integer(0, p->maps - 1)] = no_scale(random); break;
    case 1: p->maps = random->pick({0, -1, GLUON_ROI_MOST_MAPS + 1, INT32_MIN, INT32_MAX}); break;
    case 2: p->canonical_size = no_scale(random); break;
    case 3: p->aligned = no_boolean(random); break;
    case 4: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}

using Tensor = gluon_roi_tensor;
using Device = gluon_roi_device;

struct Operator {
  const char* name;     // in sentences
  int64_t coordinates;  // of a box
  Consequences (*randomize)(Random*, Params*);
  void (*spoil)(Random*, Params*);
  int (*forward)(const Params*, const Tensor*, int32_t, const Tensor*, const Device*);
  int (*backward)(const Params*, const Tensor*, int32_t, const Tensor*, const Tensor*,
                  const Device*);
  int (*workspace)(const Params*, const Tensor*, int32_t, int, int32_t, size_t*);
};

#define OPERATOR(name, coordinates, op)                                                            \
  Operator {                                                                                       \
    name, coordinates, [](Random* random, Params* p) { return randomize(random, &p->op); },        \
        [](Random* random, Params* p) { spoil(random, &p->op); },                                  \
        [](const Params* p, const Tensor* inputs, int32_t count, const Tensor* out,                \
           const Device* device) {                                                                 \
          return gluon_roi_##op##_forward(p ? &p->op : nullptr, inputs, count, out, device);       \
        },                                                                                         \
        [](const Params* p, const Tensor* inputs, int32_t count, const Tensor* d_out,              \
           const Tensor* d_inputs, const Device* device) {                                         \
          return gluon_roi_##op##_backward(p ? &p->op : nullptr, inputs, count, d_out, d_inputs,   \
                                           device);                                                \
        },                                                                                         \
        [](const Params* p, const Tensor* inputs, int32_t count, int backward, int32_t device,     \
           size_t* bytes) {                                                                        \
          return gluon_roi_##op##_workspace(p ? &p->op : nullptr, inputs, count, backward, device, \
                                            bytes);                                                \
        }                                                                                          \
  }

const Operator kOperators[] = {
    OPERATOR("ROIPool", 4, roi_pool),
    OPERATOR("ROIAlign", 4, roi_align),
    OPERATOR("PSROIPool", 4, ps_roi_pool),
    OPERATOR("PSROIAlign", 4, ps_roi_align),
    OPERATOR("RotatedROIAlign", 5, rotated_roi_align),
    OPERATOR("PrROIPool", 4, pr_roi_pool),
    OPERATOR("DeformablePSROIPool", 4, deformable_ps_roi_pool),
    OPERATOR("PyramidROIAlign", 4, pyramid_roi_align),
};

// ---- Calls --------------------------------------------------------------------------------------

enum class Row { kValid, kPadding, kNotFinite, kBadBatch };

struct Call {
  const Operator* op;
  Params params{};
  Consequences so;
  std::vector<Array> inputs;  // all that are declared: the maps, rois, trans, rois_num
  int32_t count;              // of those that are handed over
  Array d_out;
  std::vector<Row> rows;
  std::vector<int64_t> images;  // of the rows that are valid
  bool refused = false;         // rois or rois_num that the CPU does not take
  bool finite = true;           // no NaN or infinity in the parts of inputs and d_out that matter
  bool positive = false;        // maps and d_out are: sums cancel nothing

  size_t maps() const { return so.scales.size(); }
  const Array& rois() const { return inputs[maps()]; }
  const Array& counts() const { return inputs.back(); }
  int64_t columns() const { return rois().tensor().shape[rois().tensor().ndim - 1]; }
  std::vector<int64_t> out_shape() const {
    return {static_cast<int64_t>(rows.size()), inputs[0].tensor().shape[1] / so.groups,
            so.pooled_height, so.pooled_width};
  }
  std::string text() const {
    std::string text = std::string(op->name) + ":";
    for (const Array& input : inputs) text += " " + input.text();
    return text + ", " + std::to_string(so.pooled_height) + " x " +
           std::to_string(so.pooled_width) + " bins";
  }
};

std::vector<Tensor> tensors(const std::vector<Array>& arrays) {
  std::vector<Tensor> all;
  for (const Array& array : arrays) all.push_back(array.tensor());
  return all;
}

// A coordinate of the image for a map with so many cells along the axis.
double coordinate(Random* random, int64_t cells, double scale, bool hostile) {
  const double size = static_cast<double>(cells);
  if (!hostile) return random->uniform(-0.3, 1.3) * size / scale;
  switch (random->integer(0, 5)) {
    case 0: return static_cast<double>(random->integer(-2, cells + 2)) / scale;
    case 1: return (static_cast<double>(random->integer(-2, cells + 2)) + 0.5) / scale;
    case 2: return random->pick({0.0, -0.0, 1e-40, 1e-310, 5e-324, -1e-45, 1e-7, -6e-8});
    case 3: return random->sign() * std::pow(10, random->uniform(0, 9.5));
    case 4:
      return random->sign() * random->pick({1e20, 1e30, 3.4e38, 1e39, 1e300, DBL_MAX, 65504.0,
                                            2147483647.0, 2147483648.0, 9.3e18});
    default: return random->pick({NAN * 1.0, INFINITY * 1.0, -INFINITY * 1.0});
  }
}

void random_axis(Random* random, int64_t cells, double scale, bool hostile, double* low,
                 double* high) {
  // Most boxes of a hostile call have an ordinary axis and one that is not.
  hostile = hostile && random->chance(0.6);
  const int kind = static_cast<int>(random->integer(0, 9));
  *low = coordinate(random, cells, scale, hostile && random->chance(0.7));
  *high = coordinate(random, cells, scale, hostile && random->chance(0.7));
  if (hostile && kind == 0) *high = *low;
  if (hostile && kind <= 3) {  // so wide that samples round to cells far away
    *low -= std::pow(10, random->uniform(6, 9.5));
    *high += std::pow(10, random->uniform(6, 9.5));
  }
  if (kind > 4 && *high < *low) std::swap(*low, *high);
}

// As the operator's boxes are written: the corners, or centre, size and angle.
std::vector<double> random_box(Random* random, const Call& call, bool hostile) {
  const size_t map = static_cast<size_t>(random->integer(0, static_cast<int64_t>(call.maps()) - 1));
  const Tensor& data = call.inputs[map].tensor();
  double x1, y1, x2, y2;
  random_axis(random, data.shape[3], call.so.scales[map], hostile, &x1, &x2);
  random_axis(random, data.shape[2], call.so.scales[map], hostile, &y1, &y2);
  if (call.op->coordinates == 4) return {x1, y1, x2, y2};
  const double angle = hostile && random->chance(0.2) ? coordinate(random, 90, 1, true)
                       : random->chance(0.3)          ? 90.0 * random->integer(-4, 4)
                                                      : random->uniform(-400, 400);
  return {x1 / 2 + x2 / 2, y1 / 2 + y2 / 2, x2 - x1, y2 - y1, angle};
}

void random_numbers(Random* random, bool positive, bool hostile, Array* array) {
  for (int64_t i = 0; i < array->size(); ++i) {
    double value = positive ? random->uniform(0.5, 1.5) : random->normal();
    if (hostile && random->chance(0.1)) {
      value = random->pick({NAN * 1.0, INFINITY * 1.0, -INFINITY * 1.0, 3e38, -3e38, 1e-40, -0.0,
                            1e308, 65504.0, 1e-310});
    }
    array->set(i, value);
  }
}

// Appends rois and rois_num, which may be absent, to the inputs.
void random_rois(Random* random, Call* call, bool hostile) {
  const int64_t images = call->inputs[0].tensor().shape[0], box = call->op->coordinates;
  const int form = static_cast<int>(random->integer(0, 2));
  int64_t rows = random->chance(0.05) ? 0 : random->integer(1, random->chance(0.1) ? 50 : 8);
  const int32_t dtype = random->pick<int32_t>(
      {GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const int64_t before = random->integer(0, 9);
  std::vector<double> batch;
  Array rois, counts;
  if (form == 0) {
    rois = Array(dtype, {rows, box + 1}, before, 0);
    for (int64_t k = 0; k < rows; ++k) {
      double index = static_cast<double>(random->integer(0, std::max<int64_t>(images, 1) - 1));
      if (random->chance(0.1)) index = random->pick({-1.0, -0.5, -1e30, -INFINITY * 1.0});
      if (hostile && random->chance(call->so.pad_beyond ? 0.1 : 0.01)) {
        index = random->pick({static_cast<double>(images), 1e30, INFINITY * 1.0});
      }
      if (hostile && random->chance(0.005)) index = random->pick({0.5, NAN * 1.0});
      rois.set(k * (box + 1), index);
      batch.push_back(rois.get(k * (box + 1)));
    }
  } else if (form == 1) {
    const int64_t each = images ? rows / images : rows;
    rows = images * each;
    rois = Array(dtype, {images, each, box}, before, 0);
    for (int64_t k = 0; k < rows; ++k) batch.push_back(static_cast<double>(k / each));
  } else {
    if (images == 0) rows = 0;
    rois = Array(dtype, {rows, box}, before, 0);
    counts = Array(random->pick<int32_t>(
                       {GLUON_ROI_INT32, GLUON_ROI_INT64, GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64}),
                   {images}, random->integer(0, 3), 0);
    int64_t left = rows;
    for (int64_t i = 0; i < images; ++i) {
      const int64_t count = i + 1 == images ? left : random->integer(0, left);
      counts.set(i, static_cast<double>(count));
      batch.insert(batch.end(), static_cast<size_t>(count), static_cast<double>(i));
      left -= count;
    }
    if (hostile && images && random->chance(0.03)) {
      const bool whole =
          counts.tensor().dtype == GLUON_ROI_INT32 || counts.tensor().dtype == GLUON_ROI_INT64;
      const double count = counts.get(images - 1);
      counts.set(images - 1, whole ? random->pick({-1.0, count + 1, 2147483647.0})
                                   : random->pick({-1.0, count + 0.5, NAN * 1.0, 1e30}));
      call->refused = true;
    }
  }
  for (int64_t k = 0; k < rows; ++k) {
    const int64_t columns = rois.tensor().shape[rois.tensor().ndim - 1];
    bool finite = true;
    int64_t place = (k + 1) * columns - box;
    for (const double value : random_box(random, *call, hostile)) {
      rois.set(place, value);
      finite = finite && std::isfinite(rois.get(place++));
    }
    const double index = batch[static_cast<size_t>(k)];
    const bool whole = index == std::floor(index), beyond = index >= static_cast<double>(images);
    const bool padding = index < 0 || (call->so.pad_beyond && whole && beyond);
    call->rows.push_back(padding                              ? Row::kPadding
                         : !whole || beyond || index != index ? Row::kBadBatch
                         : finite                             ? Row::kValid
                                                              : Row::kNotFinite);
    call->images.push_back(call->rows.back() == Row::kValid ? static_cast<int64_t>(index) : -1);
    call->refused = call->refused || call->rows.back() == Row::kBadBatch;
  }
  call->inputs.push_back(std::move(rois));
  if (call->so.part_height > 0) call->inputs.emplace_back();
  call->inputs.push_back(std::move(counts));
}

// Offsets for each RoI and class, if not left out.
void random_trans(Random* random, bool hostile, Call* call) {
  if (random->chance(0.2)) return;
  const int64_t channels = call->out_shape()[1];
  const int64_t classes = channels > 0 && random->chance(0.5) ? channels : 1;
  Array& trans = call->inputs[call->maps() + 1];
  trans = Array(call->inputs[0].tensor().dtype,
                {static_cast<int64_t>(call->rows.size()), 2 * classes, call->so.part_height,
                 call->so.part_width},
                random->integer(0, 17), 0);
  random_numbers(random, false, hostile, &trans);
}

// Images that no RoI reads may hold anything.
void spoil_unread_images(Call* call) {
  for (size_t map = 0; map < call->maps(); ++map) {
    Array& data = call->inputs[map];
    const int64_t images = data.tensor().shape[0];
    for (int64_t i = 0; i < data.size(); ++i) {
      const int64_t image = i / (data.size() / images);
      if (std::count(call->images.begin(), call->images.end(), image) == 0) data.set(i, NAN);
    }
  }
}

Call random_call(Random* random) {
  Call call;
  call.op = &kOperators[random->integer(0, std::size(kOperators) - 1)];
  call.so = call.op->randomize(random, &call.params);
  const int32_t dtype =
      random->pick<int32_t>({GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const int64_t most = call.so.groups > 20 ? 9 : 20;
  int64_t channels = random->chance(0.03) ? 0 : random->integer(1, most);
  if (random->chance(0.15) && call.so.groups == 1) channels = random->integer(30, 70);
  const auto size = [&] {
    return random->chance(0.03) ? 0 : random->integer(1, random->chance(0.1) ? 60 : 14);
  };
  const int64_t images = random->chance(0.02) ? 0 : random->integer(1, 3);
  if (call.so.output_dim && random->chance(0.5)) *call.so.output_dim = channels;
  const bool hostile_numbers = random->chance(0.1);
  call.finite = !hostile_numbers;
  call.positive = call.finite && random->chance(0.5);
  for (size_t map = 0; map < call.maps(); ++map) {
    const int64_t height = size(), before = random->integer(0, 17);
    // Of wide maps a few rows at a time fit the cache.
    const bool wide = call.so.groups == 1 && random->chance(0.05);
    const int64_t width = wide ? random->integer(1500, 3000) : size();
    call.inputs.emplace_back(
        dtype, std::vector<int64_t>{images, channels * call.so.groups, height, width}, before, 0);
    random_numbers(random, call.positive, hostile_numbers, &call.inputs.back());
  }
  random_rois(random, &call, random->chance(0.6));
  if (call.so.part_height > 0) random_trans(random, hostile_numbers, &call);
  const bool last = call.counts().tensor().ndim != 0 || random->chance(0.5);
  call.count = static_cast<int32_t>(call.inputs.size()) - !last;
  call.d_out = Array(dtype, call.out_shape(), random->integer(0, 17), 0);
  random_numbers(random, call.positive, hostile_numbers, &call.d_out);
  if (call.finite) spoil_unread_images(&call);
  return call;
}

// ---- Right calls --------------------------------------------------------------------------------

struct Results {
  int forward, backward;  // return codes
  Array out;
  std::vector<Array> d_inputs;
};

Array like(const Array& array, int fill) {
  const Tensor& tensor = array.tensor();
  if (tensor.ndim == 0) return Array();
  return Array(tensor.dtype, {tensor.shape, tensor.shape + tensor.ndim}, fill % 5, fill);
}

// Outputs hold `fill` in every byte before the call.
Results run(const Call& call, int threads, int fill, bool maps_alone = false) {
  omp_set_num_threads(threads);
  const Device device{GLUON_ROI_CPU, nullptr, nullptr, 0};
  const std::vector<Tensor> inputs = tensors(call.inputs);
  Results results{0, 0, like(call.d_out, fill), {}};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool wanted = !maps_alone || i < call.maps();
    results.d_inputs.push_back(wanted ? like(call.inputs[i], fill) : Array());
  }
  results.forward =
      call.op->forward(&call.params, inputs.data(), call.count, &results.out.tensor(), &device);
  results.backward =
      call.op->backward(&call.params, inputs.data(), call.count, &call.d_out.tensor(),
                        tensors(results.d_inputs).data(), &device);
  return results;
}

// FNV-1a. A NaN is a NaN: its bits depend on the order in which the processor is given two of them.
class Digest {
 public:
  void add(uint64_t word) {
    for (int i = 0; i < 8; ++i) value_ = (value_ ^ (word >> 8 * i & 255)) * 0x100000001b3u;
  }
  void add(const Array& array) {
    for (int64_t i = 0; i < array.size(); ++i) {
      const double value = array.get(i);
      uint64_t bits = 0;
      memcpy(&bits, &value, sizeof(bits));
      add(std::isnan(value) ? 0x7ff8000000000000u : bits);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

uint64_t digest_of(const Results& results) {
  Digest digest;
  digest.add(static_cast<uint64_t>(results.forward) << 32 |
             static_cast<uint64_t>(results.backward));
  digest.add(results.out);
  for (const Array& gradient : results.d_inputs) digest.add(gradient);
  return digest.value();
}

void check_same(const Results& first, const Results& other, const char* what) {
  const auto differ = [&](const std::string& array) {
    fail(array + " differs from that of one thread: " + what);
  };
  if (first.forward != other.forward || first.backward != other.backward) differ("the code");
  if (first.forward == GLUON_ROI_OK && !first.out.same_bytes(other.out)) differ("out");
  if (first.backward != GLUON_ROI_OK) return;
  for (size_t i = 0; i < first.d_inputs.size(); ++i) {
    if (other.d_inputs[i].tensor().ndim != 0 && !first.d_inputs[i].same_bytes(other.d_inputs[i])) {
      differ("the gradient of input " + std::to_string(i));
    }
  }
}

void check_refused(const char* what, const char* name, const std::vector<const Array*>& outputs,
                   int fill) {
  const std::string sentence = gluon_roi_last_error();
  if (sentence.find(std::string(name) + ": ") != 0) {
    fail(std::string(what) + " was refused with '" + sentence + "', which names no " + name);
  }
  for (const Array* array : outputs) {
    if (!array->filled_with(fill)) fail(std::string(what) + " was refused, and wrote to an output");
  }
}

std::vector<const Array*> pointers(const std::vector<Array>& arrays) {
  std::vector<const Array*> all;
  for (const Array& array : arrays) all.push_back(&array);
  return all;
}

void check_rows(const Call& call, const Results& results) {
  const int64_t rows = static_cast<int64_t>(call.rows.size());
  const int64_t row_size = rows ? results.out.size() / rows : 0;
  const Array& d_rois = results.d_inputs[call.maps()];
  const double scale = *std::max_element(call.so.scales.begin(), call.so.scales.end());
  // A slope per image pixel is proportional to the scale, and may leave the range of the type.
  const bool in_range = scale < 1e6 && call.rois().tensor().dtype != GLUON_ROI_FLOAT16;
  for (int64_t k = 0; k < rows; ++k) {
    const Row row = call.rows[static_cast<size_t>(k)];
    const std::string name = "row " + std::to_string(k);
    for (int64_t i = k * row_size; i < (k + 1) * row_size; ++i) {
      const double value = results.out.get(i);
      if (row == Row::kPadding && (value != 0 || std::signbit(value))) {
        fail(name + " is padding, but not 0");
      }
      if (row == Row::kNotFinite && !std::isnan(value)) {
        fail(name + " has no finite box, but is not NaN");
      }
      if (row == Row::kValid && call.finite && !std::isfinite(value)) {
        fail(name + " of a finite map is not finite");
      }
    }
    const int64_t columns = call.columns();
    for (int64_t i = 0; i < columns; ++i) {
      const double value = d_rois.get(k * columns + i);
      const bool none =
          row != Row::kValid || !call.so.rois_grad || i < columns - call.op->coordinates;
      if (none && value != 0) fail("d_rois of " + name + " is not 0");
      if (call.finite && in_range && !std::isfinite(value)) {
        fail("d_rois of " + name + " is not finite");
      }
    }
  }
  for (size_t map = 0; map < call.maps(); ++map) {
    const Array& d_map = results.d_inputs[map];
    for (int64_t i = 0; call.finite && i < d_map.size(); ++i) {
      if (!std::isfinite(d_map.get(i))) fail("the gradient of a map is not finite");
    }
  }
}

// <y, g> = <x, J^T g>, which holds for the maximum, too.
void check_adjoint(const Call& call, const Results& results) {
  double left = 0, right = 0;
  const int64_t rows = static_cast<int64_t>(call.rows.size());
  for (int64_t i = 0; i < results.out.size(); ++i) {
    if (call.rows[static_cast<size_t>(i / (results.out.size() / rows))] != Row::kValid) continue;
    left += results.out.get(i) * call.d_out.get(i);
  }
  for (size_t map = 0; map < call.maps(); ++map) {
    const Array &data = call.inputs[map], &d_data = results.d_inputs[map];
    for (int64_t i = 0; i < data.size(); ++i) {
      if (d_data.get(i) != 0) right += data.get(i) * d_data.get(i);
    }
  }
  if (!(std::fabs(left - right) <= 1e-11 * (left + right))) {
    fail("<y, g> is " + std::to_string(left) + ", <x, J^T g> is " + std::to_string(right));
  }
}

uint64_t right_call(const Call& call) {
  const Results results = run(call, 1, 0xff);
  // An output without elements is done before rois are looked at.
  const bool may_pass = call.d_out.size() == 0;
  const auto check_code = [&](const char* what, int code) {
    if ((code == GLUON_ROI_OK) == call.refused && !may_pass) {
      fail(std::string(what) + " gave " + std::to_string(code) + ", '" + gluon_roi_last_error() +
           "'");
    }
  };
  check_code("forward", results.forward);
  check_code("backward", results.backward);
  const char* name = call.op->name;
  if (results.forward != GLUON_ROI_OK) check_refused("forward", name, {&results.out}, 0xff);
  if (results.backward != GLUON_ROI_OK) {
    check_refused("backward", name, pointers(results.d_inputs), 0xff);
  }
  check_same(results, run(call, 2, 0x00), "two threads, other bytes in the outputs before");
  check_same(results, run(call, 3, 0x55, true), "three threads, gradients of the maps alone");
  check_same(results, run(call, 1, 0xff), "again");
  if (results.forward == GLUON_ROI_OK && results.backward == GLUON_ROI_OK && !call.refused) {
    check_rows(call, results);
    if (call.positive && call.d_out.tensor().dtype == GLUON_ROI_FLOAT64) {
      check_adjoint(call, results);
    }
  }
  return digest_of(results);
}

// ---- Wrong calls --------------------------------------------------------------------------------

// Returns whether the tensor may still be a right one: smaller than the array it describes.
bool spoil_tensor(Random* random, Tensor* tensor) {
  const int last = std::max(tensor->ndim - 1, 0);
  int64_t& some_size = tensor->shape[random->integer(0, last)];
  switch (random->integer(0, 6)) {
    case 0: tensor->data = nullptr; return true;  // without elements, there is no memory
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

uint64_t wrong_call(Random* random, const Call& call) {
  Params params = call.params;
  std::vector<Tensor> inputs = tensors(call.inputs);
  Device device{GLUON_ROI_CPU, nullptr, nullptr, 0};
  const int fill = 0x5a;
  const Array out_array = like(call.d_out, fill);
  std::vector<Array> d_arrays;
  for (const Array& input : call.inputs) d_arrays.push_back(like(input, fill));
  std::vector<Tensor> d_inputs = tensors(d_arrays);
  Tensor out = out_array.tensor(), d_out = call.d_out.tensor();
  const Params* params_or_null = &params;
  const Tensor *inputs_or_null = inputs.data(), *d_inputs_or_null = d_inputs.data();
  const Tensor *out_or_null = &out, *d_out_or_null = &d_out;
  const Device* device_or_null = &device;
  int32_t count = call.count;
  bool forward_may_pass = false, backward_may_pass = false, workspace_may_pass = true;
  switch (random->integer(0, 9)) {
    case 0: {
      call.op->spoil(random, &params);
      workspace_may_pass = false;
      break;
    }
    case 1: {
      device.type = random->pick<int32_t>({GLUON_ROI_CUDA, -1, 2, INT32_MAX});
      // Without elements, nobody asks for a device.
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
      // What is written must not be read.
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
    default: {
      // An input, out and d_out, or a gradient.
      const int64_t last = static_cast<int64_t>(inputs.size()) - 1;
      const int64_t which = random->integer(0, 2 * last + 2);
      const bool is_input = which <= last, is_out = which == 2 * last + 2;
      Tensor* tensor = is_out     ? &d_out
                       : is_input ? &inputs[static_cast<size_t>(which)]
                                  : &d_inputs[static_cast<size_t>(which - last - 1)];
      if (!is_out && which % (last + 1) >= call.count) return 0;
      // An input that is absent is no mistake, nor is the gradient of one.
      const bool was_absent = tensor->ndim == 0;
      const bool may_pass = spoil_tensor(random, tensor) || was_absent;
      if (is_out) {
        // Of out the same is wrong; but that is memory to be written to.
        void* const memory = d_out.data == nullptr ? nullptr : out.data;
        out = d_out;
        out.data = memory;
      }
      forward_may_pass = may_pass || !is_input;
      backward_may_pass = may_pass;
      workspace_may_pass = may_pass || !is_input;
    }
  }
  // Outputs that a call which passes writes to are the arrays above, or smaller: all is well as
  // long as AddressSanitizer says so.
  Digest digest;
  const auto done = [&](const char* what, int code, bool may_pass) {
    digest.add(static_cast<uint64_t>(code));
    if (code == GLUON_ROI_OK && !may_pass) fail(std::string(what) + " took a wrong call");
    return code != GLUON_ROI_OK;
  };
  omp_set_num_threads(2);
  const char* name = call.op->name;
  if (done("forward",
           call.op->forward(params_or_null, inputs_or_null, count, out_or_null, device_or_null),
           forward_may_pass)) {
    check_refused("forward", name, {&out_array}, fill);
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

// ---- Many calls ---------------------------------------------------------------------------------

std::string line_of(uint64_t number, const Call& call) {
  return "call " + std::to_string(number) + ", " + call.text() + "\nrepeat it with: " + program +
         " " + std::to_string(seed) + " " + std::to_string(number) + " 1";
}

// The right calls once more, from several threads of the program at the same time.
void check_callers(const std::vector<Call>& calls, const std::vector<uint64_t>& digests,
                   uint64_t first, uint64_t last) {
  current = "calls " + std::to_string(first) + " to " + std::to_string(last) +
            " from 4 threads\nrepeat them with: " + program + " " + std::to_string(seed) + " " +
            std::to_string(first) + " " + std::to_string(last + 1 - first);
  constexpr size_t kCallers = 4;
  std::vector<std::thread> callers;
  std::vector<std::string> wrong(kCallers);
  for (size_t caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      for (size_t i = caller; i < calls.size() + caller; ++i) {
        const size_t which = i % calls.size();
        if (digest_of(run(calls[which], 2, 0xff)) != digests[which]) {
          wrong[caller] = "another result beside other calls: " + calls[which].text();
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::string& sentence : wrong) {
    if (!sentence.empty()) fail(sentence);
  }
}

}  // namespace

extern "C" {
const char* __asan_default_options() { return "abort_on_error=1:detect_stack_use_after_return=1"; }
const char* __tsan_default_options() { return "abort_on_error=1:halt_on_error=1"; }
const char* __ubsan_default_options() { return "abort_on_error=1:print_stacktrace=1"; }
}

int main(int count, char** arguments) {
  if (count != 4) {
    fprintf(stderr, "driver: expected SEED FIRST COUNT\n");
    return 2;
  }
  program = arguments[0];
  seed = strtoull(arguments[1], nullptr, 10);
  const uint64_t first = strtoull(arguments[2], nullptr, 10);
  const uint64_t last = first + strtoull(arguments[3], nullptr, 10);
  signal(SIGABRT, on_signal);
  signal(SIGALRM, on_signal);

  const std::string info = gluon_roi_build_info();
  const size_t level = info.find("\"simd\": \"") + 9;
  printf("level %s\n", info.substr(level, info.find('"', level) - level).c_str());
  constexpr size_t kTogether = 16;
  std::vector<Call> calls;
  std::vector<uint64_t> digests, numbers;
  for (uint64_t number = first; number < last; ++number) {
    alarm(300);
    Random random(seed, number);
    current = "call " + std::to_string(number);
    Call call = random_call(&random);
    current = line_of(number, call);
    if (random.chance(0.3)) {
      printf("%" PRIu64 " %016" PRIx64 "\n", number, wrong_call(&random, call));
    } else {
      digests.push_back(right_call(call));
      printf("%" PRIu64 " %016" PRIx64 "\n", number, digests.back());
      calls.push_back(std::move(call));
      numbers.push_back(number);
    }
    if (calls.size() == kTogether || (number + 1 == last && !calls.empty())) {
      check_callers(calls, digests, numbers.front(), number);
      numbers.clear();
      calls.clear();
      digests.clear();
    }
  }
  return 0;
}
