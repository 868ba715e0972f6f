// SPDX-License-Identifier: Apache-2.0
// The rows of rois, decoded and checked once per call.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "../core/geometry/roi_decode.h"
#include "memory.h"

namespace gluon_roi::cpu {

// A range of RoIs in the table's order, whose taps or bins are in memory at the same time
// (DESIGN.md, "Chunks").
struct Chunk {
  int64_t begin, end;
  int64_t count() const { return end - begin; }
  bool empty() const { return begin >= end; }
  // The tables of a chunk are made in parallel shares: one for every 32 RoIs, but at most 16.
  int64_t shares() const { return std::min<int64_t>(div_up(count(), 32), 16); }
  Chunk share(int64_t i) const {
    return Chunk{begin + count() * i / shares(), begin + count() * (i + 1) / shares()};
  }
  // The chunk after this one, out of `rois` RoIs.
  Chunk next(int64_t rois, int64_t at_a_time) const {
    return Chunk{end, end + std::min(at_a_time, rois - end)};
  }
};

// All rows of rois, and the valid ones sorted by image; within an image they keep their order.
template <class G>
struct RoiTable {
  Vector<Roi<G>> rois;    // K
  Vector<int64_t> order;  // row indices of the valid RoIs, sorted by image
  Vector<int64_t> begin;  // N + 1 offsets into order
  RoiRows rows{};         // what was decoded

  RoiTable() = default;
  RoiTable(const char* op, const RoiArrays& in, int32_t bad_index)
      : rows(RoiRows::make(in, bad_index == GLUON_ROI_BAD_INDEX_PADDING)) {
    rois.resize(static_cast<size_t>(rows.count));
    begin.assign(static_cast<size_t>(rows.images) + 1, 0);
    if (rows.counts != nullptr) check_counts(op, rows);
    for (int64_t k = 0; k < rows.count; ++k) {
      const Roi<G>& roi = rois[k] = rows.template decode<G>(k);
      if (roi.state == RoiState::kBadBatch) {
        const double index = rows.batch_index(k);
        const bool fraction = std::isfinite(index) && index != std::floor(index);
        fail(op, "rois row ", k, " has batch index ", index, ", expected an integer below ",
             rows.images, " (the batch size of data), or negative for a padding row",
             fraction ? "; quantization has to exclude 'Concat', 'slice_axis' and 'SliceChannel' "
                        "(docs/switch_reference.md)"
                      : "");
      }
      if (roi.state == RoiState::kValid) ++begin[roi.image + 1];
    }
    for (int64_t i = 0; i < rows.images; ++i) begin[i + 1] += begin[i];
    order.resize(static_cast<size_t>(begin[rows.images]));
    Vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (int64_t k = 0; k < rows.count; ++k) {
      if (rois[k].state == RoiState::kValid) order[next[rois[k].image]++] = k;
    }
  }

  // A table with the same rows, whose `order` has only the rows for which keep(row) is true.
  template <class Keep>
  RoiTable only(const Keep& keep) const {
    RoiTable kept;
    kept.rois = rois;
    kept.rows = rows;
    kept.begin.push_back(0);
    for (size_t image = 0; image + 1 < begin.size(); ++image) {
      for (int64_t i = begin[image]; i < begin[image + 1]; ++i) {
        if (keep(order[i])) kept.order.push_back(order[i]);
      }
      kept.begin.push_back(static_cast<int64_t>(kept.order.size()));
    }
    return kept;
  }

  // Sorts the RoIs of each image by their lower edges, so that most of the cells that a RoI reads
  // are in the cache already. Use it only if the result does not depend on the order.
  void sort_by_lower_edge() {
    for (size_t image = 0; image + 1 < begin.size(); ++image) {
      std::sort(order.begin() + begin[image], order.begin() + begin[image + 1],
                [&](int64_t a, int64_t b) { return rois[a].y2() < rois[b].y2(); });
    }
  }

  int64_t count() const { return static_cast<int64_t>(order.size()); }
  // The RoIs of a chunk that belong to an image.
  ALWAYS_INLINE Chunk of_image(int64_t image, const Chunk& chunk) const {
    return Chunk{std::max(begin[image], chunk.begin), std::min(begin[image + 1], chunk.end)};
  }

  // The output row of a row of rois.
  ALWAYS_INLINE int64_t output_row(int64_t k) const { return k % rows.per_list; }

  // The row `steps` after order[i], or the last one, for prefetching. Tasks with little work per
  // RoI look kFarAhead.
  static constexpr int64_t kFarAhead = 4;
  ALWAYS_INLINE int64_t ahead(int64_t i, int64_t steps = 1) const {
    const int64_t last = count() - 1;
    return order[i + steps < last ? i + steps : last];
  }

  // Fills the output rows of RoIs that are not valid: 0 for padding rows, NaN for boxes that are
  // not finite.
  template <class T>
  void fill_special_rows(T* out, int64_t row_size) const {
    for (size_t k = 0; k < rois.size(); ++k) {
      if (rois[k].state == RoiState::kValid) continue;
      const SumOf<T> value = rois[k].state == RoiState::kPadding
                                 ? SumOf<T>(0)
                                 : std::numeric_limits<SumOf<T>>::quiet_NaN();
      T* row = out + static_cast<int64_t>(k) * row_size;
      for (int64_t i = 0; i < row_size; ++i) store(row + i, value);
    }
  }

 private:
  static void check_counts(const char* op, const RoiRows& rows) {
    double sum = 0;
    for (int64_t i = 0; i < rows.images; ++i) {
      const double count = RoiRows::element(rows.counts, rows.counts_dtype, i);
      if (!(count >= 0) || count != std::floor(count) || std::isinf(count)) {
        fail(op, "rois_num of image ", i, " is ", count, ", expected a whole number >= 0");
      }
      sum += count;
    }
    if (sum != static_cast<double>(rows.count)) {
      fail(op, "rois_num sums to ", sum, ", expected ", rows.count, " (the rows of rois)");
    }
  }
};

// The number of RoIs in a chunk, whose tables take `bytes` each: their size is at most half of the
// map's. It is at least kMinRois, because each chunk packs the map again.
template <class T>
int64_t rois_at_a_time(const Tensor& data, int64_t bytes) {
  constexpr int64_t kMinRois = 128;
  return std::max(kMinRois, elements(data) * static_cast<int64_t>(sizeof(SumOf<T>)) / 2 / bytes);
}
// The same for backward passes. float16 has a single chunk, because its gradients are summed in
// float32 and would be rounded between chunks.
template <class T>
int64_t gradients_at_a_time(const Tensor& data, int64_t bytes) {
  return std::is_same<T, SumOf<T>>::value ? rois_at_a_time<T>(data, bytes)
                                          : std::numeric_limits<int64_t>::max();
}

// Calls body(chunk) for each chunk in turn; once with an empty chunk if there are no RoIs.
template <class Body>
void for_each_chunk(int64_t rois, int64_t at_a_time, const Body& body) {
  Chunk chunk{0, 0};
  do {
    chunk = chunk.next(rois, at_a_time);
    body(chunk);
  } while (chunk.end < rois);
}

}  // namespace gluon_roi::cpu
