// SPDX-License-Identifier: Apache-2.0
#include "depth_to_space.h"

#include "../bindings/inference.h"
#include "../cpu/blocks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

void DepthToSpace::infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements) {
  check_rank(kName, "data", in, 4, "4 dimensions (N, block_size^2 * C, H, W)");
  if (in.ndim < 0) return;
  const int64_t side = p.block_size, cells = side * side;
  Tensor out = in;
  if (in.shape[1] >= 0) {
    if (in.shape[1] % cells != 0) {
      fail(kName, "data has ", in.shape[1],
           " channels, expected a multiple of block_size^2 = ", cells);
    }
    out.shape[1] = in.shape[1] / cells;
  }
  for (int axis = 2; axis < 4; ++axis) {
    if (in.shape[axis] >= 0 &&
        !multiply_up_to(max_elements, in.shape[axis], side, &out.shape[axis])) {
      fail(kName, "output is too large: data has shape ", shape_text(in), ", block_size is ", side);
    }
  }
  check_elements(kName, "output", out, max_elements);
  out.dtype = GLUON_ROI_FLOAT32;
  out.data = nullptr;
  outputs[0] = out;
}

// ---- Kernel -------------------------------------------------------------------------------------

// out[2 * x] = even[x] and out[2 * x + 1] = odd[x].
static ALWAYS_INLINE void interleave(const float* even, const float* odd, int64_t count,
                                     float* out) {
  using Quad = typename Narrow<float>::Values;
  constexpr int64_t kSize = Narrow<float>::kSize;
  int64_t x = 0;
  for (; x + kSize <= count; x += kSize) {
    Quad first, second, low, high;
    load_register(even + x, &first);
    load_register(odd + x, &second);
    pick(first, second, &low, Picked<0, 4, 1, 5>{});
    pick(first, second, &high, Picked<2, 6, 3, 7>{});
    store_register(out + 2 * x, low);
    store_register(out + 2 * x + kSize, high);
  }
  for (; x < count; ++x) out[2 * x] = even[x], out[2 * x + 1] = odd[x];
}

void DepthToSpace::forward(const Params& p, const View& in, const Tensor& out_tensor) {
  const int64_t side = p.block_size, channels = out_tensor.shape[1];
  const int64_t height = in.shape[2], width = in.shape[3], cells = height * width;
  const float* const data = data_of<const float>(in);
  float* const out = data_of<float>(out_tensor);
  // A task is a map of the output.
  parallel_for(in.shape[0] * channels, elements(in), [&](int64_t task) {
    const int64_t image = task / channels, channel = task % channels;
    const float* const first = data + (image * side * side * channels + channel) * cells;
    float* row = out + task * side * side * cells;
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t a = 0; a < side; ++a, row += side * width) {
        // The rows of the tiles' cells (a, b) are `step` apart.
        const float* const from = first + a * side * channels * cells + y * width;
        const int64_t step = channels * cells;
        if (side == 2) {
          interleave(from, from + step, width, row);
          continue;
        }
        for (int64_t b = 0; b < side; ++b) {
          for (int64_t x = 0; x < width; ++x) row[x * side + b] = from[b * step + x];
        }
      }
    }
  });
}

}  // namespace gluon_roi

static const gluon_roi::InferenceOperator<gluon_roi::DepthToSpace> depth_to_space;
