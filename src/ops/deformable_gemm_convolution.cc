// SPDX-License-Identifier: Apache-2.0
#include "deformable_gemm_convolution.h"

#include "../bindings/inference.h"
#include "../cpu/blocks.h"
#include "../cpu/convolve.h"
#include "../cpu/sample_lanes.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

void DeformableGemmConvolution::infer(const Params& p, const View& in, Tensor* outputs,
                                      int64_t max_elements) {
  check_num_filter(kName, p.num_filter);
  const Tensor out = infer_deformable(kName, p.sampling, in.sampled, max_elements);
  const int64_t depth = filter_depth(kName, out.shape[1], p.sampling.kernel_height,
                                     p.sampling.kernel_width, max_elements);
  check_packed_weight(kName, in.weight, div_up(p.num_filter, kPanelRows), "ceil(num_filter / 12)",
                      depth, "the channels of data * the cells of the kernel");
  outputs[0] = infer_output(kName, p.num_filter, out, in.bias, Tensor{}, max_elements);
}

// ---- Packing ------------------------------------------------------------------------------------

namespace {

using Taps = SampleTaps<float>;
constexpr int kChannels = kLanes<float>;  // of a block
static_assert(kChannels == kBlockLanes, "samples are packed in squares");

class Packing {
 public:
  Packing(const DeformableGemmConvolution::Params& p, const DeformableArrays& in)
      : maps_(p.sampling, in),
        groups_(p.sampling.num_deformable_group),
        kernel_cells_(maps_.sampler.kernel.cells()),
        blocks_(blocks_of<float>(maps_.channels)),
        block_size_((maps_.cells + 1) * kChannels),
        packed_(static_cast<size_t>(maps_.pairs * blocks_ * block_size_)) {
    pack_maps(data_of<const float>(in.data));
  }

  // A block of channels is sampled at once.
  int64_t atomic() const { return kChannels * kernel_cells_; }

  int64_t scratch(int64_t outputs) const {
    return groups_ * kernel_cells_ * padded(outputs) *
           static_cast<int64_t>(sizeof(Taps) / sizeof(float));
  }
  // The taps of all samples of a chunk: [deformable group][block of outputs][cell of the
  // kernel][output].
  void prepare(const OutputChunk& chunk, float* scratch) const {
    const DeformKernel& kernel = maps_.sampler.kernel;
    Taps* taps = reinterpret_cast<Taps*>(scratch);
    for (int64_t group = 0; group < groups_; ++group) {
      const int64_t pair = chunk.image * groups_ + group;
      for (int64_t block = 0; block < chunk.count; block += kBlockLanes) {
        const int64_t first = chunk.first + block;
        const int count = static_cast<int>(std::min<int64_t>(kBlockLanes, chunk.count - block));
        for (int32_t i = 0; i < kernel.kernel_height; ++i) {
          for (int32_t j = 0; j < kernel.kernel_width; ++j, taps += kBlockLanes) {
            find_taps(pair, i, j, first, count, taps);
          }
        }
      }
    }
  }
  void pack(const OutputChunk& chunk, int64_t begin, int64_t end, const float* scratch, float* b,
            int64_t b_step) const {
    const Taps* const taps = reinterpret_cast<const Taps*>(scratch);
    const int64_t end_channel = end / kernel_cells_;
    int lanes;
    for (int64_t channel = begin / kernel_cells_; channel < end_channel; channel += lanes) {
      const int64_t group = channel / maps_.channels, of_group = channel % maps_.channels;
      const int lane = static_cast<int>(of_group % kChannels);
      lanes = static_cast<int>(
          std::min({kChannels - int64_t{lane}, maps_.channels - of_group, end_channel - channel}));
      const float* const block =
          packed_.data() +
          ((chunk.image * groups_ + group) * blocks_ + of_group / kChannels) * block_size_;
      float* const to = b + (channel * kernel_cells_ - begin) * kBlockLanes;
      run_simd([&](auto simd) INLINE_LAMBDA {
        pack_block(block, taps + group * kernel_cells_ * padded(chunk.count), chunk.count, lane,
                   lanes, to, b_step, simd);
      });
    }
  }
  Ahead ahead(const OutputChunk&, int64_t, int64_t) const { return {}; }

 private:
  static int64_t padded(int64_t outputs) { return round_up(outputs, int64_t{kBlockLanes}); }

  void pack_maps(const float* data) {
    const int64_t work = 2 * maps_.pairs * maps_.channels * maps_.cells;
    parallel_for(maps_.pairs * blocks_, work, [&](int64_t task) {
      const int64_t pair = task / blocks_, channel = task % blocks_ * kChannels;
      const int lanes = static_cast<int>(std::min<int64_t>(kChannels, maps_.channels - channel));
      const float* const planes = data + (pair * maps_.channels + channel) * maps_.cells;
      float* const block = packed_.data() + task * block_size_;
      run_simd([&](auto simd) INLINE_LAMBDA {
        pack_planes(planes, maps_.cells, lanes, maps_.cells, block, simd);
      });
      std::fill(block + block_size_ - kChannels, block + block_size_, 0.f);
    });
  }

  // Samples behind the last output are zeros.
  void find_taps(int64_t pair, int32_t i, int32_t j, int64_t first, int count, Taps* taps) const {
    const DeformSampler<float>& sampler = maps_.sampler;
    int64_t y = first / sampler.kernel.out_width, x = first % sampler.kernel.out_width;
    for (int output = 0; output < count; ++output) {
      taps[output] =
          sampler.taps(sampler.find(pair, y, x, i, j), sampler.mask_of(pair, y, x, i, j));
      if (++x == sampler.kernel.out_width) ++y, x = 0;
    }
    const int32_t none = sampler.kernel.no_cell();
    std::fill(taps + count, taps + kBlockLanes, Taps{{none, none, none, none}, {0, 0, 0, 0}});
  }

  // Packs the samples of `lanes` channels of a block.
  template <class Simd>
  ALWAYS_INLINE void pack_block(const float* block, const Taps* taps, int64_t count, int lane,
                                int lanes, float* to, int64_t b_step, Simd simd) const {
    using Values = Lanes<float, Simd>;
    // Transposing reads at most a register behind the last channel.
    float square[kBlockLanes * kChannels + kChannels] = {};
    for (int64_t output = 0; output < count; output += kBlockLanes, to += b_step) {
      for (int64_t cell = 0; cell < kernel_cells_; ++cell) {
        for (int i = 0; i < kBlockLanes; ++i, ++taps) {
          sample_lanes<Values>(block, *taps).store(square + i * kChannels);
        }
        unpack_planes(square + lane, kernel_cells_ * kBlockLanes, lanes, kBlockLanes,
                      to + cell * kBlockLanes, simd);
      }
    }
  }

  const SampledPairs<float> maps_;
  const int64_t groups_, kernel_cells_;
  const int64_t blocks_, block_size_;  // of a pair; of a block, in floats
  // Channel-last in blocks of 16 channels. Each block ends with a cell of zeros, no_cell().
  Vector<float> packed_;
};

}  // namespace

// ---- A call -------------------------------------------------------------------------------------

void DeformableGemmConvolution::forward(const Params& p, const View& in, const Tensor& out) {
  const Packing packing(p, in.sampled);
  const Convolution convolution(in.weight, in.bias, Tensor{}, out, 1, packing.atomic(),
                                p.activation);
  convolve(convolution, packing);
}

}  // namespace gluon_roi

static const gluon_roi::InferenceOperator<gluon_roi::DeformableGemmConvolution>
    deformable_gemm_convolution;
