// SPDX-License-Identifier: Apache-2.0
#include "concat.h"

#include "../bindings/any_rank.h"
#include "../cpu/copies.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

ArraySizes Concat::infer(const Params& p, std::vector<ArraySizes>* inputs) {
  const int32_t dim = axis_of(kName, "dim", p.dim, inputs->front());
  ArraySizes common = inputs->front();  // but for the size along dim
  int64_t total = 0;
  for (const ArraySizes& sizes : *inputs) {
    bool fits = sizes.size() == common.size();
    for (size_t axis = 0; fits && axis < sizes.size(); ++axis) {
      if (static_cast<int32_t>(axis) == dim || sizes[axis] < 0) continue;
      if (common[axis] < 0) common[axis] = sizes[axis];
      fits = common[axis] == sizes[axis];
    }
    if (!fits) {
      fail(kName, "data has shapes ", shape_text(common.data(), common.size()), " and ",
           shape_text(sizes.data(), sizes.size()), ", expected equal sizes but for axis ", dim);
    }
    const int64_t size = sizes[dim];
    if (size < 0) total = -1;
    if (total >= 0) total += size;
  }
  for (ArraySizes& sizes : *inputs) {
    const int64_t size = sizes[dim];
    sizes = common;
    sizes[dim] = size;
  }
  common[dim] = total;
  return common;
}

// ---- Kernel -------------------------------------------------------------------------------------

namespace {

// The rows of an input, and where they begin in a row of the output.
struct Piece {
  const float* data;
  int64_t begin, count;
  int64_t end() const { return begin + count; }
};

// Whole rows of the output: all that one input has of them, and then the next.
void copy_short(const std::vector<Piece>& pieces, int64_t rows, int64_t count, float* out) {
  for_each_part(rows, kCopiedByTask / count, 2 * rows * count, [&](int64_t begin, int64_t end) {
    for (const Piece& piece : pieces) {
      copy_rows({piece.data + begin * piece.count, piece.count}, end - begin, piece.count,
                {out + begin * count + piece.begin, count});
    }
  });
}

// Parts of rows of the output.
void copy_long(const std::vector<Piece>& pieces, int64_t rows, int64_t count, float* out) {
  constexpr int64_t kPart = 4 * kCopiedByTask;
  for_each_part(rows * count, kPart, 2 * rows * count, [&](int64_t next, int64_t end) {
    int64_t row = next / count, column = next % count;
    auto piece = std::partition_point(pieces.begin(), pieces.end(),
                                      [&](const Piece& one) { return one.end() <= column; });
    while (next < end) {
      const int64_t copied = std::min(end - next, piece->end() - column);
      memcpy(out + next, piece->data + row * piece->count + column - piece->begin,
             static_cast<size_t>(copied) * sizeof(float));
      next += copied, column += copied;
      if (column == piece->end()) ++piece;
      if (piece == pieces.end()) piece = pieces.begin(), column = 0, ++row;
    }
  });
}

}  // namespace

void Concat::forward(const Params& p, const std::vector<SizedArray>& inputs,
                     const SizedArray& out) {
  const int32_t dim = axis_of(kName, "dim", p.dim, out.sizes);
  std::vector<Piece> pieces;
  int64_t count = 0;
  for (const SizedArray& input : inputs) {
    const AxisSplit split(input.sizes, dim);
    if (split.size * split.after == 0) continue;
    pieces.push_back({input.data, count, split.size * split.after});
    count = pieces.back().end();
  }
  const int64_t rows = AxisSplit(out.sizes, dim).before;
  (count <= kCopiedByTask ? copy_short : copy_long)(pieces, rows, count, out.data);
}

}  // namespace gluon_roi

static const gluon_roi::AnyRankOperator<gluon_roi::Concat> concat;
