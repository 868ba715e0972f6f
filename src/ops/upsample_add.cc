// SPDX-License-Identifier: Apache-2.0
#include "upsample_add.h"

#include "../bindings/inference.h"
#include "../cpu/blocks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

void UpsampleAdd::infer(const Params&, const View& in, Tensor* outputs, int64_t max_elements) {
  check_rank(kName, "low", in.low, 4, "4 dimensions (N, C, h, w)");
  check_rank(kName, "high", in.high, 4, "4 dimensions (N, C, H, W)");
  if (in.high.ndim < 0) return;
  if (in.low.ndim >= 0) {
    for (int axis = 0; axis < 2; ++axis) {
      check_dimension(kName, "low", in.low, axis, in.high.shape[axis], "as high");
    }
    for (int axis = 2; axis < 4; ++axis) {
      const int64_t low = in.low.shape[axis], high = in.high.shape[axis];
      if (low < 0 || high <= 2 * low) continue;
      fail(kName, "high has shape ", shape_text(in.high), ", expected at most ", 2 * low,
           " along axis ", axis, ", twice the size of low");
    }
  }
  check_elements(kName, "output", in.high, max_elements);
  outputs[0] = in.high;
  outputs[0].data = nullptr;
  outputs[0].dtype = GLUON_ROI_FLOAT32;
}

void UpsampleAdd::forward(const Params&, const View& in, const Tensor& out_tensor) {
  const int64_t height = in.high.shape[2], width = in.high.shape[3];
  const int64_t low_width = in.low.shape[3], low_cells = in.low.shape[2] * low_width;
  const float* const lows = data_of<const float>(in.low);
  const float* const highs = data_of<const float>(in.high);
  float* const outs = data_of<float>(out_tensor);
  const int64_t maps = in.high.shape[0] * in.high.shape[1];
  parallel_for(maps, 2 * elements(in.high), [&](int64_t map) {
    using Quad = typename Narrow<float>::Values;
    constexpr int64_t kPair = 2 * Narrow<float>::kSize;  // cells of high that four of low make
    for (int64_t y = 0; y < height; ++y) {
      const float* const low = lows + map * low_cells + y / 2 * low_width;
      const int64_t row = (map * height + y) * width;
      int64_t x = 0;
      for (; x + kPair <= width; x += kPair) {
        Quad values, twice[2];
        load_register(low + x / 2, &values);
        pick(values, values, &twice[0], Exchange<float, 16>::Low{});
        pick(values, values, &twice[1], Exchange<float, 16>::High{});
        for (int i = 0; i < 2; ++i) {
          Quad sums;
          load_register(highs + row + x + i * kPair / 2, &sums);
          sums += twice[i];
          store_register(outs + row + x + i * kPair / 2, sums);
        }
      }
      for (; x < width; ++x) outs[row + x] = highs[row + x] + low[x / 2];
    }
  });
}

}  // namespace gluon_roi

static const gluon_roi::InferenceOperator<gluon_roi::UpsampleAdd> upsample_add;
