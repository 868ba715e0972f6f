// SPDX-License-Identifier: Apache-2.0
#include "transpose.h"

#include "../bindings/any_rank.h"
#include "../cpu/blocks.h"
#include "../cpu/copies.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

ArraySizes Transpose::infer(const Params& p, std::vector<ArraySizes>* inputs) {
  const ArraySizes& in = inputs->front();
  if (in.size() != static_cast<size_t>(p.count)) {
    fail(kName, "data has shape ", shape_text(in.data(), in.size()), ", expected ", p.count,
         " dimensions, as many as axes");
  }
  ArraySizes out;
  for (int32_t i = 0; i < p.count; ++i) out.push_back(in[p.axes[i]]);
  return out;
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

// An axis of the output: its size, and how far apart its neighbours are in data and in out.
struct Axis {
  int64_t size, from, to;
};

// The axes of the output. Axes of size 1 are left out, and axes that are neighbours in data as well
// are joined.
std::vector<Axis> axes_of(const Transpose::Params& p, const ArraySizes& in) {
  std::vector<Axis> axes;
  for (int32_t i = 0; i < p.count; ++i) {
    const AxisSplit split(in, p.axes[i]);
    if (split.size == 1) continue;
    if (!axes.empty() && axes.back().from == split.size * split.after) {
      axes.back() = {axes.back().size * split.size, split.after, 0};
    } else {
      axes.push_back({split.size, split.after, 0});
    }
  }
  int64_t step = 1;
  for (auto axis = axes.rbegin(); axis != axes.rend(); step *= axis->size, ++axis) axis->to = step;
  return axes;
}

// The places in data and out of an index into the product of axes, of which the last is the
// fastest.
struct Place {
  int64_t from = 0, to = 0;

  Place(const std::vector<Axis>& axes, int64_t index) {
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      from += index % axis->size * axis->from;
      to += index % axis->size * axis->to;
      index /= axis->size;
    }
  }
};

int64_t product(const std::vector<Axis>& axes) {
  int64_t size = 1;
  for (const Axis& axis : axes) size *= axis.size;
  return size;
}

// Copies rows of `count` numbers, which are neighbours in data and in out.
void copy_runs(const std::vector<Axis>& axes, int64_t count, const float* data, float* out) {
  const Axis inner = axes.back();
  const int64_t rows = product(axes);
  for_each_part(rows, kCopiedByTask / count, 2 * rows * count, [&](int64_t row, int64_t end) {
    while (row < end) {
      const Place place(axes, row);
      const int64_t copied = std::min(end - row, inner.size - row % inner.size);
      copy_rows({data + place.from, inner.from}, copied, count, {out + place.to, inner.to});
      row += copied;
    }
  });
}

// to[j * to_step + i] = from[i * from_step + j] for i < rows and j < columns.
template <int64_t rows>
void transpose_rows(const float* from, int64_t from_step, int64_t columns, float* to,
                    int64_t to_step) {
  for (int64_t j = 0; j < columns; ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      memcpy(to + j * to_step + i, from + i * from_step + j, sizeof(float));
    }
  }
}
// The same for fewer rows than a square has.
void transpose_rows(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to,
                    int64_t to_step) {
  if (rows == 1) transpose_rows<1>(from, from_step, columns, to, to_step);
  if (rows == 2) transpose_rows<2>(from, from_step, columns, to, to_step);
  if (rows == 3) transpose_rows<3>(from, from_step, columns, to, to_step);
}

// The same for any number of rows.
void transpose_tile(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to,
                    int64_t to_step) {
  using Square = Narrow<float>;
  constexpr int64_t kSide = Square::kSize, kStrip = 64 / sizeof(float);  // a cache line of data
  const int64_t square_rows = rows / kSide * kSide, square_columns = columns / kSide * kSide;
  for (int64_t strip = 0; strip < square_columns; strip += kStrip) {
    const int64_t strip_end = std::min(strip + kStrip, square_columns);
    for (int64_t i = 0; i < square_rows; i += kSide) {
      for (int64_t j = strip; j < strip_end; j += kSide) {
        Square::transpose(from + i * from_step + j, from_step, to + j * to_step + i, to_step);
      }
    }
  }
  for (int64_t j = square_columns; j < columns; ++j) {
    for (int64_t i = 0; i < square_rows; ++i) {
      memcpy(to + j * to_step + i, from + i * from_step + j, sizeof(float));
    }
  }
  transpose_rows(from + square_rows * from_step, from_step, rows - square_rows, columns,
                 to + square_rows, to_step);
}

// Exchanges the last axis of out, `inner`, with `other`, whose numbers are neighbours in data, for
// each place of `outer`.
void exchange(const std::vector<Axis>& outer, const Axis& other, const Axis& inner,
              const float* data, float* out) {
  const int64_t rows = std::min<int64_t>(inner.size, 256);
  const int64_t columns = std::min(other.size, round_up(div_up(4 * kCopiedByTask, rows), 16));
  // A task is a tile of rows x columns numbers of data.
  const Axis row_tiles{div_up(inner.size, rows), rows * inner.from, rows};
  const Axis column_tiles{div_up(other.size, columns), columns, columns * other.to};
  std::vector<Axis> tiles = outer;
  tiles.insert(tiles.end(), {column_tiles, row_tiles});
  const int64_t work = 2 * product(outer) * other.size * inner.size;
  parallel_for(product(tiles), work, [&](int64_t tile) {
    const Place place(tiles, tile);
    const int64_t row = tile % row_tiles.size * rows;
    const int64_t column = tile / row_tiles.size % column_tiles.size * columns;
    transpose_tile(data + place.from, inner.from, std::min(rows, inner.size - row),
                   std::min(columns, other.size - column), out + place.to, other.to);
  });
}

}  // namespace

void Transpose::forward(const Params& p, const std::vector<SizedArray>& inputs,
                        const SizedArray& out) {
  const float* const data = inputs[0].data;
  std::vector<Axis> axes = axes_of(p, inputs[0].sizes);
  if (axes.size() < 2) {  // nothing moves
    const int64_t numbers = product(axes);
    for_each_part(numbers, 4 * kCopiedByTask, 2 * numbers, [&](int64_t begin, int64_t end) {
      copy_rows({data + begin, 0}, 1, end - begin, {out.data + begin, 0});
    });
    return;
  }
  const Axis inner = axes.back();
  axes.pop_back();
  if (inner.from == 1) return copy_runs(axes, inner.size, data, out.data);
  const auto other =
      std::find_if(axes.begin(), axes.end(), [](const Axis& axis) { return axis.from == 1; });
  const Axis exchanged = *other;
  axes.erase(other);
  exchange(axes, exchanged, inner, data, out.data);
}

}  // namespace gluon_roi

static const gluon_roi::AnyRankOperator<gluon_roi::Transpose> transpose;
