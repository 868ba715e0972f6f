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
};

// Packs what consecutive outputs of an image and a group read, as Gemm reads it.
template <class Simd>
class OutputPacker {
 public:
  ALWAYS_INLINE OutputPacker(const Sizes& sizes, const float* maps, int64_t first, int64_t count)
      : sizes_(sizes), maps_(maps), first_(first), count_(count) {}

  // For k = begin ... end - 1.
  ALWAYS_INLINE void run(int64_t begin, int64_t end, float* b, int64_t b_step) {
    for (int64_t k = begin; k < end; ++k, b += kBlockLanes) {
      const float* const map = maps_ + k / sizes_.kernel_cells * sizes_.cells();
      if (sizes_.is_pointwise()) {
        copy_blocks(map + first_, b, b_step);
      } else {
        const int64_t cell = k % sizes_.kernel_cells;
        fill_strip(map, cell / sizes_.p.kernel_width, cell % sizes_.p.kernel_width);
        copy_blocks(strip_, b, b_step);
      }
    }
  }

 private:
  // A number for each output into blocks; the lanes behind the last output get zeros.
  ALWAYS_INLINE void copy_blocks(const float* from, float* b, int64_t b_step) const {
    int64_t i = 0;
    for (; i + kBlockLanes <= count_; i += kBlockLanes, b += b_step) {
      Lanes<float, Simd>::load(from + i).store(b);
    }
    for (int lane = 0; i < count_ && lane < kBlockLanes; ++lane) {
      b[lane] = i + lane < count_ ? from[i + lane] : 0;
    }
  }

  // strip_: what each output multiplies by the kernel's cell (i, j).
  ALWAYS_INLINE void fill_strip(const float* map, int64_t i, int64_t j) {
    const GemmConvolution::Params& p = sizes_.p;
    const int64_t shift = j * p.dilate_width - p.pad_width;
    // To the same cells of a later channel, which are prefetched. (Without: 3 x 3 layers of stride
    // 2 take 1.05 times as long.)
    const int64_t ahead = (sizes_.kernel_cells == 1 ? 4 : 1) * sizes_.cells();
    // The outputs of a row whose cells lie on the map.
    const int64_t inside = shift < 0 ? div_up(-shift, p.stride_width) : 0;
    const int64_t outside = shift < sizes_.width ? div_up(sizes_.width - shift, p.stride_width) : 0;
    int64_t y = first_ / sizes_.out_width, x = first_ % sizes_.out_width;
    for (int64_t done = 0; done < count_; ++y, x = 0) {
      const int64_t run_end = std::min(x + count_ - done, sizes_.out_width);
      const int64_t row = y * p.stride_height - p.pad_height + i * p.dilate_height;
      const bool is_on_map = row >= 0 && row < sizes_.height;
      const int64_t begin = is_on_map ? std::clamp(inside, x, run_end) : run_end;
      const int64_t end = std::clamp(outside, begin, run_end);
      float* const to = strip_ + done - x;
      std::fill(to + x, to + begin, 0.f);
      const float* const from = map + row * sizes_.width + shift;
      if (j == 0) {
        constexpr int64_t kLine = 16;
        for (int64_t cell = begin * p.stride_width; cell < end * p.stride_width; cell += kLine) {
          __builtin_prefetch(from + ahead + cell);
        }
      }
      copy_every<Simd>(p.stride_width, from, begin, end, to);
      std::fill(to + end, to + run_end, 0.f);
      done += run_end - x;
    }
  }

  const Sizes& sizes_;
  const float* const maps_;
  const int64_t first_, count_;
  float strip_[kMaxOutputs];
};

struct Packing {
  const Sizes& sizes;
  const float* const data;

  int64_t scratch(int64_t) const { return 0; }
  void prepare(const OutputChunk&, float*) const {}
  void pack(const OutputChunk& chunk, int64_t begin, int64_t end, const float*, float* b,
            int64_t b_step) const {
    run_simd([&](auto simd) INLINE_LAMBDA {
      OutputPacker<decltype(simd)>(sizes, maps(chunk), chunk.first, chunk.count)
          .run(begin, end, b, b_step);
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
