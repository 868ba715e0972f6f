// SPDX-License-Identifier: Apache-2.0
// The part of the map that RoIs read.
#pragma once
#include <limits>
#include <vector>

#include "blocks.h"
#include "memory.h"

namespace gluon_roi::cpu {

// A range of consecutive cells, in row-major order or along one axis.
struct Run {
  int64_t begin = std::numeric_limits<int64_t>::max(), end = 0;

  bool empty() const { return begin >= end; }
  int64_t count() const { return end - begin; }
  // The part within [first, last), which may be empty.
  Run clip(int64_t first, int64_t last) const {
    return {std::max(begin, first), std::min(end, last)};
  }
  // Extends the range to include another one.
  void include(const Run& other) {
    begin = std::min(begin, other.begin);
    end = std::max(end, other.end);
  }
  void include(int64_t cell) { include(Run{cell, cell + 1}); }
};

// The cells of each image that its RoIs may read, as runs of consecutive cells in row-major order.
// Kernels pack and sum only these cells, so the cost of a few RoIs on a large map depends on the
// cells that they read.
class Coverage {
 public:
  Coverage() = default;
  explicit Coverage(const Tensor& data)
      : height_(data.shape[2]),
        width_(data.shape[3]),
        columns_(static_cast<size_t>(data.shape[0] * data.shape[2])),
        images_(static_cast<size_t>(data.shape[0])) {}

  // Adds a rectangle of an image, whose cells are read `reads` times in total.
  void add(int64_t image, const Run& rows, const Run& columns, int64_t reads) {
    if (columns.empty()) return;
    images_[image].reads += reads;
    for (int64_t y = rows.begin; y < rows.end; ++y) columns_[image * height_ + y].include(columns);
  }
  // Makes the runs; call it after the last add(). Small gaps are closed, because each run has a
  // cost of its own.
  void finish() {
    for (size_t image = 0; image < images_.size(); ++image) {
      Vector<Run>& runs = images_[image].runs;
      for (int64_t y = 0; y < height_; ++y) {
        const Run& row = columns_[image * height_ + y];
        if (row.empty()) continue;
        const Run run{y * width_ + row.begin, y * width_ + row.end};
        if (!runs.empty() && run.begin - runs.back().end <= kSmallGap) {
          runs.back().end = run.end;
        } else {
          runs.push_back(run);
        }
      }
      for (const Run& run : runs) images_[image].cells += run.count();
    }
  }
  const Vector<Run>& runs(int64_t image) const { return images_[image].runs; }

  // Whether it is faster to read the map directly, channel by channel, than to pack the covered
  // cells into `blocks` channel blocks, for a task with this share of the image's reads and
  // `channels` channels. Directly, each channel costs all reads; packed, all channels together cost
  // them once, and packing a cell of a block costs as much as kReadsToPack reads.
  bool unpacked_is_faster(int64_t image, double share, int64_t blocks, int64_t channels) const {
    constexpr int64_t kReadsToPack = 3;
    const Image& counts = images_[image];
    return static_cast<double>(counts.reads) * share * static_cast<double>(channels - 1) <=
           static_cast<double>(kReadsToPack * blocks * counts.cells);
  }

 private:
  static constexpr int64_t kSmallGap = 32;  // cells

  struct Image {
    Vector<Run> runs;
    int64_t cells = 0;  // in the runs
    int64_t reads = 0;  // of cells, by all bins
  };
  int64_t height_ = 0, width_ = 0;
  Vector<Run> columns_;  // N * H
  Vector<Image> images_;
};

// pack_planes() for the covered cells only.
template <class T, class A, class Simd>
ALWAYS_INLINE void pack_runs(const Vector<Run>& runs, const T* planes, int64_t stride, int lanes,
                             A* block, Simd simd) {
  for (const Run& run : runs) {
    pack_planes(planes + run.begin, stride, lanes, run.count(), block + run.begin * kLanes<A>,
                simd);
  }
}
// Packs the rows of the map before `row`, and a few more, unless they are packed already. Returns
// the number of packed rows. (If RoIs are sorted by their lower edges, most cells that they read
// are still in the cache from packing, and ROIAlign on maps of 200 x 304 takes 0.9 times as long.)
template <class T, class A, class Simd>
ALWAYS_INLINE int64_t pack_rows(const Vector<Run>& runs, int64_t packed, int64_t row, int64_t width,
                                const T* planes, int64_t stride, int lanes, A* block, Simd simd) {
  constexpr int64_t kMore = 7;
  if (row <= packed) return packed;
  row += kMore;
  for (const Run& run : runs) {
    const Run missing = run.clip(packed * width, row * width);
    if (!missing.empty()) {
      pack_planes(planes + missing.begin, stride, lanes, missing.count(),
                  block + missing.begin * kLanes<A>, simd);
    }
  }
  return row;
}
template <class A>
ALWAYS_INLINE void clear_runs(const Vector<Run>& runs, A* block, int lanes = kLanes<A>) {
  for (const Run& run : runs) {
    std::fill(block + run.begin * lanes, block + run.end * lanes, A(0));
  }
}
template <class T, class A, class Simd>
ALWAYS_INLINE void unpack_runs(const Vector<Run>& runs, const A* block, int64_t stride, int lanes,
                               T* planes, Simd simd) {
  for (const Run& run : runs) {
    unpack_planes(block + run.begin * kLanes<A>, stride, lanes, run.count(), planes + run.begin,
                  simd);
  }
}
template <class T>
void clear_others(const Vector<Run>& runs, int64_t stride, int lanes, int64_t cells, T* planes) {
  for (int lane = 0; lane < lanes; ++lane) {
    T* const plane = planes + lane * stride;
    int64_t begin = 0;
    for (const Run& run : runs) {
      std::fill(plane + begin, plane + run.begin, T{});
      begin = run.end;
    }
    std::fill(plane + begin, plane + cells, T{});
  }
}

// Load and store the block of gradients that a kernel adds to. With `accumulate` it starts from the
// gradients in memory; otherwise it starts from 0, and cells that are not covered become 0.
template <class T, class A, class Simd>
ALWAYS_INLINE void begin_gradients(const Vector<Run>& runs, bool accumulate, const T* planes,
                                   int64_t stride, int lanes, A* block, Simd simd) {
  if (accumulate) {
    pack_runs(runs, planes, stride, lanes, block, simd);
  } else {
    clear_runs(runs, block);
  }
}
template <class T, class A, class Simd>
ALWAYS_INLINE void end_gradients(const Vector<Run>& runs, bool accumulate, const A* block,
                                 int64_t stride, int lanes, int64_t cells, T* planes, Simd simd) {
  if (!accumulate) clear_others(runs, stride, lanes, cells, planes);
  unpack_runs(runs, block, stride, lanes, planes, simd);
}

}  // namespace gluon_roi::cpu
