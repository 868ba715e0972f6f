// SPDX-License-Identifier: Apache-2.0
// The kernels that fill the tables: with a thread block per RoI and a thread per bin of an axis, or
// with a thread block per image. They write only to the workspace.
#include "tables.h"

namespace gluon_roi::cuda {

RoiTable::RoiTable(WorkspaceArena* arena, const RoiArrays& in, int32_t bin_rows,
                   int32_t bin_columns, int32_t bad_index, int64_t classes_of_pairs)
    : rows(RoiRows::make(in, bad_index == GLUON_ROI_BAD_INDEX_PADDING)),
      classes(classes_of_pairs),
      pooled_height(bin_rows),
      pooled_width(bin_columns),
      maps(in.count),
      heights{},
      widths{},
      height(0),
      width(0) {
  const int64_t limit = std::numeric_limits<int32_t>::max();
  for (int32_t i = 0; i < maps; ++i) {
    const Tensor& map = in.maps[i];
    if (all_pairs() > limit || all_images() * maps >= limit || map.shape[2] >= limit ||
        map.shape[3] >= limit) {
      fail(arena->op, "data has shape ", shape_text(map), " and there are ", all_pairs(),
           " rois, expected less than ", limit, " images, rows, columns and rois on a GPU");
    }
    heights[i] = static_cast<int32_t>(map.shape[2]);
    widths[i] = static_cast<int32_t>(map.shape[3]);
    height = std::max(height, heights[i]);
    width = std::max(width, widths[i]);
  }
  if (static_cast<int64_t>(pooled_height) * pooled_width > limit) {
    fail(arena->op, "argument pooled_size: expected at most ", limit, " bins on a GPU, got ",
         pooled_height, " * ", pooled_width);
  }
  extents = arena->take<RoiExtent>(all_pairs());
}

// ---- Bins ---------------------------------------------------------------------------------------

namespace {

constexpr int kTableThreads = 64;

__global__ void __launch_bounds__(kTableThreads)
    bin_kernel(BinTable tables, BinRule rule, float scale) {
  const int64_t k = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const Roi<float> roi = tables.rows.decode<float>(k);
  RoiExtent extent{};
  extent.state = roi.state;
  if (roi.state == RoiState::kValid) {
    const BinAxis y =
        BinAxis::make(rule, roi.y1(), roi.y2(), scale, tables.pooled_height, tables.height);
    const BinAxis x =
        BinAxis::make(rule, roi.x1(), roi.x2(), scale, tables.pooled_width, tables.width);
    int32_t* edges = tables.row_edges(k);
    for (int i = thread; i < tables.pooled_height + tables.pooled_width; i += kTableThreads) {
      const bool column = i >= tables.pooled_height;
      const BinAxis& axis = column ? x : y;
      const int bin = column ? i - tables.pooled_height : i;
      edges[2 * i] = axis.begin(bin);
      edges[2 * i + 1] = axis.end(bin);
    }
    extent.image = static_cast<int32_t>(roi.image);
    // Both edges increase with the bin.
    extent.y_begin = y.begin(0);
    extent.y_end = y.end(tables.pooled_height - 1);
    extent.x_begin = x.begin(0);
    extent.x_end = x.end(tables.pooled_width - 1);
  }
  if (thread == 0) tables.extents[k] = extent;
}

}  // namespace

void BinTable::build(const Gpu& gpu, BinRule rule, double spatial_scale) const {
  launch(gpu, bin_kernel, rows.count, kTableThreads, *this, rule,
         static_cast<float>(spatial_scale));
}

// ---- Taps ---------------------------------------------------------------------------------------

namespace {

// Calls emit(tap) with the mean over the samples, unless it is 0.
template <class AnyTap, class G, class Emit>
DEVICE_INLINE void emit_mean(const GradientTap<G>& sum, G samples, const Emit& emit) {
  const AnyTap tap(sum.mean(samples));
  if (!tap.is_zero()) emit(tap);
}

// Calls emit(tap) for the cells of bin q, in ascending order. The samples of a bin follow the
// axis in one direction, so two running sums suffice: for the two cells of the latest sample.
template <class AnyTap, class G, class Emit>
DEVICE_INLINE void for_each_tap(const SampleAxis<G>& axis, int q, const Emit& emit) {
  int64_t first, last;
  axis.sample_range(q, &first, &last);
  GradientTap<G> low{}, high{};
  low.cell = high.cell = -2;
  const auto flush = [&](const GradientTap<G>& sum) {
    emit_mean<AnyTap>(sum, axis.divisor(), emit);
  };
  for (int64_t n = 0; n <= last - first; ++n) {
    const int64_t i = axis.bin < 0 ? last - n : first + n;
    const Sample<G> s = axis.sample(q, i);
    if (!s.inside) continue;
    if (s.low != low.cell) {
      flush(low);
      if (s.low == low.cell + 1) {
        low = high;
      } else {
        flush(high);
        low = GradientTap<G>{};
        low.cell = s.low;
      }
      high = GradientTap<G>{};
      high.cell = s.low + 1;
    }
    // At the far border `low` and `high` are the same cell, and the weight of `high` is 0.
    low.weight += s.low_weight;
    high.weight += s.high_weight;
    if (s.clamped) continue;
    G d_lo, d_hi;
    axis.coordinate_gradient(q, i, &d_lo, &d_hi);
    low.d_lo -= d_lo;
    low.d_hi -= d_hi;
    high.d_lo += d_lo;
    high.d_hi += d_hi;
  }
  flush(low);
  flush(high);
}
template <class AnyTap, class G, class Emit>
DEVICE_INLINE void for_each_tap(const PreciseAxis<G>& axis, int q, const Emit& emit) {
  axis.for_each_weight(q, [&](int32_t cell, G weight, G d_lo, G d_hi) {
    emit_mean<AnyTap>(GradientTap<G>{cell, weight, d_lo, d_hi}, axis.divisor(), emit);
  });
}

// Returns list[i] by comparisons, because indexing a kernel parameter with a variable makes the
// compiler copy it to local memory.
template <class X>
DEVICE_INLINE X select(const X (&list)[GLUON_ROI_MAX_MAPS], int32_t i) {
  X value = list[0];
#pragma unroll
  for (int32_t j = 1; j < GLUON_ROI_MAX_MAPS; ++j) value = j == i ? list[j] : value;
  return value;
}

template <class G, class AnyTap, class Rule>
__global__ void __launch_bounds__(kTableThreads) tap_kernel(TapTable<G, AnyTap> tables, Rule rule) {
  const int64_t k = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const Roi<G> roi = tables.rows.template decode<G>(k);
  if (roi.state != RoiState::kValid) {
    if (thread == 0) {
      RoiExtent extent{};
      extent.state = roi.state;
      tables.extents[k] = extent;
    }
    return;
  }
  const int32_t map = tables.pyramid.map_of(tables.rows, k);
  const int32_t height = select(tables.heights, map), width = select(tables.widths, map);
  rule.spatial_scale = select(tables.pyramid.scale, map);
  const auto for_each_tap_of = [&](bool column, int q, const auto& emit) {
    for_each_tap<AnyTap>(column ? rule.axis(roi.x1(), roi.x2(), tables.pooled_width, width)
                                : rule.axis(roi.y1(), roi.y2(), tables.pooled_height, height),
                         q, emit);
  };
  // The offsets, taps and number of bins of one axis.
  const TapView<AnyTap> view = tables.by_bins(k);
  const auto begin_of = [&](bool column) { return column ? view.x_begin : view.y_begin; };
  const auto taps_of = [&](bool column) { return column ? view.x_taps : view.y_taps; };
  const auto axis_bins_of = [&](bool column) {
    return column ? tables.pooled_width : tables.pooled_height;
  };
  // Calls body(column, q) for the bins of both axes, with a thread for each.
  const auto for_each_bin = [&](const auto& body) {
    for (int i = thread; i < tables.pooled_height + tables.pooled_width; i += kTableThreads) {
      const bool column = i >= tables.pooled_height;
      body(column, column ? i - tables.pooled_height : i);
    }
  };

  // 1. Count the taps of each bin.
  for_each_bin([&](bool column, int q) {
    int32_t count = 0;
    for_each_tap_of(column, q, [&](const AnyTap&) { ++count; });
    begin_of(column)[q + 1] = count;
  });
  __syncthreads();
  // 2. Turn the counts into offsets; one thread per axis computes the prefix sum.
  if (thread < 2) {
    int32_t* begin = begin_of(thread == 1);
    const int32_t max_taps =
        static_cast<int32_t>(thread == 1 ? tables.max_taps_x : tables.max_taps_y);
    int32_t sum = begin[0] = 0;
    for (int q = 1; q <= axis_bins_of(thread == 1); ++q) {
      // Clamped, so that nothing is written past the end whatever the rounding.
      sum = begin[q] < max_taps - sum ? sum + begin[q] : max_taps;
      begin[q] = sum;
    }
  }
  __syncthreads();
  // 3. Write the taps.
  for_each_bin([&](bool column, int q) {
    int32_t next = begin_of(column)[q];
    const int32_t end = begin_of(column)[q + 1];
    AnyTap* taps = taps_of(column);
    for_each_tap_of(column, q, [&](const AnyTap& tap) {
      if (next < end) taps[next++] = tap;
    });
  });
  __syncthreads();
  // 4. Find the cells [low, high) of each axis for the RoI's extent.
  __shared__ int32_t low[2], high[2];
  if (thread < 2) {
    const int32_t* begin = begin_of(thread == 1);
    const AnyTap* taps = taps_of(thread == 1);
    int32_t min_cell = 0x7fffffff, max_cell = -1;
    for (int q = 0; q < axis_bins_of(thread == 1); ++q) {
      if (begin[q] == begin[q + 1]) continue;
      const int32_t first = static_cast<int32_t>(taps[begin[q]].cell);
      const int32_t last = static_cast<int32_t>(taps[begin[q + 1] - 1].cell);
      if (first < min_cell) min_cell = first;
      if (last > max_cell) max_cell = last;
    }
    low[thread] = max_cell < 0 ? 0 : min_cell;
    high[thread] = max_cell + 1;
  }
  __syncthreads();
  if (thread == 0) {
    tables.extents[k] = RoiExtent{
        roi.state, map, static_cast<int32_t>(roi.image), low[0], high[0], low[1], high[1]};
  }
  // 5. Sort the taps by cell, if this is requested.
  if (tables.cell_begin == nullptr) return;
  const TapView<BinTap<G>> cells = tables.by_cells(k);
  for (int axis = 0; axis < 2; ++axis) {
    const int32_t* begin = begin_of(axis == 1);
    const AnyTap* taps = taps_of(axis == 1);
    int32_t* cell_begin = axis == 1 ? cells.x_begin : cells.y_begin;
    BinTap<G>* cell_taps = axis == 1 ? cells.x_taps : cells.y_taps;
    // The list of a cell begins after the taps of all lower cells.
    for (int32_t cell = low[axis] + thread; cell <= high[axis]; cell += kTableThreads) {
      int32_t next = 0;
      for (int q = 0; q < axis_bins_of(axis == 1); ++q) {
        next += lower_bound(taps, begin[q], begin[q + 1], cell) - begin[q];
      }
      cell_begin[cell] = next;
      for (int q = 0; q < axis_bins_of(axis == 1); ++q) {
        const int32_t found = lower_bound(taps, begin[q], begin[q + 1], cell);
        if (found == begin[q + 1] || taps[found].cell != cell) continue;
        cell_taps[next++] = BinTap<G>{q, taps[found].weight};
      }
    }
  }
}

}  // namespace

template <class G, class AnyTap>
template <class Rule>
void TapTable<G, AnyTap>::build(const Gpu& gpu, const Rule& rule) const {
  launch(gpu, tap_kernel<G, AnyTap, Rule>, rows.count, kTableThreads, *this, rule);
}

#define BUILDS_FOR(Rule, G)                                                \
  template void TapTable<G, Tap<G>>::build(const Gpu&, const Rule&) const; \
  template void TapTable<G, GradientTap<G>>::build(const Gpu&, const Rule&) const;
BUILDS_FOR(SampleRule, float)
BUILDS_FOR(SampleRule, double)
BUILDS_FOR(PreciseRule, float)
BUILDS_FOR(PreciseRule, double)

// ---- Lists --------------------------------------------------------------------------------------

namespace {

constexpr int kListThreads = 256;

// A thread block for each image of each map. Each thread processes consecutive rows, which keeps
// their order.
__global__ void __launch_bounds__(kListThreads)
    list_kernel(const RoiExtent* extents, int64_t rows, int64_t images, int64_t all_images,
                RoiLists lists) {
  const int64_t image = blockIdx.x;
  const auto image_of = [&](const RoiExtent& extent) { return extent.map * images + extent.image; };
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t run = div_up(rows, kListThreads);
  const int64_t first = run * thread;
  const int64_t stop = first + run < rows ? first + run : rows;
  // 1. Count each thread's rows that belong to earlier images and to this one.
  __shared__ int32_t before[kListThreads], inside[kListThreads];
  int32_t thread_before = 0, thread_inside = 0;
  for (int64_t k = first; k < stop; ++k) {
    if (extents[k].state != RoiState::kValid) continue;
    thread_before += image_of(extents[k]) < image;
    thread_inside += image_of(extents[k]) == image;
  }
  before[thread] = thread_before;
  inside[thread] = thread_inside;
  // 2. Prefix sums over the threads.
  for (int step = 1; step < kListThreads; step *= 2) {
    __syncthreads();
    const int32_t add_before = thread >= step ? before[thread - step] : 0;
    const int32_t add_inside = thread >= step ? inside[thread - step] : 0;
    __syncthreads();
    before[thread] += add_before;
    inside[thread] += add_inside;
  }
  __syncthreads();
  // 3. Write the list.
  const int32_t begin = before[kListThreads - 1];
  int32_t next = begin + inside[thread] - thread_inside;
  for (int64_t k = first; k < stop; ++k) {
    if (extents[k].state == RoiState::kValid && image_of(extents[k]) == image) {
      lists.order[next++] = static_cast<int32_t>(k);
    }
  }
  if (thread == 0) {
    lists.begin[image] = begin;
    if (image == all_images - 1) lists.begin[all_images] = begin + inside[kListThreads - 1];
  }
}

}  // namespace

void RoiLists::build(const Gpu& gpu, const RoiTable& tables) const {
  const int64_t images = tables.all_images(), all_images = images * tables.maps;
  launch(gpu, list_kernel, all_images, kListThreads, tables.extents, tables.all_pairs(), images,
         all_images, *this);
}

}  // namespace gluon_roi::cuda
