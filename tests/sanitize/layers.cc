// SPDX-License-Identifier: Apache-2.0
// Random layers of the operators for inference, compared with their definition in float64, which
// the C interface does not have and driver.cc therefore does not call.
//
//   layers SEED COUNT
//
// Arrays end where their memory ends, so that AddressSanitizer reports what is read or written
// beyond. Errors have to be within the bound of the operator, and the bytes the same for 1 to 3
// threads. A failure ends the process; the last line describes the layer.
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "../../src/core/registry.h"
#include "arrays.h"
#include "failure.h"
#include "random.h"

namespace sanitize {
namespace {

using gluon_roi::Attributes;

void set_threads([[maybe_unused]] int count) {
#ifdef _OPENMP
  omp_set_num_threads(count);
#endif
}

const gluon_roi::Operator& find(const std::string& name) {
  for (const gluon_roi::Operator* op : gluon_roi::inference_operators()) {
    if (name == op->name()) return *op;
  }
  fail("there is no operator " + name);
}

struct Values {
  std::vector<int64_t> shape;
  std::vector<float> numbers;

  explicit Values(std::vector<int64_t> sizes) : shape(std::move(sizes)), numbers(size_of(shape)) {}
  Values(Random* random, std::vector<int64_t> sizes) : Values(std::move(sizes)) {
    for (float& number : numbers) number = static_cast<float>(random->normal());
  }
  static size_t size_of(const std::vector<int64_t>& shape) {
    size_t size = 1;
    for (const int64_t side : shape) size *= static_cast<size_t>(side);
    return size;
  }
  // A copy whose memory begins at a random place of a cache line, and ends with the last number.
  Array array(Random* random) const {
    Array copy(GLUON_ROI_FLOAT32, shape, random->integer(0, 15), 0);
    if (!numbers.empty()) memcpy(copy.tensor().data, numbers.data(), copy.bytes());
    return copy;
  }
};

// The output of a call with 1, 2 and 3 threads, which has the same bytes.
Array run(const gluon_roi::Operator& op, const Attributes& attributes,
          const std::vector<Array>& inputs, Random* random) {
  std::vector<gluon_roi_tensor> views;
  for (const Array& input : inputs) views.push_back(input.tensor());
  const gluon_roi_tensor out = op.infer(attributes, views)[0];
  const std::vector<int64_t> shape(out.shape, out.shape + out.ndim);
  const int64_t before = random->integer(0, 15);
  Array first;
  for (int threads = 1; threads <= 3; ++threads) {
    Array got(GLUON_ROI_FLOAT32, shape, before, 0xff);
    set_threads(threads);
    op.forward(attributes, views, {got.tensor()}, gluon_roi_device{});
    if (threads > 1 && !got.same_bytes(first)) {
      fail(std::to_string(threads) + " threads give other bytes than one");
    }
    first = std::move(got);
  }
  return first;
}

void check(const Array& got, int64_t index, double wanted, double bound) {
  const double found = got.get(index);
  // Infinities have no difference.
  if (found == wanted || std::fabs(found - wanted) <= bound) return;
  if (std::isnan(found) && std::isnan(wanted)) return;
  fail("output " + std::to_string(index) + " is " + std::to_string(found) + ", expected " +
       std::to_string(wanted) + " within " + std::to_string(bound));
}

// Checks an operator that does not round, or rounds one addition: its output equals `wanted`.
void check_exact(const std::string& name, const Attributes& attributes,
                 const std::vector<Values>& inputs, const std::vector<float>& wanted,
                 Random* random) {
  current = name;
  for (const auto& [key, value] : attributes) current += ", " + key + " " + value;
  std::vector<Array> arrays;
  for (const Values& input : inputs) {
    arrays.push_back(input.array(random));
    current += ", maps of";
    for (const int64_t size : input.shape) current += " " + std::to_string(size);
  }
  const Array got = run(find(name), attributes, arrays, random);
  if (got.size() != static_cast<int64_t>(wanted.size())) {
    fail(std::to_string(got.size()) + " outputs, expected " + std::to_string(wanted.size()));
  }
  for (size_t i = 0; i < wanted.size(); ++i) check(got, static_cast<int64_t>(i), wanted[i], 0);
}

// ---- Convolutions -------------------------------------------------------------------------------

double activate(const std::string& act_type, double sum) {
  if (act_type == "relu6") return std::min(std::max(sum, 0.0), 6.0);
  if (act_type == "relu") return std::max(sum, 0.0);
  return act_type == "leaky" && sum < 0 ? 0.25 * sum : sum;
}

struct Axis {
  int64_t size, kernel, stride, pad, dilate;

  explicit Axis(Random* random) {
    size = random->chance(0.2) ? random->integer(1, 150) : random->integer(1, 30);
    kernel = random->pick<int64_t>({1, 1, 2, 3, 3, 7});
    stride = random->pick<int64_t>({1, 1, 2, 2, 3});
    pad = random->chance(0.5) ? kernel / 2 : random->integer(0, 4);
    dilate = random->pick<int64_t>({1, 1, 1, 2, 3});
    size += std::max<int64_t>(0, dilate * (kernel - 1) + 1 - 2 * pad - size);
  }
  int64_t outputs() const { return (size + 2 * pad - dilate * (kernel - 1) - 1) / stride + 1; }
  // The cell of the map that the kernel's cell i multiplies; -1 outside.
  int64_t cell(int64_t output, int64_t i) const {
    const int64_t place = output * stride - pad + i * dilate;
    return place >= 0 && place < size ? place : -1;
  }
};

std::string pair_of(int64_t y, int64_t x) {
  return "(" + std::to_string(y) + ", " + std::to_string(x) + ")";
}

// The weights of GemmConvolution: panels of 12 filters of a group.
Values pack(const Values& weight, int64_t groups) {
  constexpr int64_t kPanel = 12;
  const int64_t filters = weight.shape[0] / groups, depth = weight.shape[1];
  const int64_t panels = (filters + kPanel - 1) / kPanel;
  Values packed({groups * panels, depth, kPanel});
  for (int64_t o = 0; o < weight.shape[0]; ++o) {
    const int64_t group = o / filters, filter = o % filters;
    for (int64_t k = 0; k < depth; ++k) {
      packed.numbers[((group * panels + filter / kPanel) * depth + k) * kPanel + filter % kPanel] =
          weight.numbers[o * depth + k];
    }
  }
  return packed;
}

// The weights of WinogradConvolution for tiles of `tile` outputs along an axis: G w G', in blocks
// of 16 filters.
Values transform_weights(const Values& weight, int64_t channels, int64_t tile) {
  constexpr int64_t kBlock = 16;
  const std::vector<double> points = tile == 4 ? std::vector<double>{0, .625, -.625, 1.5, -1.5}
                                               : std::vector<double>{0, 1, -1, 2, -2, .5, -.5};
  const int64_t side = tile + 2;
  std::vector<double> g;  // (side, 3)
  for (const double point : points) {
    double differences = 1;
    for (const double other : points) differences *= other == point ? 1 : point - other;
    for (const double power : {1., point, point * point}) g.push_back(power / differences);
  }
  for (const double last : {0., 0., 1.}) g.push_back(last);
  const int64_t blocks = (weight.shape[0] + kBlock - 1) / kBlock;
  Values packed({side * side, blocks, channels, kBlock});
  for (int64_t o = 0; o < weight.shape[0]; ++o) {
    for (int64_t c = 0; c < channels; ++c) {
      const float* const kernel = &weight.numbers[(o * channels + c) * 9];
      for (int64_t point = 0; point < side * side; ++point) {
        double sum = 0;
        for (int64_t k = 0; k < 9; ++k) {
          sum += g[point / side * 3 + k / 3] * g[point % side * 3 + k % 3] * kernel[k];
        }
        packed.numbers[((point * blocks + o / kBlock) * channels + c) * kBlock + o % kBlock] =
            static_cast<float>(sum);
      }
    }
  }
  return packed;
}

// GemmConvolution, DepthwiseConvolution or WinogradConvolution.
void check_convolution(Random* random) {
  Axis y(random), x(random);
  // Outputs of a tile of WinogradConvolution along an axis; 0: another operator.
  const int64_t tile = random->chance(0.3) ? random->pick<int64_t>({4, 6}) : 0;
  if (random->chance(0.4)) {
    y.kernel = x.kernel = 1, y.pad = x.pad = 0;
    if (random->chance(0.7)) y.stride = x.stride = 1;
  }
  if (tile > 0) {
    y.kernel = x.kernel = 3, y.stride = x.stride = 1;
    y.pad = x.pad = x.dilate = y.dilate;
  }
  const int64_t images = random->integer(1, 3), cells = y.kernel * x.kernel;
  const bool is_depthwise = tile == 0 && random->chance(0.3);
  int64_t groups = tile > 0 ? 1 : random->pick<int64_t>({1, 1, 1, 2, 5});
  int64_t channels = random->integer(1, 40) / groups + 1;  // of a group
  if (tile > 0 && random->chance(0.2)) channels = random->pick<int64_t>({64, 65, 130});
  if (cells == 1 && random->chance(0.2)) channels = random->pick<int64_t>({511, 512, 513, 1030});
  int64_t filters = random->integer(1, 40);
  if (is_depthwise) groups = channels, channels = 1, filters = random->integer(1, 3);
  filters *= groups;
  const int64_t depth = channels * cells;
  const int64_t height = y.outputs(), width = x.outputs();
  const bool has_residual = random->chance(0.5), adds_last = random->chance(0.5);
  const std::string act_type = random->pick<const char*>({"", "relu", "relu6", "leaky"});

  const Values data(random, {images, groups * channels, y.size, x.size});
  const Values weight(random, {filters, depth}), bias(random, {filters});
  const Values residual(random, {images, filters, height, width});
  Attributes attributes{{"num_filter", std::to_string(filters)},
                        {"act_type", act_type},
                        {"slope", "0.25"},
                        {"adds_last", adds_last ? "True" : "False"},
                        {"residual", has_residual ? "True" : "False"}};
  if (tile > 0) {
    attributes["dilate"] = std::to_string(y.dilate);
  } else {
    attributes["kernel"] = pair_of(y.kernel, x.kernel);
    attributes["stride"] = pair_of(y.stride, x.stride);
    attributes["pad"] = pair_of(y.pad, x.pad);
    attributes["dilate"] = pair_of(y.dilate, x.dilate);
  }
  const bool is_gemm = tile == 0 && !is_depthwise;
  if (is_gemm) attributes["num_group"] = std::to_string(groups);
  const std::string name = is_depthwise ? "DepthwiseConvolution"
                           : is_gemm    ? "GemmConvolution"
                                        : "WinogradConvolution";
  current = name + " of " + std::to_string(images) + " x " + std::to_string(groups * channels) +
            " maps of " + pair_of(y.size, x.size);
  for (const auto& [key, value] : attributes) current += ", " + key + " " + value;

  std::vector<Array> inputs;
  inputs.push_back(data.array(random));
  if (is_depthwise) {
    Values natural = weight;
    natural.shape = {filters, 1, y.kernel, x.kernel};
    inputs.push_back(natural.array(random));
  } else {
    const Values packed =
        is_gemm ? pack(weight, groups) : transform_weights(weight, channels, tile);
    inputs.push_back(packed.array(random));
  }
  inputs.push_back(bias.array(random));
  if (has_residual) inputs.push_back(residual.array(random));
  const Array got = run(find(name), attributes, inputs, random);

  double largest = 0;
  for (const float number : data.numbers) largest = std::max<double>(largest, std::fabs(number));
  int64_t index = 0;
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t o = 0; o < filters; ++o) {
      double weights = 0;
      for (int64_t k = 0; k < depth; ++k) weights += std::fabs(weight.numbers[o * depth + k]);
      // For Winograd's algorithm, twice what tests/inference/test_winograd.py allows.
      const double units = (tile == 4 ? 8 : tile == 6 ? 64 : 0) * weights * largest;
      for (int64_t p = 0; p < height; ++p) {
        for (int64_t q = 0; q < width; ++q, ++index) {
          double sum = bias.numbers[o], terms = std::fabs(sum);
          for (int64_t c = 0, k = o * depth; c < channels; ++c) {
            const int64_t group = o / (filters / groups);
            const int64_t map = ((n * groups + group) * channels + c) * y.size;
            for (int64_t i = 0; i < y.kernel; ++i) {
              for (int64_t j = 0; j < x.kernel; ++j, ++k) {
                const int64_t row = y.cell(p, i), column = x.cell(q, j);
                if (row < 0 || column < 0) continue;
                const double term = static_cast<double>(weight.numbers[k]) *
                                    data.numbers[(map + row) * x.size + column];
                sum += term, terms += std::fabs(term);
              }
            }
          }
          const double other = has_residual ? residual.numbers[index] : 0;
          terms += std::fabs(other);
          if (!adds_last) sum += other;
          sum = activate(act_type, sum);
          if (adds_last) sum += other;
          // One term more than the bound of a direct convolution, because SSE2 rounds products as
          // well.
          const double steps = static_cast<double>(tile > 0 ? 4 : depth + 4);
          check(got, index, sum, 0x1p-24 * (steps * terms + units));
        }
      }
    }
  }
}

// ---- Deformable convolutions --------------------------------------------------------------------

// The bilinear sample of a map of y.size x x.size at a position, by its definition; *terms gets the
// sum of absolute terms.
double sample_of(const float* map, const Axis& y, const Axis& x, float at_y, float at_x,
                 bool zero_border, double* terms) {
  *terms = 0;
  const float lowest = zero_border ? -1 : 0;
  const auto is_inside = [&](float place, int64_t size) {
    return (zero_border ? place > lowest : place >= lowest) && place < static_cast<float>(size);
  };
  if (!is_inside(at_y, y.size) || !is_inside(at_x, x.size)) return 0;
  const float low_y = std::floor(at_y), low_x = std::floor(at_x);
  double sum = 0;
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      const double by_y = i ? at_y - low_y : 1 - (at_y - low_y);
      const double by_x = j ? at_x - low_x : 1 - (at_x - low_x);
      int64_t row = static_cast<int64_t>(low_y) + i, column = static_cast<int64_t>(low_x) + j;
      if (zero_border) {
        if (row < 0 || row >= y.size || column < 0 || column >= x.size) continue;
      } else {  // the last cells are replicated
        row = std::min(row, y.size - 1);
        column = std::min(column, x.size - 1);
      }
      const double term = by_y * by_x * map[row * x.size + column];
      sum += term, *terms += std::fabs(term);
    }
  }
  return sum;
}

void check_deformable_convolution(Random* random) {
  const Axis y(random), x(random);
  const int64_t images = random->integer(1, 2), cells = y.kernel * x.kernel;
  const int64_t groups = random->pick<int64_t>({1, 1, 1, 2, 5});
  int64_t channels = random->integer(1, 40);  // of a group
  if (cells < 10 && random->chance(0.2)) channels = random->pick<int64_t>({63, 64, 131});
  const int64_t filters = random->integer(1, 40);
  const int64_t height = y.outputs(), width = x.outputs(), depth = groups * channels * cells;
  const bool has_mask = random->chance(0.5), zero_border = random->chance(0.5);
  const std::string act_type = random->pick<const char*>({"", "relu", "relu6", "leaky"});

  const Values data(random, {images, groups * channels, y.size, x.size});
  Values offset(random, {images, 2 * groups * cells, height, width});
  for (float& number : offset.numbers) {
    if (random->chance(0.1)) number = std::round(number);
    if (random->chance(0.02)) number *= random->pick<float>({100, 1e30f, INFINITY, NAN});
  }
  const Values mask(random, {images, groups * cells, height, width});
  const Values weight(random, {filters, depth}), bias(random, {filters});
  const Attributes attributes{{"num_filter", std::to_string(filters)},
                              {"kernel", pair_of(y.kernel, x.kernel)},
                              {"stride", pair_of(y.stride, x.stride)},
                              {"pad", pair_of(y.pad, x.pad)},
                              {"dilate", pair_of(y.dilate, x.dilate)},
                              {"num_deformable_group", std::to_string(groups)},
                              {"convention", zero_border ? "torchvision" : "mxnet"},
                              {"act_type", act_type},
                              {"slope", "0.25"},
                              {"mask", has_mask ? "True" : "False"}};
  current = "DeformableGemmConvolution of " + std::to_string(images) + " x " +
            std::to_string(groups * channels) + " maps of " + pair_of(y.size, x.size);
  for (const auto& [key, value] : attributes) current += ", " + key + " " + value;

  std::vector<Array> inputs;
  inputs.push_back(data.array(random));
  inputs.push_back(offset.array(random));
  if (has_mask) inputs.push_back(mask.array(random));
  inputs.push_back(pack(weight, 1).array(random));
  inputs.push_back(bias.array(random));
  const Array got = run(find("DeformableGemmConvolution"), attributes, inputs, random);

  // Samples, and the sums of their absolute terms: [channel and cell of the kernel][output].
  const int64_t outputs = height * width;
  std::vector<double> samples(depth * outputs), terms(depth * outputs);
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t k = 0; k < depth; ++k) {
      const int64_t channel = k / cells, i = k % cells / x.kernel, j = k % x.kernel;
      const int64_t plane = (n * groups + channel / channels) * cells + k % cells;
      const float* const map =
          data.numbers.data() + (n * groups * channels + channel) * y.size * x.size;
      for (int64_t output = 0; output < outputs; ++output) {
        const int64_t from_y = output / width * y.stride - y.pad + i * y.dilate;
        const int64_t from_x = output % width * x.stride - x.pad + j * x.dilate;
        const float at_y =
            static_cast<float>(from_y) + offset.numbers[2 * plane * outputs + output];
        const float at_x =
            static_cast<float>(from_x) + offset.numbers[(2 * plane + 1) * outputs + output];
        const double factor = has_mask ? mask.numbers[plane * outputs + output] : 1;
        double* const of_sample = &terms[k * outputs + output];
        samples[k * outputs + output] =
            factor * sample_of(map, y, x, at_y, at_x, zero_border, of_sample);
        *of_sample *= std::fabs(factor);
      }
    }
    for (int64_t o = 0; o < filters; ++o) {
      for (int64_t output = 0; output < outputs; ++output) {
        double sum = bias.numbers[o], all = std::fabs(sum);
        for (int64_t k = 0; k < depth; ++k) {
          const double factor = weight.numbers[o * depth + k];
          sum += factor * samples[k * outputs + output];
          all += std::fabs(factor) * terms[k * outputs + output];
        }
        sum = activate(act_type, sum);
        // A sample has at most 8 roundings: 4 of its weights, 1 of a product, 3 of the sum.
        const double bound = static_cast<double>(depth + 12) * 0x1p-24 * all;
        check(got, (n * filters + o) * outputs + output, sum, bound);
      }
    }
  }
}

// ---- Pooling, tiles of channels, pyramids -------------------------------------------------------

void check_max_pooling(Random* random) {
  Axis y(random), x(random);
  const bool is_full = random->chance(0.5), keeps_maxima = random->chance(0.3);
  for (Axis* axis : {&y, &x}) {
    axis->dilate = 1;
    if (keeps_maxima) {
      axis->stride = 1;
      axis->kernel |= 1;
      axis->pad = axis->kernel / 2;
    }
    axis->size = std::max(axis->size, axis->kernel);
    axis->pad = std::min(axis->pad, axis->kernel - 1);
  }
  const auto outputs = [&](const Axis& axis) {
    const int64_t steps = axis.size + 2 * axis.pad - axis.kernel;
    return (is_full ? (steps + axis.stride - 1) / axis.stride : steps / axis.stride) + 1;
  };
  const int64_t images = random->integer(1, 2), channels = random->integer(1, 5);
  const int64_t height = outputs(y), width = outputs(x);
  Values data(random, {images, channels, y.size, x.size});
  for (float& number : data.numbers) {
    if (random->chance(0.03)) number = random->pick<float>({NAN, INFINITY, -INFINITY, -0.f});
  }
  std::vector<float> wanted;
  for (int64_t map = 0; map < images * channels; ++map) {
    for (int64_t p = 0; p < height; ++p) {
      for (int64_t q = 0; q < width; ++q) {
        float largest = -FLT_MAX;
        for (int64_t i = 0; i < y.kernel; ++i) {
          for (int64_t j = 0; j < x.kernel; ++j) {
            const int64_t row = y.cell(p, i), column = x.cell(q, j);
            if (row < 0 || column < 0) continue;
            const float number = data.numbers[(map * y.size + row) * x.size + column];
            if (number > largest) largest = number;
          }
        }
        if (keeps_maxima) {
          const float number = data.numbers[(map * height + p) * width + q];
          wanted.push_back(number == largest ? number : number * 0);
        } else {
          wanted.push_back(largest);
        }
      }
    }
  }
  check_exact("MaxPooling",
              {{"kernel", pair_of(y.kernel, x.kernel)},
               {"stride", pair_of(y.stride, x.stride)},
               {"pad", pair_of(y.pad, x.pad)},
               {"pooling_convention", is_full ? "full" : "valid"},
               {"keep_maxima", keeps_maxima ? "True" : "False"}},
              {data}, wanted, random);
}

void check_depth_to_space(Random* random) {
  const int64_t images = random->integer(1, 3), channels = random->integer(1, 9);
  const int64_t height = random->integer(1, 30), width = random->integer(1, 70);
  const int64_t side = random->integer(1, 4);
  const Values data(random, {images, side * side * channels, height, width});
  std::vector<float> wanted;
  for (int64_t n = 0; n < images; ++n) {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t y = 0; y < side * height; ++y) {
        for (int64_t x = 0; x < side * width; ++x) {
          const int64_t tile = y % side * side + x % side;
          const int64_t map = (n * side * side + tile) * channels + c;
          wanted.push_back(data.numbers[(map * height + y / side) * width + x / side]);
        }
      }
    }
  }
  check_exact("DepthToSpace", {{"block_size", std::to_string(side)}}, {data}, wanted, random);
}

void check_upsample_add(Random* random) {
  const int64_t images = random->integer(1, 3), channels = random->integer(1, 9);
  const int64_t height = random->integer(1, 40), width = random->integer(1, 70);
  const int64_t low_height = (height + 1) / 2, low_width = (width + 1) / 2;
  const Values low(random, {images, channels, low_height, low_width});
  const Values high(random, {images, channels, height, width});
  std::vector<float> wanted;
  for (int64_t map = 0; map < images * channels; ++map) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        wanted.push_back(high.numbers[(map * height + y) * width + x] +
                         low.numbers[(map * low_height + y / 2) * low_width + x / 2]);
      }
    }
  }
  check_exact("UpsampleAdd", {}, {low, high}, wanted, random);
}

// ---- Copies -------------------------------------------------------------------------------------

std::vector<int64_t> random_sizes(Random* random) {
  std::vector<int64_t> sizes(static_cast<size_t>(random->integer(1, 4)));
  for (int64_t& size : sizes) {
    size = random->pick<int64_t>({1, 2, 3, 4, 5, 8, random->integer(1, 40)});
  }
  if (random->chance(0.2)) sizes[random->integer(0, sizes.size() - 1)] *= 60;
  return sizes;
}

// The product of the sizes before an axis, or of those from an axis on.
int64_t before(const std::vector<int64_t>& sizes, size_t axis) {
  return static_cast<int64_t>(Values::size_of({sizes.begin(), sizes.begin() + axis}));
}
int64_t behind(const std::vector<int64_t>& sizes, size_t axis) {
  return static_cast<int64_t>(Values::size_of({sizes.begin() + axis, sizes.end()}));
}

void check_concat(Random* random) {
  std::vector<int64_t> sizes = random_sizes(random);
  const auto axis = static_cast<size_t>(random->integer(0, sizes.size() - 1));
  std::vector<Values> inputs;
  for (int64_t left = random->pick<int64_t>({1, 2, 3, 5, 20}); left > 0; --left) {
    if (random->chance(0.5)) sizes[axis] = random->integer(0, 5);
    inputs.emplace_back(random, sizes);
  }
  std::vector<float> wanted;
  for (int64_t row = 0; row < before(sizes, axis); ++row) {
    for (const Values& input : inputs) {
      const int64_t count = behind(input.shape, axis);
      const auto first = input.numbers.begin() + row * count;
      wanted.insert(wanted.end(), first, first + count);
    }
  }
  const int64_t dim = random->chance(0.5) ? axis : static_cast<int64_t>(axis) - sizes.size();
  check_exact("Concat", {{"num_args", std::to_string(inputs.size())}, {"dim", std::to_string(dim)}},
              inputs, wanted, random);
}

void check_transpose(Random* random) {
  const std::vector<int64_t> sizes = random_sizes(random);
  std::vector<size_t> axes;
  std::string text;
  while (axes.size() < sizes.size()) {
    const auto axis = static_cast<size_t>(random->integer(0, sizes.size() - 1));
    if (std::count(axes.begin(), axes.end(), axis) > 0) continue;
    text += (axes.empty() ? "(" : ", ") + std::to_string(axis);
    axes.push_back(axis);
  }
  const Values data(random, sizes);
  std::vector<float> wanted(data.numbers.size());
  for (size_t index = 0; index < wanted.size(); ++index) {
    int64_t left = static_cast<int64_t>(index), place = 0;
    for (size_t i = axes.size(); i-- > 0; left /= sizes[axes[i]]) {
      place += left % sizes[axes[i]] * behind(sizes, axes[i] + 1);
    }
    wanted[index] = data.numbers[place];
  }
  check_exact("Transpose", {{"axes", text + ")"}}, {data}, wanted, random);
}

void check_repeat(Random* random) {
  const std::vector<int64_t> sizes = random_sizes(random);
  const auto axis = static_cast<size_t>(random->integer(0, sizes.size() - 1));
  const int64_t repeats = random->integer(1, 5), count = behind(sizes, axis + 1);
  const Values data(random, sizes);
  std::vector<float> wanted;
  for (int64_t row = 0; row < before(sizes, axis + 1); ++row) {
    for (int64_t copy = 0; copy < repeats; ++copy) {
      const auto first = data.numbers.begin() + row * count;
      wanted.insert(wanted.end(), first, first + count);
    }
  }
  check_exact("Repeat", {{"repeats", std::to_string(repeats)}, {"axis", std::to_string(axis)}},
              {data}, wanted, random);
}

void check_layer(Random* random) {
  const double kind = random->unit();
  if (kind < 0.45) return check_convolution(random);
  if (kind < 0.7) return check_deformable_convolution(random);
  if (kind < 0.77) return check_max_pooling(random);
  if (kind < 0.84) return check_depth_to_space(random);
  if (kind < 0.88) return check_upsample_add(random);
  if (kind < 0.92) return check_concat(random);
  if (kind < 0.98) return check_transpose(random);
  check_repeat(random);
}

}  // namespace
}  // namespace sanitize

int main(int count, char** arguments) {
  if (count != 3) {
    fprintf(stderr, "layers: expected SEED COUNT\n");
    return 2;
  }
  using namespace sanitize;
  seed = strtoull(arguments[1], nullptr, 10);
  const uint64_t layers = strtoull(arguments[2], nullptr, 10);
  report_signals();
  for (uint64_t number = 0; number < layers; ++number) {
    alarm(300);
    Random random(seed, number);
    check_layer(&random);
  }
  printf("%d layers\n", static_cast<int>(layers));
  return 0;
}
