// SPDX-License-Identifier: Apache-2.0
#include "depthwise_convolution.h"

#include "../bindings/inference.h"
#include "../cpu/blocks.h"
#include "../cpu/epilogue.h"
#include "../cpu/fused.h"
#include "../cpu/strided_copy.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

void DepthwiseConvolution::infer(const Params& p, const View& in, Tensor* outputs,
                                 int64_t max_elements) {
  check_num_filter(kName, p.num_filter);
  check_rank(kName, "data", in.data, 4, "4 dimensions (N, C, H, W)");
  const int64_t channels = in.data.ndim < 0 ? -1 : in.data.shape[1];
  if (channels == 0 || (channels > 0 && p.num_filter % channels != 0)) {
    fail(kName, "argument num_filter: expected a multiple of the ", channels,
         " channels of data, got ", p.num_filter);
  }
  check_rank(kName, "weight", in.weight, 4, "4 dimensions (num_filter, 1, height, width)");
  const int64_t sizes[] = {p.num_filter, 1, p.kernel_height, p.kernel_width};
  for (int axis = 0; axis < 4; ++axis) {
    check_dimension(kName, "weight", in.weight, axis, sizes[axis],
                    "(num_filter, 1, height, width)");
  }
  outputs[0] = infer_convolution(kName, p, in.data, in.bias, in.residual, max_elements);
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

// A band: rows of the output of one map. What they read is copied into planes, with the zeros
// around the map, so that each number of a plane meets the kernel's cell at the same distance:
//
//   rows y = 0 1 2 3 ...  and columns, stride 2      plane (0, 0)   plane (0, 1)
//     a b c d e f                                      a c e          b d f
//     g h i j k l                          ───►        m o q          n p r
//     m n o p q r                                    plane (1, 0)   plane (1, 1)
//     s t u v w x                                      g i k          h j l
//                                                      s u w          t v x
//
// Cell (i, j) of the kernel meets plane ((i * dilate) % stride, (j * dilate) % stride), shifted by
// (i * dilate) / stride rows and (j * dilate) / stride columns, for all outputs. The sums are
// computed for the rows of a plane in one piece: those at the ends of rows, which no output has,
// are computed in vain.
struct Band {
  const ConvolutionParams& p;
  int64_t height, width, out_width;
  int64_t first, rows;  // of the output
  int64_t plane_rows, pitch;

  int64_t plane() const { return plane_rows * pitch; }
  // Where the kernel's cell (i, j) meets the first output.
  int64_t offset(int64_t i, int64_t j) const {
    const int64_t y = i * p.dilate_height, x = j * p.dilate_width;
    const int64_t phase = y % p.stride_height * p.stride_width + x % p.stride_width;
    return phase * plane() + y / p.stride_height * pitch + x / p.stride_width;
  }
  int64_t sums() const { return rows * pitch; }
};

// What lies behind the last sum of a register tile is read and computed, and never used.
constexpr int64_t kSlack = 64;
constexpr int kTile = 4;  // registers

template <class Simd>
class BandConvolver {
 public:
  ALWAYS_INLINE BandConvolver(const Band& band, float* planes, float* sums)
      : band_(band), planes_(planes), sums_(sums) {}

  // Fills the planes from a map.
  ALWAYS_INLINE void copy(const float* map) {
    const ConvolutionParams& p = band_.p;
    const int64_t planes = int64_t{p.stride_height} * p.stride_width;
    // What register tiles read behind the last plane.
    float* const end = planes_ + planes * band_.plane();
    std::fill(end, end + band_.pitch + kSlack, 0.f);
    for (int64_t row = 0; row < band_.plane_rows * p.stride_height; ++row) {
      const int64_t y = band_.first * p.stride_height - p.pad_height + row;
      const float* const from = y >= 0 && y < band_.height ? map + y * band_.width : nullptr;
      float* const to = planes_ + row % p.stride_height * p.stride_width * band_.plane() +
                        row / p.stride_height * band_.pitch;
      for (int phase = 0; phase < p.stride_width; ++phase) {
        copy_row(from, phase - p.pad_width, to + phase * band_.plane());
      }
    }
  }

  // Computes the sums of a filter. offsets: where each cell of the kernel meets the first output.
  ALWAYS_INLINE void convolve(const float* weight, const Vector<int64_t>& offsets) {
    constexpr int64_t kStep = kTile * Values::kPerRegister;
    for (int64_t begin = 0; begin < band_.sums(); begin += kStep) {
      Register sums[kTile] = {};
      for (size_t cell = 0; cell < offsets.size(); ++cell) {
        const float* const from = planes_ + offsets[cell] + begin;
        Register factor;
        broadcast(weight[cell], &factor);
#pragma GCC unroll 4
        for (int t = 0; t < kTile; ++t) {
          Register values;
          load_register(from + t * Values::kPerRegister, &values);
          multiply_add<Simd>(values, factor, &sums[t]);
        }
      }
#pragma GCC unroll 4
      for (int t = 0; t < kTile; ++t) {
        store_register(sums_ + begin + t * Values::kPerRegister, sums[t]);
      }
    }
  }

  // Writes the filter's outputs, which begin at `offset`.
  ALWAYS_INLINE void write(float bias, const Epilogue& last, int64_t offset, float* out) const {
    constexpr int64_t kSize = Values::kPerRegister;
    const int64_t width = band_.out_width;
    Register biases, slope;
    broadcast(bias, &biases);
    broadcast(last.slope, &slope);
    for (int64_t row = 0; row < band_.rows; ++row, offset += width) {
      const float* const from = sums_ + row * band_.pitch;
      for (int64_t next = 0; next < width && width >= kSize; next += kSize) {
        const int64_t x = std::min(next, width - kSize);  // the last one overlaps the one before
        Register values;
        load_register(from + x, &values);
        values += biases;
        finish(last, offset + x, slope, &values);
        store_register(out + offset + x, values);
      }
      for (int64_t x = 0; x < width && width < kSize; ++x) {
        float value = from[x] + bias;
        finish(last, offset + x, last.slope, &value);
        out[offset + x] = value;
      }
    }
  }

 private:
  using Values = Lanes<float, Simd>;
  using Register = typename Values::Register;

  // to[x] = the number of a row at column x * stride + shift; a row that is null has zeros.
  ALWAYS_INLINE void copy_row(const float* from, int64_t shift, float* to) const {
    const int64_t stride = band_.p.stride_width;
    // The columns that lie on the map.
    const int64_t inside = shift < 0 ? div_up(-shift, stride) : 0;
    const int64_t outside = shift < band_.width ? div_up(band_.width - shift, stride) : 0;
    const int64_t begin = from == nullptr ? band_.pitch : std::min(inside, band_.pitch);
    const int64_t end = std::clamp(outside, begin, band_.pitch);
    std::fill(to, to + begin, 0.f);
    if (begin < end) copy_every<Simd>(stride, from + shift, begin, end, to);
    std::fill(to + end, to + band_.pitch, 0.f);
  }

  const Band& band_;
  float* const planes_;
  float* const sums_;
};

// About as many floats of planes and sums as fit into the first-level cache; and the least rows of
// a band, because bands copy the rows between them twice.
constexpr int64_t kBandFloats = 1 << 13, kMinRows = 8;

}  // namespace

void DepthwiseConvolution::forward(const Params& p, const View& in, const Tensor& out_tensor) {
  const int64_t channels = in.data.shape[1], cells = in.data.shape[2] * in.data.shape[3];
  const int64_t out_height = out_tensor.shape[2], out_width = out_tensor.shape[3];
  const float* const data = data_of<const float>(in.data);
  const float* const weight = data_of<const float>(in.weight);
  const float* const bias = data_of<const float>(in.bias);
  float* const out = data_of<float>(out_tensor);
  Epilogue last(p.activation);
  last.residual = data_of<const float>(in.residual);  // null if it is absent

  const int64_t planes = int64_t{p.stride_height} * p.stride_width;
  const int64_t pitch = out_width + int64_t{p.kernel_width - 1} * p.dilate_width / p.stride_width;
  const int64_t more_rows = int64_t{p.kernel_height - 1} * p.dilate_height / p.stride_height;
  // Bands of equal height.
  const int64_t max_rows = std::max(kBandFloats / (pitch * (planes + 1)), kMinRows);
  const int64_t rows = div_up(out_height, div_up(out_height, max_rows));
  const int64_t bands = div_up(out_height, rows);
  const int64_t multiplier = p.num_filter / channels;
  const int64_t work = elements(in.data) + elements(out_tensor) * p.kernel_cells();
  const Band full{p,    in.data.shape[2], in.data.shape[3], out_width, 0, rows, rows + more_rows,
                  pitch};
  // The same for all bands, whose planes have one size.
  Vector<int64_t> offsets(p.kernel_cells());
  for (int64_t cell = 0; cell < p.kernel_cells(); ++cell) {
    offsets[cell] = full.offset(cell / p.kernel_width, cell % p.kernel_width);
  }
  parallel_for(in.data.shape[0] * channels * bands, work, [&](int64_t task) {
    const int64_t map = task / bands;
    Band band = full;
    band.first = task % bands * rows;
    band.rows = std::min(rows, out_height - band.first);
    float* const buffer =
        scratch<float>(planes * band.plane() + pitch + kSlack + band.sums() + kSlack);
    float* const sums = buffer + planes * band.plane() + pitch + kSlack;
    run_simd([&](auto simd) INLINE_LAMBDA {
      BandConvolver<decltype(simd)> convolver(band, buffer, sums);
      convolver.copy(data + map * cells);
      for (int64_t i = 0; i < multiplier; ++i) {
        const int64_t filter = map % channels * multiplier + i;
        convolver.convolve(weight + filter * p.kernel_cells(), offsets);
        convolver.write(bias[filter], last,
                        (map * multiplier + i) * out_height * out_width + band.first * out_width,
                        out);
      }
    });
  });
}

}  // namespace gluon_roi

static const gluon_roi::InferenceOperator<gluon_roi::DepthwiseConvolution> depthwise_convolution;
