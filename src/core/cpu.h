// What the CPU kernels share: threads, instruction sets chosen at run time, the decoded RoIs, and
// the transposition of 16 channel planes into one channel-last block.
#pragma once
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "geometry.h"

namespace gluon_roi {

// Where an operator runs: plain overloads, so that a forgotten CUDA half is a link error.
struct Cpu {};

// ---- Instruction sets ---------------------------------------------------------------------------

enum class SimdLevel : int { kSse2, kAvx2, kAvx512 };

// The best level of this processor, or the lower one that GLUON_ROI_SIMD names; decided once.
SimdLevel simd_level();
const char* simd_name(SimdLevel level);

// Runs body() compiled for the chosen level. Everything that body calls must be GR_INLINE: a
// function that is not inlined stays at the baseline, correct but slow. One source serves all
// levels, and without fused multiply-adds (-ffp-contract=off) all of them give the same bytes.
template <class Body>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c,prefer-vector-width=512"))) void
run_avx512(const Body& body) {
  body();
}
template <class Body>
__attribute__((target("avx2,f16c"))) void run_avx2(const Body& body) {
  body();
}
template <class Body>
void run_simd(const Body& body) {
  switch (simd_level()) {
    case SimdLevel::kAvx512: return run_avx512(body);
    case SimdLevel::kAvx2: return run_avx2(body);
    default: return body();
  }
}
// A lambda for run_simd: run_simd([&]() GR_KERNEL { ... });
#define GR_KERNEL __attribute__((always_inline))

// ---- Threads ------------------------------------------------------------------------------------

// Runs body(task) for every task in [0, tasks), on the threads that MXNet gives this operator, or
// on one if `work`, the number of elements touched, is too small to pay for waking a second.
// Tasks own disjoint outputs, so the number of threads never shows in the result.
void parallel_for_impl(int64_t tasks, int64_t work, void (*run)(const void*, int64_t),
                       const void* body);
template <class Body>
void parallel_for(int64_t tasks, int64_t work, const Body& body) {
  parallel_for_impl(
      tasks, work,
      [](const void* self, int64_t task) { (*static_cast<const Body*>(self))(task); }, &body);
}

// Scratch memory of this thread, kept between calls; contents are undefined.
void* thread_scratch(size_t bytes);
template <class A>
A* scratch(int64_t count) {
  return static_cast<A*>(thread_scratch(static_cast<size_t>(count) * sizeof(A)));
}

// ---- RoIs ---------------------------------------------------------------------------------------

inline RoiRows roi_rows(const Inputs& in) {
  RoiRows rows{};
  rows.rois = in.rois.data;
  rows.dtype = in.rois.dtype;
  rows.counts = in.rois_num.data;
  rows.counts_dtype = in.rois_num.dtype;
  rows.columns = static_cast<int32_t>(in.rois.shape[in.rois.ndim - 1]);
  rows.per_image = in.rois.ndim == 3 ? in.rois.shape[1] : 0;
  rows.rows = in.rois.ndim == 3 ? in.rois.shape[0] * in.rois.shape[1] : in.rois.shape[0];
  rows.images = in.data.shape[0];
  return rows;
}

// All rows decoded and checked, and sorted by image; within an image in the order given.
template <class G>
struct RoiTable {
  std::vector<Roi<G>> rois;    // K
  std::vector<int64_t> order;  // row numbers of the valid RoIs, by image
  std::vector<int64_t> begin;  // N + 1 offsets into order

  RoiTable(const char* op, const Inputs& in) {
    const RoiRows rows = roi_rows(in);
    rois.resize(static_cast<size_t>(rows.rows));
    begin.assign(static_cast<size_t>(rows.images) + 1, 0);
    if (rows.counts != nullptr) check_counts(op, rows);
    for (int64_t k = 0; k < rows.rows; ++k) {
      const Roi<G>& roi = rois[k] = rows.template row<G>(k);
      if (roi.state == RoiState::kBadBatch) {
        fail(op, "rois row ", k, " has batch index ", rows.batch_index(k),
             ", expected an integer below ", rows.images,
             " (the batch size of data), or negative for a padding row");
      }
      if (roi.state == RoiState::kValid) ++begin[roi.image + 1];
    }
    for (int64_t i = 0; i < rows.images; ++i) begin[i + 1] += begin[i];
    order.resize(static_cast<size_t>(begin[rows.images]));
    std::vector<int64_t> next(begin.begin(), begin.end() - 1);
    for (int64_t k = 0; k < rows.rows; ++k) {
      if (rois[k].state == RoiState::kValid) order[next[rois[k].image]++] = k;
    }
  }

  // Writes the rows of out that belong to no image: 0 for padding, NaN for unusable coordinates.
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
    if (sum != static_cast<double>(rows.rows)) {
      fail(op, "rois_num sums to ", sum, ", expected ", rows.rows, " (the rows of rois)");
    }
  }
};

// ---- Channel blocks -----------------------------------------------------------------------------

// Kernels work on this many channels at once: one AVX-512 register of floats.
constexpr int kLanes = 16;
inline int64_t blocks_of(int64_t channels) { return (channels + kLanes - 1) / kLanes; }

// block[i * kLanes + lane] = planes[lane * stride + i] for i < cells; lanes past `lanes` become 0.
template <class T, class A>
GR_INLINE void pack_planes(const T* planes, int64_t stride, int lanes, int64_t cells, A* block) {
  if (lanes < kLanes) std::fill(block, block + cells * kLanes, A(0));
  // Runs of 16 cells keep both sides in the L1 cache.
  for (int64_t start = 0; start < cells; start += kLanes) {
    const int64_t stop = start + kLanes < cells ? start + kLanes : cells;
    for (int lane = 0; lane < lanes; ++lane) {
      const T* plane = planes + lane * stride;
      for (int64_t i = start; i < stop; ++i) block[i * kLanes + lane] = load(plane + i);
    }
  }
}

// The way back: planes[lane * stride + i] = block[i * kLanes + lane].
template <class T, class A>
GR_INLINE void unpack_planes(const A* block, int64_t stride, int lanes, int64_t cells, T* planes) {
  for (int64_t start = 0; start < cells; start += kLanes) {
    const int64_t stop = start + kLanes < cells ? start + kLanes : cells;
    for (int lane = 0; lane < lanes; ++lane) {
      T* plane = planes + lane * stride;
      for (int64_t i = start; i < stop; ++i) store(plane + i, block[i * kLanes + lane]);
    }
  }
}

}  // namespace gluon_roi
