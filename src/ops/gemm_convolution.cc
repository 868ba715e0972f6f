// SPDX-License-Identifier: Apache-2.0
#include "gemm_convolution.h"

#include "../bindings/inference.h"
#include "../cpu/blocks.h"
#include "../cpu/convolve.h"
#include "../cpu/strided_copy.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

void GemmConvolution::infer(const Params& p, const View& in, Tensor* outputs,
                            int64_t max_elements) {
  check_num_filter(kName, p.num_filter);
  if (p.num_filter % p.num_group != 0) {
    fail(kName, "argument num_filter: expected a multiple of num_group = ", p.num_group, ", got ",
         p.num_filter);
  }
  check_rank(kName, "data", in.data, 4, "4 dimensions (N, C, H, W)");
  const int64_t channels = in.data.ndim < 0 ? -1 : in.data.shape[1];
  if (channels >= 0 && channels % p.num_group != 0) {
    fail(kName, "data has ", channels,
         " channels, expected a multiple of num_group = ", p.num_group);
  }
  const int64_t depth = filter_depth(kName, channels < 0 ? -1 : channels / p.num_group,
                                     p.kernel_height, p.kernel_width, max_elements);
  const int64_t panels = p.num_group * div_up(p.num_filter / p.num_group, kPanelRows);
  check_packed_weight(kName, in.weight, panels, "num_group * ceil(num_filter / num_group / 12)",
                      depth, "the channels of a group * the cells of the kernel");
  outputs[0] = infer_convolution(kName, p, in.data, in.bias, in.residual, max_elements);
}

// ---- Packing ------------------------------------------------------------------------------------

namespace {

// The sizes of a call.
struct Sizes {
  GemmConvolution::Params p;
  int64_t channels;  // of a group
  int64_t height, width;
  int64_t out_width;
  int64_t kernel_cells;

  Sizes(const GemmConvolution::Params& params, const Tensor& data, const Tensor& out)
      : p(params),
        channels(data.shape[1] / params.num_group),
        height(data.shape[2]),
        width(data.shape[3]),
        out_width(out.shape[3]),
        kernel_cells(params.kernel_cells()) {}

  int64_t cells() const { return height * width; }
  // Whether an output reads the cell of its own number.
  bool is_pointwise() const {
    return kernel_cells == 1 && p.stride_height == 1 && p.stride_width == 1 && p.pad_height == 0 &&
           p.pad_width == 0;
  }

  // The columns behind the first that a row of the kernel covers.
  int64_t reach() const { return int64_t{p.kernel_width - 1} * p.dilate_width; }
  // Rows of maps are split into phases, see OutputPacker.
  int64_t phases() const { return std::min<int64_t>(p.stride_width, reach() + 1); }
  int64_t pitch() const { return out_width + reach() / p.stride_width; }
  // The size of a phase of the rows that so many outputs meet, wherever they begin.
  int64_t phase_size(int64_t outputs) const {
    return (div_up(outputs - 1, out_width) + 1) * pitch();
  }
};

// Packs what consecutive outputs of an image and a group read, as Gemm reads it.
//
// All columns of the kernel read the same cells of a map, shifted. So these are copied into `rows`
// once for each row of the kernel, with the zeros around the map: a row for each row of outputs,
// split into phases, in which the cells that neighbouring outputs read are neighbours (stride 2):
//
//   a row of the map with a zero at each end:  0 a b c d e f g 0
//   phase 0:  0 b d f 0      is read by columns 0 and 2 of the kernel, the latter from b on
//   phase 1:  a c e g        is read by column 1
template <class Simd>
class OutputPacker {
 public:
  ALWAYS_INLINE OutputPacker(const Sizes& sizes, const float* maps, const OutputChunk& chunk,
                             float* rows)
      : sizes_(sizes),
        maps_(maps),
        first_(chunk.first),
        count_(chunk.count),
        first_y_(chunk.first / sizes.out_width),
        first_x_(chunk.first % sizes.out_width),
        rows_(rows) {}

  // For k = begin ... end - 1.
  ALWAYS_INLINE void run(int64_t begin, int64_t end, float* b, int64_t b_step) const {
    const GemmConvolution::Params& p = sizes_.p;
    if (sizes_.is_pointwise()) {
      for (int64_t k = begin; k < end; ++k, b += kBlockLanes) {
        copy_lanes(maps_ + k * sizes_.cells() + first_, 0, count_, b, b_step);
        fill_last_block(b, b_step);
      }
      return;
    }
    const float* map = maps_ + begin / sizes_.kernel_cells * sizes_.cells();
    int64_t i = begin % sizes_.kernel_cells / p.kernel_width, j = begin % p.kernel_width;
    for (int64_t k = begin; k < end; ++k, b += kBlockLanes) {
      if (j == 0 || k == begin) split_rows(map, i);
      pack_column(j, b, b_step);
      fill_last_block(b, b_step);
      if (++j == p.kernel_width) j = 0, ++i;
      if (i == p.kernel_height) i = 0, map += sizes_.cells();
    }
  }

 private:
  // Calls body(y, x, lane, count) for each row of outputs: `count` of them from column x on, of
  // which the first is number `lane` of the chunk.
  template <class Body>
  ALWAYS_INLINE void for_each_row(const Body& body) const {
    int64_t y = first_y_, x = first_x_;
    for (int64_t lane = 0; lane < count_; ++y, x = 0) {
      const int64_t count = std::min(count_ - lane, sizes_.out_width - x);
      body(y, x, lane, count);
      lane += count;
    }
  }

  // Fills rows_ with what row i of the kernel meets.
  ALWAYS_INLINE void split_rows(const float* map, int64_t i) const {
    const GemmConvolution::Params& p = sizes_.p;
    const int64_t stride = p.stride_width, reach = sizes_.reach() / stride;
    // To the same cells of a later channel, which are prefetched. (Without: 3 x 3 layers of stride
    // 2 take 1.05 times as long.)
    const int64_t ahead = (sizes_.kernel_cells == 1 ? 4 : 1) * sizes_.cells();
    float* phase_rows = rows_;
    for (int64_t phase = 0; phase < sizes_.phases(); ++phase) {
      const int64_t shift = phase - p.pad_width;
      // The columns that lie on the map.
      const int64_t inside = shift < 0 ? div_up(-shift, stride) : 0;
      const int64_t outside = shift < sizes_.width ? div_up(sizes_.width - shift, stride) : 0;
      float* to = phase_rows;
      for_each_row([&](int64_t y, int64_t x, int64_t, int64_t count) INLINE_LAMBDA {
        const int64_t row = y * p.stride_height - p.pad_height + i * p.dilate_height;
        const bool is_on_map = row >= 0 && row < sizes_.height;
        const float* const from = map + row * sizes_.width + shift;
        const int64_t row_end = x + count + reach;
        const int64_t begin = is_on_map ? std::clamp(inside, x, row_end) : row_end;
        const int64_t end = std::clamp(outside, begin, row_end);
        if (phase == 0) {
          constexpr int64_t kLine = 16;
          for (int64_t cell = begin * stride; cell < end * stride; cell += kLine) {
            __builtin_prefetch(from + ahead + cell);
          }
        }
        std::fill(to + x, to + begin, 0.f);
        copy_every<Simd>(stride, from, begin, end, to);
        std::fill(to + end, to + row_end, 0.f);
        to += sizes_.pitch();
      });
      phase_rows += sizes_.phase_size(count_);
    }
  }

  // What column j of the kernel reads.
  ALWAYS_INLINE void pack_column(int64_t j, float* b, int64_t b_step) const {
    const int64_t column = j * sizes_.p.dilate_width, stride = sizes_.p.stride_width;
    const float* from = rows_ + column % stride * sizes_.phase_size(count_) + column / stride;
    if (sizes_.pitch() == sizes_.out_width) {
      return copy_lanes(from + first_x_, 0, count_, b, b_step);
    }
    for_each_row([&](int64_t, int64_t x, int64_t lane, int64_t count) INLINE_LAMBDA {
      copy_lanes(from + x, lane, count, b, b_step);
      from += sizes_.pitch();
    });
  }

  // Copies consecutive numbers into blocks, from a lane of the chunk on.
  ALWAYS_INLINE static void copy_lanes(const float* from, int64_t lane, int64_t count, float* b,
                                       int64_t b_step) {
    float* to = b + lane / kBlockLanes * b_step;
    if (const int64_t in_block = lane % kBlockLanes; in_block != 0) {
      const int64_t fitting = std::min(kBlockLanes - in_block, count);
      copy_run(from, fitting, to + in_block, Simd{});
      to += b_step, from += fitting, count -= fitting;
    }
    for (; count >= kBlockLanes; count -= kBlockLanes, from += kBlockLanes, to += b_step) {
      Lanes<float, Simd>::load(from).store(to);
    }
    copy_run(from, count, to, Simd{});
  }

  // The lanes behind the last output get zeros.
  ALWAYS_INLINE void fill_last_block(float* b, int64_t b_step) const {
    if (count_ % kBlockLanes == 0) return;
    float* const block = b + count_ / kBlockLanes * b_step;
    std::fill(block + count_ % kBlockLanes, block + kBlockLanes, 0.f);
  }

  const Sizes& sizes_;
  const float* const maps_;
  const int64_t first_, count_;
  const int64_t first_y_, first_x_;
  float* const rows_;
};

struct Packing {
  const Sizes& sizes;
  const float* const data;

  int64_t scratch(int64_t outputs) const {
    return sizes.is_pointwise() ? 0 : sizes.phases() * sizes.phase_size(outputs);
  }
  void prepare(const OutputChunk&, float*) const {}
  void pack(const OutputChunk& chunk, int64_t begin, int64_t end, float* rows, float* b,
            int64_t b_step) const {
    run_simd([&](auto simd) INLINE_LAMBDA {
      OutputPacker<decltype(simd)>(sizes, maps(chunk), chunk, rows).run(begin, end, b, b_step);
    });
  }
  // Where outputs share cells or skip some, this gains nothing.
  Ahead ahead(const OutputChunk& chunk, int64_t begin, int64_t end) const {
    if (!sizes.is_pointwise()) return {};
    const int64_t cells = sizes.cells();
    return {maps(chunk) + chunk.first + begin * cells, end - begin, cells, chunk.count};
  }

 private:
  const float* maps(const OutputChunk& chunk) const {
    const int64_t pair = chunk.image * sizes.p.num_group + chunk.group;
    return data + pair * sizes.channels * sizes.cells();
  }
};

}  // namespace

void GemmConvolution::forward(const Params& p, const View& in, const Tensor& out) {
  const Sizes sizes(p, in.data, out);
  const Convolution convolution(in.weight, in.bias, in.residual, out, p.num_group, 1, p.activation);
  convolve(convolution, Packing{sizes, data_of<const float>(in.data)});
}

}  // namespace gluon_roi

static const gluon_roi::InferenceOperator<gluon_roi::GemmConvolution> gemm_convolution;
