// SPDX-License-Identifier: Apache-2.0
#include "repeat.h"

#include "../bindings/any_rank.h"
#include "../cpu/copies.h"

namespace gluon_roi {

using namespace cpu;

ArraySizes Repeat::infer(const Params& p, std::vector<ArraySizes>* inputs) {
  ArraySizes out = inputs->front();
  int64_t& size = out[axis_of(kName, "axis", p.axis, out)];
  if (size >= 0 && !multiply_up_to(kMaxElementsInMXNet, size, p.repeats, &size)) {
    fail(kName, "output is too large: data has shape ",
         shape_text(inputs->front().data(), out.size()), ", repeats is ", p.repeats);
  }
  return out;
}

void Repeat::forward(const Params& p, const std::vector<SizedArray>& inputs,
                     const SizedArray& out) {
  const float* const data = inputs[0].data;
  const AxisSplit split(inputs[0].sizes, axis_of(kName, "axis", p.axis, out.sizes));
  const int64_t rows = split.before * split.size, repeats = p.repeats, count = split.after;
  const int64_t part = kCopiedByTask / (repeats * count);
  for_each_part(rows, part, (1 + repeats) * rows * count, [&](int64_t begin, int64_t end) {
    float* to = out.data + begin * repeats * count;
    if (count == 1 && repeats == 2) {
      for (int64_t row = begin; row < end; ++row, to += 2) to[0] = to[1] = data[row];
    } else if (count == 1) {
      for (int64_t row = begin; row < end; ++row, to += repeats) {
        std::fill(to, to + repeats, data[row]);
      }
    } else {
      for (int64_t row = begin; row < end; ++row, to += repeats * count) {
        copy_rows({data + row * count, 0}, repeats, count, {to, count});
      }
    }
  });
}

}  // namespace gluon_roi

static const gluon_roi::AnyRankOperator<gluon_roi::Repeat> repeat;
