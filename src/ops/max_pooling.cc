// SPDX-License-Identifier: Apache-2.0
#include "max_pooling.h"

#include "../bindings/inference.h"
#include "../cpu/blocks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

void MaxPooling::infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements) {
  check_rank(kName, "data", in, 4, "4 dimensions (N, C, H, W)");
  if (in.ndim < 0) return;
  Tensor out = in;
  const auto set_size = [&](int axis, int64_t kernel, int64_t stride, int64_t pad) {
    const int64_t size = in.shape[axis];
    if (size < 0) return;
    if (size + 2 * pad < kernel) {
      fail(kName, "data has shape ", shape_text(in), ", expected at least ", kernel - 2 * pad,
           " along axis ", axis, ", for the kernel and the pad");
    }
    if (pad >= kernel) {
      fail(kName, "argument pad: expected less than the kernel, ", kernel, ", got ", pad);
    }
    const int64_t steps = size + 2 * pad - kernel;
    out.shape[axis] = (p.pooling_convention == kFull ? div_up(steps, stride) : steps / stride) + 1;
  };
  set_size(2, p.kernel_height, p.stride_height, p.pad_height);
  set_size(3, p.kernel_width, p.stride_width, p.pad_width);
  if (p.keep_maxima) {
    const bool is_same = p.stride_height == 1 && p.stride_width == 1 &&
                         p.kernel_height == 2 * p.pad_height + 1 &&
                         p.kernel_width == 2 * p.pad_width + 1;
    if (!is_same) {
      fail(kName, "argument keep_maxima: expected strides of 1 and a kernel of 2 * pad + 1, got ",
           "stride (", p.stride_height, ", ", p.stride_width, "), kernel (", p.kernel_height, ", ",
           p.kernel_width, ") and pad (", p.pad_height, ", ", p.pad_width, ")");
    }
  }
  check_elements(kName, "output", out, max_elements);
  out.dtype = GLUON_ROI_FLOAT32;
  out.data = nullptr;
  outputs[0] = out;
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

// The greater of two numbers, or of the lanes of two registers; not a NaN in `value`.
template <class Value>
ALWAYS_INLINE void keep_greater(const Value& value, Value* best) {
  *best = value > *best ? value : *best;
}

// Calls body(x, value) for registers that cover [0, count), the last of which overlaps the one
// before, or for single numbers if count is less than a register. `value` is 0 and gives the type.
template <class Register, class Body>
ALWAYS_INLINE void for_each_register(int64_t count, const Body& body) {
  constexpr int64_t kSize = sizeof(Register) / sizeof(float);
  if (count < kSize) {
    for (int64_t x = 0; x < count; ++x) body(x, float{});
    return;
  }
  for (int64_t next = 0; next < count; next += kSize) {
    body(std::min(next, count - kSize), Register{});
  }
}

template <class Simd>
class Pooler {
 public:
  ALWAYS_INLINE Pooler(const MaxPooling::Params& p, const Tensor& in, const Tensor& out)
      : p_(p),
        height_(in.shape[2]),
        width_(in.shape[3]),
        out_height_(out.shape[2]),
        out_width_(out.shape[3]),
        strip_(scratch<float>(strip_size())) {
    std::fill(strip_, strip_ + strip_size(), kLowest<float>);
  }

  ALWAYS_INLINE void pool(const float* map, float* out) {
    for (int64_t p = 0; p < out_height_; ++p) {
      const int64_t top = p * p_.stride_height - p_.pad_height;
      pool_rows(map, std::max<int64_t>(top, 0), std::min(top + p_.kernel_height, height_));
      pool_columns(p_.keep_maxima ? map + p * width_ : nullptr, out + p * out_width_);
    }
  }

 private:
  using Register = typename Lanes<float, Simd>::Register;

  // The strip has the cells that windows read, of which the map's begin at pad_width, and those of
  // a register behind them.
  int64_t strip_size() const {
    const int64_t read = (out_width_ - 1) * p_.stride_width + p_.kernel_width;
    return std::max(read, p_.pad_width + width_) + kLanes<float>;
  }

  // The maximum of rows [begin, end) of a map.
  ALWAYS_INLINE void pool_rows(const float* map, int64_t begin, int64_t end) {
    for_each_register<Register>(width_, [&](int64_t x, auto value) INLINE_LAMBDA {
      auto best = value + kLowest<float>;
      for (int64_t y = begin; y < end; ++y) {
        memcpy(&value, map + y * width_ + x, sizeof(value));
        keep_greater(value, &best);
      }
      memcpy(strip_ + p_.pad_width + x, &best, sizeof(best));
    });
  }

  // The maximum of each window of the strip; or, if `row` is not null, the row's numbers where they
  // equal that maximum, and their products with 0 elsewhere.
  ALWAYS_INLINE void pool_columns(const float* row, float* out) const {
    if (p_.stride_width == 1) {
      for_each_register<Register>(out_width_, [&](int64_t q, auto value) INLINE_LAMBDA {
        const auto zero = value, one = value + 1.f;
        auto best = value + kLowest<float>;
        for (int j = 0; j < p_.kernel_width; ++j) {
          memcpy(&value, strip_ + q + j, sizeof(value));
          keep_greater(value, &best);
        }
        if (row != nullptr) {
          memcpy(&value, row + q, sizeof(value));
          best = value * (value == best ? one : zero);
        }
        memcpy(out + q, &best, sizeof(best));
      });
    } else if (p_.stride_width == 2 && out_width_ >= Narrow<float>::kSize) {
      using Quad = typename Narrow<float>::Values;
      constexpr int64_t kSize = Narrow<float>::kSize;
      for (int64_t next = 0; next < out_width_; next += kSize) {
        const int64_t q = std::min(next, out_width_ - kSize);
        Quad best = Quad{} + kLowest<float>;
        for (int j = 0; j < p_.kernel_width; ++j) {
          Quad low, high, value;
          load_register(strip_ + 2 * q + j, &low);
          load_register(strip_ + 2 * q + j + kSize, &high);
          pick(low, high, &value, Picked<0, 2, 4, 6>{});
          keep_greater(value, &best);
        }
        store_register(out + q, best);
      }
    } else {
      for (int64_t q = 0; q < out_width_; ++q) {
        float best = kLowest<float>;
        for (int j = 0; j < p_.kernel_width; ++j) {
          keep_greater(strip_[q * p_.stride_width + j], &best);
        }
        out[q] = best;
      }
    }
  }

  const MaxPooling::Params& p_;
  const int64_t height_, width_, out_height_, out_width_;
  float* const strip_;
};

}  // namespace

void MaxPooling::forward(const Params& p, const View& in, const Tensor& out_tensor) {
  const int64_t cells = in.shape[2] * in.shape[3];
  const int64_t outputs = out_tensor.shape[2] * out_tensor.shape[3];
  const float* const data = data_of<const float>(in);
  float* const out = data_of<float>(out_tensor);
  const int64_t work = elements(in) * p.kernel_height + elements(out_tensor) * p.kernel_width;
  parallel_for(in.shape[0] * in.shape[1], work, [&](int64_t map) {
    run_simd([&](auto simd) INLINE_LAMBDA {
      Pooler<decltype(simd)>(p, in, out_tensor).pool(data + map * cells, out + map * outputs);
    });
  });
}

}  // namespace gluon_roi

static const gluon_roi::InferenceOperator<gluon_roi::MaxPooling> max_pooling;
