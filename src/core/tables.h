// What the CPU kernels prepare once a call, from the RoIs and shared by all channels.
#pragma once
#include <limits>
#include <vector>

#include "cpu.h"

namespace gluon_roi {

// ---- RoIs ---------------------------------------------------------------------------------------

// All rows decoded and checked, and sorted by image; within an image in the order given.
template <class G>
struct RoiTable {
  std::vector<Roi<G>> rois;    // K
  std::vector<int64_t> order;  // row numbers of the valid RoIs, by image
  std::vector<int64_t> begin;  // N + 1 offsets into order

  RoiTable(const char* op, const Inputs& in) {
    const RoiRows rows = RoiRows::of(in);
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

  // The row that follows order[i] `steps` later, to be fetched early; the last at the end. Tasks
  // that do little for a RoI have to look kFarAhead.
  static constexpr int64_t kFarAhead = 4;
  GR_INLINE int64_t ahead(int64_t i, int64_t steps = 1) const {
    const int64_t last = static_cast<int64_t>(order.size()) - 1;
    return order[i + steps < last ? i + steps : last];
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

// ---- The part of the map that RoIs touch --------------------------------------------------------

// The cells of each image that its RoIs may read, as runs of consecutive cells in row-major order.
// Kernels pack and sum nothing else, so that few RoIs on a large map cost what they touch.
class Coverage {
 public:
  struct Run {
    int64_t begin, end;
  };

  explicit Coverage(const Tensor& data)
      : height_(data.shape[2]),
        width_(data.shape[3]),
        columns_(static_cast<size_t>(data.shape[0] * data.shape[2]), Columns{width_, 0}),
        images_(static_cast<size_t>(data.shape[0])) {}

  // Rows [y0, y1) and columns [x0, x1) of an image are read, cell by cell `reads` times in all.
  void add(int64_t image, int64_t y0, int64_t y1, int64_t x0, int64_t x1, int64_t reads) {
    if (x0 >= x1) return;
    images_[image].reads += reads;
    Columns* row = columns_.data() + image * height_;
    for (int64_t y = y0; y < y1; ++y) {
      row[y].begin = std::min(row[y].begin, x0);
      row[y].end = std::max(row[y].end, x1);
    }
  }
  // To be called after the last add(). Small gaps are closed: runs cost something, too.
  void finish() {
    for (size_t image = 0; image < images_.size(); ++image) {
      std::vector<Run>& runs = images_[image].runs;
      for (int64_t y = 0; y < height_; ++y) {
        const Columns& row = columns_[image * height_ + y];
        if (row.begin >= row.end) continue;
        const Run run{y * width_ + row.begin, y * width_ + row.end};
        if (!runs.empty() && run.begin - runs.back().end <= kSmallGap) {
          runs.back().end = run.end;
        } else {
          runs.push_back(run);
        }
      }
      for (const Run& run : runs) images_[image].cells += run.end - run.begin;
    }
  }
  const std::vector<Run>& runs(int64_t image) const { return images_[image].runs; }

  // Whether `part` of the reads of an image, made of each of `channels` on its own, cost less than
  // packing the cells into a channel block: that took as long as some 3 reads a cell.
  bool unpacked_is_faster(int64_t image, double part, int channels) const {
    const Image& of = images_[image];
    return channels == 1 ||
           static_cast<double>(of.reads) * part * channels < 3.0 * static_cast<double>(of.cells);
  }

 private:
  static constexpr int64_t kSmallGap = 32;  // cells

  struct Columns {
    int64_t begin, end;
  };
  struct Image {
    std::vector<Run> runs;
    int64_t cells = 0;  // in the runs
    int64_t reads = 0;  // of cells, by all bins
  };
  int64_t height_, width_;
  std::vector<Columns> columns_;  // N * H
  std::vector<Image> images_;
};

// pack_planes, a block of zeros, and unpack_planes for the cells that are covered; in the planes
// all other cells become 0.
template <class T, class A>
GR_INLINE void pack_runs(const std::vector<Coverage::Run>& runs, const T* planes, int64_t stride,
                         int lanes, A* block) {
  for (const Coverage::Run& run : runs) {
    pack_planes(planes + run.begin, stride, lanes, run.end - run.begin,
                block + run.begin * kLanes<A>);
  }
}
template <class A>
GR_INLINE void clear_runs(const std::vector<Coverage::Run>& runs, A* block, int lanes = kLanes<A>) {
  for (const Coverage::Run& run : runs) {
    std::fill(block + run.begin * lanes, block + run.end * lanes, A(0));
  }
}
template <class T, class A>
GR_INLINE void unpack_runs(const std::vector<Coverage::Run>& runs, const A* block, int64_t stride,
                           int lanes, int64_t cells, T* planes) {
  for (int lane = 0; lane < lanes; ++lane) {
    int64_t begin = 0;
    for (const Coverage::Run& run : runs) {
      std::fill(planes + lane * stride + begin, planes + lane * stride + run.begin, T{});
      begin = run.end;
    }
    std::fill(planes + lane * stride + begin, planes + lane * stride + cells, T{});
  }
  for (const Coverage::Run& run : runs) {
    unpack_planes(block + run.begin * kLanes<A>, stride, lanes, run.end - run.begin,
                  planes + run.begin);
  }
}

// ---- Bins of the pooling operators --------------------------------------------------------------

// The cells [begin, end) of every bin of every RoI along both axes: K * 2 * (P + Q) numbers.
struct BinTable {
  int rows, columns;
  std::vector<int32_t> edges;
  Coverage coverage;

  BinTable(BinRule rule, int pooled_height, int pooled_width, double spatial_scale,
           const RoiTable<float>& table, const Tensor& data)
      : rows(pooled_height), columns(pooled_width), coverage(data) {
    const float scale = static_cast<float>(spatial_scale);
    const int height = static_cast<int>(data.shape[2]), width = static_cast<int>(data.shape[3]);
    edges.resize(table.rois.size() * 2 * (rows + columns));
    for (const int64_t k : table.order) {
      const Roi<float>& roi = table.rois[k];
      const BinAxis y = BinAxis::make(rule, roi.y1, roi.y2, scale, rows, height);
      const BinAxis x = BinAxis::make(rule, roi.x1, roi.x2, scale, columns, width);
      int32_t* edge = edges.data() + k * 2 * (rows + columns);
      const int64_t high = set_edges(y, rows, edge);
      const int64_t wide = set_edges(x, columns, edge + 2 * rows);
      // Edges grow with the bin.
      const int32_t* x_edge = edge + 2 * rows;
      coverage.add(roi.image, edge[0], edge[2 * rows - 1], x_edge[0], x_edge[2 * columns - 1],
                   high * wide);
    }
    coverage.finish();
  }
  // Two numbers a bin.
  GR_INLINE const int32_t* row_edges(int64_t k) const {
    return edges.data() + k * 2 * (rows + columns);
  }
  GR_INLINE const int32_t* column_edges(int64_t k) const { return row_edges(k) + 2 * rows; }

 private:
  // Returns the cells of all bins together.
  static int64_t set_edges(const BinAxis& axis, int bins, int32_t* edge) {
    int64_t sum = 0;
    for (int i = 0; i < bins; ++i, edge += 2) {
      edge[0] = axis.begin(i);
      edge[1] = axis.end(i);
      sum += std::max(edge[1] - edge[0], 0);
    }
    return sum;
  }
};

GR_INLINE int64_t bin_area(const int32_t* y, const int32_t* x) {
  return y[1] > y[0] && x[1] > x[0] ? static_cast<int64_t>(y[1] - y[0]) * (x[1] - x[0]) : 0;
}

// Calls body(place) for the cells of a bin in row-major order: where a cell begins in a block with
// `lanes` numbers for each cell. (With the cell's number on the map instead, the processor keeps
// two counters, and ROIPool takes 1.08 times as long.)
template <int64_t lanes, class Body>
GR_INLINE void for_each_cell(const int32_t* y, const int32_t* x, int64_t width, const Body& body) {
  const int64_t run = (x[1] - int64_t{x[0]}) * lanes;
  int64_t first = (y[0] * width + x[0]) * lanes;
  for (int64_t row = y[0]; row < y[1]; ++row, first += width * lanes) {
    for (int64_t place = first; place < first + run; place += lanes) body(place);
  }
}

// ---- Taps of the align operators ----------------------------------------------------------------

// One axis of out = Ay . X . Ax^T: the cells that a bin reads, with their weights. The samples of a
// bin that fall between the same cells are merged, so a bin has at most as many taps as the map has
// cells, however large the box or the sampling ratio.
template <class G>
struct Tap {
  int32_t cell;
  int32_t bin;
  G weight;
};

// The same for gradients of the RoI: d weight / d lower and upper coordinate, per image pixel.
template <class G>
struct GradientTap {
  int32_t cell;
  G weight, d_lo, d_hi;
};

// Calls emit(cell, weight, d_lo, d_hi) for both cells of every sample of bin q that is on the map;
// the numbers are those of one sample, still to be divided by axis.samples.
template <class G, class Emit>
GR_INLINE void for_each_sample(const SampleAxis<G>& axis, int q, int bins, double spatial_scale,
                               const Emit& emit) {
  int64_t first, last;
  axis.sample_range(q, &first, &last);
  for (int64_t i = first; i <= last; ++i) {
    const Sample<G> s = axis.sample(q, i);
    if (!s.inside) continue;
    G d_lo = 0, d_hi = 0;
    if (!s.clamped) axis.coordinate_gradient(q, i, bins, spatial_scale, &d_lo, &d_hi);
    emit(s.low, s.low_weight, -d_lo, -d_hi);
    emit(s.high, s.high_weight, d_lo, d_hi);
  }
}

// The taps of bin q, appended to taps. Samples move along the axis in one direction, so an equal
// cell stands among the last three.
template <class G, class T, class Add>
void append_taps(const SampleAxis<G>& axis, int q, int bins, double spatial_scale,
                 std::vector<T>* taps, const Add& add) {
  const size_t begin = taps->size();
  for_each_sample(axis, q, bins, spatial_scale, [&](int32_t cell, G weight, G d_lo, G d_hi) {
    size_t at = taps->size();
    const size_t stop = at - begin > 3 ? at - 3 : begin;
    while (at > stop && (*taps)[at - 1].cell != cell) --at;
    if (at == stop) {
      taps->push_back(T{});
      at = taps->size();
      taps->back().cell = cell;
    }
    add(&(*taps)[at - 1], weight, d_lo, d_hi);
  });
}

// Both axes of every RoI.
template <class G>
struct TapTable {
  struct Range {
    int64_t begin, end;
  };
  int rows, columns;
  std::vector<Tap<G>> taps;
  std::vector<Range> ranges;  // K * (rows + columns): the taps of each bin, rows first
  Coverage coverage;

  TapTable(int pooled_height, int pooled_width, double spatial_scale, bool aligned,
           int sampling_ratio, const RoiTable<G>& table, const Tensor& data)
      : rows(pooled_height), columns(pooled_width), coverage(data) {
    const int bins = rows + columns;
    ranges.resize(table.rois.size() * bins);
    // Parts of the RoIs at the same time, then one part behind the other. With 2000 RoIs the taps
    // take a tenth of PSROIAlign's time, in which the other threads had nothing to do.
    const int64_t count = static_cast<int64_t>(table.order.size());
    const int64_t parts = std::min<int64_t>((count + 31) / 32, 16);
    const auto for_each_roi = [&](int64_t part, const auto& body) {
      for (int64_t i = count * part / parts; i < count * (part + 1) / parts; ++i) {
        body(table.rois[table.order[i]], ranges.data() + table.order[i] * bins);
      }
    };
    std::vector<std::vector<Tap<G>>> taps_of(static_cast<size_t>(parts));
    parallel_for(parts, count * bins * kElementsPerBin, [&](int64_t part) {
      taps_of[part].reserve(static_cast<size_t>((count / parts + 1) * bins * 3));
      for_each_roi(part, [&](const Roi<G>& roi, Range* range) {
        add_axis(SampleAxis<G>::make(roi.y1, roi.y2, spatial_scale, aligned, rows, sampling_ratio,
                                     static_cast<int>(data.shape[2])),
                 rows, spatial_scale, range, &taps_of[part]);
        add_axis(SampleAxis<G>::make(roi.x1, roi.x2, spatial_scale, aligned, columns,
                                     sampling_ratio, static_cast<int>(data.shape[3])),
                 columns, spatial_scale, range + rows, &taps_of[part]);
      });
    });
    size_t total = 0;
    for (const auto& some : taps_of) total += some.size();
    taps.reserve(total);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t base = static_cast<int64_t>(taps.size());
      taps.insert(taps.end(), taps_of[part].begin(), taps_of[part].end());
      for_each_roi(part, [&](const Roi<G>& roi, Range* range) {
        for (int bin = 0; bin < bins; ++bin) {
          range[bin].begin += base;
          range[bin].end += base;
        }
        const Cells y = cells(range, rows), x = cells(range + rows, columns);
        coverage.add(roi.image, y.begin, y.end, x.begin, x.end, y.taps * x.taps);
      });
    }
    coverage.finish();
  }
  GR_INLINE const Range* row_ranges(int64_t k) const {
    return ranges.data() + k * (rows + columns);
  }
  GR_INLINE const Range* column_ranges(int64_t k) const { return row_ranges(k) + rows; }

  // Where tap t reads within a row of `lanes` channels.
  GR_INLINE int64_t offset(int64_t t, int lanes) const {
    return static_cast<int64_t>(taps[t].cell) * lanes;
  }
  template <class Values>
  GR_INLINE Values weighted(int64_t t, const Values& given) const {
    Values values = given;
    values *= Values::all(taps[t].weight);
    return values;
  }

  // Orders the row taps of every RoI by cell instead of by bin, so that a row of the map is read
  // once for all the bins that share it. The ranges of the single row bins are lost.
  void sort_rows_by_cell() {
    for (size_t at = 0; at < ranges.size(); at += rows + columns) {
      const auto begin = taps.begin() + ranges[at].begin;
      const auto end = taps.begin() + ranges[at + rows - 1].end;
      std::stable_sort(begin, end,
                       [](const Tap<G>& a, const Tap<G>& b) { return a.cell < b.cell; });
    }
  }
  // The end of the taps from `begin` on that share its cell.
  GR_INLINE int64_t same_cell(int64_t begin, int64_t end) const {
    int64_t i = begin + 1;
    while (i < end && taps[i].cell == taps[begin].cell) ++i;
    return i;
  }
  GR_INLINE Range all_rows(int64_t k) const {
    return Range{row_ranges(k)[0].begin, row_ranges(k)[rows - 1].end};
  }

 private:
  // The taps of a bin take as long as this many elements touched by parallel_for's body.
  static constexpr int64_t kElementsPerBin = 200;

  struct Cells {
    int32_t begin, end;
    int64_t taps;
  };
  // From the first to the last cell that the taps of `bins` bins read, and how many these are. All
  // taps are looked at: where boxes are so wide that coordinates round to thousands of cells, the
  // outermost cell may belong to any of them.
  Cells cells(const Range* range, int bins) const {
    const int64_t begin = range[0].begin, end = range[bins - 1].end;
    Cells found{std::numeric_limits<int32_t>::max(), 0, end - begin};
    for (int64_t t = begin; t < end; ++t) {
      found.begin = std::min(found.begin, taps[t].cell);
      found.end = std::max(found.end, taps[t].cell + 1);
    }
    return found;
  }

  static void add_axis(const SampleAxis<G>& axis, int bins, double spatial_scale, Range* range,
                       std::vector<Tap<G>>* to) {
    std::vector<Tap<G>>& taps = *to;
    for (int q = 0; q < bins; ++q) {
      const size_t begin = taps.size();
      append_taps(axis, q, bins, spatial_scale, &taps,
                  [](Tap<G>* tap, G weight, G, G) { tap->weight += weight; });
      // A cell of weight 0 is not read: its NaN must not leak.
      size_t end = begin;
      for (size_t i = begin; i < taps.size(); ++i) {
        if (taps[i].weight == 0) continue;
        taps[end] = taps[i];
        taps[end].bin = q;
        taps[end++].weight /= axis.samples;
      }
      taps.resize(end);
      range[q] = Range{static_cast<int64_t>(begin), static_cast<int64_t>(end)};
    }
  }
};

// Adds to gradient[4] (x1, y1, x2, y2, per image pixel) what one channel of one RoI contributes:
// plane(p, q) is the map that bin (p, q) reads, slope[p * columns + q] the gradient of the output.
template <class G>
class RoiGradient {
 public:
  RoiGradient(int pooled_height, int pooled_width, double spatial_scale, bool aligned,
              int sampling_ratio, const Roi<G>& roi, const Tensor& data)
      : rows_(pooled_height), columns_(pooled_width), width_(data.shape[3]) {
    add_axis(SampleAxis<G>::make(roi.y1, roi.y2, spatial_scale, aligned, rows_, sampling_ratio,
                                 static_cast<int>(data.shape[2])),
             rows_, spatial_scale, &y_, &y_begin_);
    add_axis(SampleAxis<G>::make(roi.x1, roi.x2, spatial_scale, aligned, columns_, sampling_ratio,
                                 static_cast<int>(data.shape[3])),
             columns_, spatial_scale, &x_, &x_begin_);
  }

  template <class T, class Plane>
  void add(const Plane& plane, const T* slope, double* gradient) const {
    for (int p = 0; p < rows_; ++p) {
      for (int q = 0; q < columns_; ++q) {
        const T* map = plane(p, q);
        const double g = load(slope + p * columns_ + q);
        for (size_t i = y_begin_[p]; i < y_begin_[p + 1]; ++i) {
          const T* row = map + y_[i].cell * width_;
          double sum = 0, d_lo = 0, d_hi = 0;
          for (size_t j = x_begin_[q]; j < x_begin_[q + 1]; ++j) {
            const double value = load(row + x_[j].cell);
            sum += x_[j].weight * value;
            d_lo += x_[j].d_lo * value;
            d_hi += x_[j].d_hi * value;
          }
          gradient[0] += g * y_[i].weight * d_lo;
          gradient[1] += g * y_[i].d_lo * sum;
          gradient[2] += g * y_[i].weight * d_hi;
          gradient[3] += g * y_[i].d_hi * sum;
        }
      }
    }
  }

 private:
  static void add_axis(const SampleAxis<G>& axis, int bins, double spatial_scale,
                       std::vector<GradientTap<G>>* taps, std::vector<size_t>* begin) {
    begin->push_back(0);
    for (int q = 0; q < bins; ++q) {
      append_taps(axis, q, bins, spatial_scale, taps,
                  [&](GradientTap<G>* tap, G weight, G d_lo, G d_hi) {
                    tap->weight += weight / axis.samples;
                    tap->d_lo += d_lo / axis.samples;
                    tap->d_hi += d_hi / axis.samples;
                  });
      begin->push_back(taps->size());
    }
  }

  int rows_, columns_;
  int64_t width_;
  std::vector<GradientTap<G>> y_, x_;
  std::vector<size_t> y_begin_, x_begin_;
};

// Writes d_rois whole: for each valid RoI what accumulate(k, roi, gradient[4]) adds up, 0
// elsewhere.
template <class G, class Accumulate>
void write_roi_gradients(const RoiTable<G>& table, int64_t work, const Tensor& d_rois,
                         const Accumulate& accumulate) {
  const int64_t columns = d_rois.shape[d_rois.ndim - 1];
  memset(d_rois.data, 0, static_cast<size_t>(elements(d_rois)) * dtype_size(d_rois.dtype));
  parallel_for(static_cast<int64_t>(table.order.size()), work, [&](int64_t i) {
    const int64_t k = table.order[i];
    double gradient[4] = {};
    accumulate(k, table.rois[k], gradient);
    with_dtype(d_rois.dtype, [&](auto type) {
      using R = decltype(type);
      R* row = static_cast<R*>(d_rois.data) + (k + 1) * columns - 4;
      for (int j = 0; j < 4; ++j) store(row + j, static_cast<SumOf<R>>(gradient[j]));
    });
  });
}

// ---- Tasks of the position-sensitive operators --------------------------------------------------

// The RoIs of one image against kLanes output channels of one group (gh, gw), that is, against the
// score maps (c * GH + gh) * GW + gw of kLanes consecutive c.
template <class A>
struct GroupTask {
  int64_t image, channel, offset, stride;  // first output channel; first map and step, in elements
  int lanes;
  int p_begin, p_end, q_begin, q_end;  // the bins that read this group

  GroupTask(int64_t task, const PositionSensitive& layout, const Tensor& data)
      : output_dim_(layout.output_dim) {
    const int64_t cells = data.shape[2] * data.shape[3];
    const int64_t blocks = blocks_of<A>(layout.output_dim);
    const int gw = static_cast<int>(task % layout.group_width);
    const int gh = static_cast<int>(task / layout.group_width % layout.group_height);
    const int64_t block = task / layout.group_width / layout.group_height;
    image = block / blocks;
    channel = block % blocks * kLanes<A>;
    lanes = static_cast<int>(std::min<int64_t>(kLanes<A>, layout.output_dim - channel));
    stride = static_cast<int64_t>(layout.group_height) * layout.group_width * cells;
    offset =
        (image * data.shape[1] + (channel * layout.group_height + gh) * layout.group_width + gw) *
        cells;
    find_bins(gh, layout.group_height, layout.pooled_height, &p_begin, &p_end);
    find_bins(gw, layout.group_width, layout.pooled_width, &q_begin, &q_end);
  }
  // Where the outputs of RoI k for these channels begin, of which each channel has `outputs`.
  GR_INLINE int64_t row(int64_t k, int64_t outputs) const {
    return (k * output_dim_ + channel) * outputs;
  }
  // The part of a RoI's bins that read this group.
  double part(const PositionSensitive& layout) const {
    return static_cast<double>(p_end - p_begin) / layout.pooled_height * (q_end - q_begin) /
           layout.pooled_width;
  }
  // The task of one of its channels alone.
  GroupTask only(int lane) const {
    GroupTask one = *this;
    one.channel += lane;
    one.offset += lane * stride;
    one.lanes = 1;
    return one;
  }
  static int64_t count(const PositionSensitive& layout, const Tensor& data) {
    return data.shape[0] * layout.group_height * layout.group_width *
           blocks_of<A>(layout.output_dim);
  }

 private:
  int64_t output_dim_;

  static void find_bins(int group, int groups, int pooled, int* begin, int* end) {
    *begin = *end = 0;
    for (int bin = 0; bin < pooled; ++bin) {
      const int g = PositionSensitive::group_of(bin, groups, pooled);
      if (g < group) *begin = bin + 1;
      if (g <= group) *end = bin + 1;
    }
  }
};

// Runs kernel(task, block, simd) for a task that reads its score maps: with all channels at once,
// on a channel block, or with one after the other on the maps as they are, whichever is faster.
template <class T, class Kernel>
void read_maps(const GroupTask<SumOf<T>>& task, const PositionSensitive& layout,
               const Coverage& coverage, const T* data, int64_t cells, const Kernel& kernel) {
  using A = SumOf<T>;
  if (coverage.unpacked_is_faster(task.image, task.part(layout), task.lanes)) {
    for (int lane = 0; lane < task.lanes; ++lane) {
      const GroupTask<A> one = task.only(lane);
      kernel(one, data + one.offset, OneChannel{});
    }
    return;
  }
  A* block = scratch<A>(cells * kLanes<A>);
  run_simd([&](auto simd) GR_KERNEL {
    pack_runs(coverage.runs(task.image), data + task.offset, task.stride, task.lanes, block);
    kernel(task, block, simd);
  });
}

// The same for a task that adds to the gradients of its score maps, which are 0 at first.
template <class T, class Kernel>
void add_to_maps(const GroupTask<SumOf<T>>& task, const PositionSensitive& layout,
                 const Coverage& coverage, T* d_data, int64_t cells, const Kernel& kernel) {
  using A = SumOf<T>;
  const auto& runs = coverage.runs(task.image);
  if (coverage.unpacked_is_faster(task.image, task.part(layout), task.lanes)) {
    for (int lane = 0; lane < task.lanes; ++lane) {
      const GroupTask<A> one = task.only(lane);
      T* const plane = d_data + one.offset;
      std::fill(plane, plane + cells, T{});
      if constexpr (std::is_same<T, A>::value) {
        kernel(one, plane, OneChannel{});
      } else {
        // float16 is summed in float32.
        A* const sums = scratch<A>(cells);
        clear_runs(runs, sums, 1);
        kernel(one, sums, OneChannel{});
        run_simd([&](auto) GR_KERNEL {
          for (const Coverage::Run& run : runs) {
            store_run(plane + run.begin, run.end - run.begin, sums + run.begin);
          }
        });
      }
    }
    return;
  }
  A* block = scratch<A>(cells * kLanes<A>);
  run_simd([&](auto simd) GR_KERNEL {
    clear_runs(runs, block);
    kernel(task, block, simd);
    unpack_runs(runs, block, task.stride, task.lanes, cells, d_data + task.offset);
  });
}

// The RoIs of one image against kLanes consecutive channels.
template <class A>
struct ChannelTask {
  int64_t image, channel, offset;  // offset of the first map, in elements
  int lanes;

  ChannelTask(int64_t task, const Tensor& data) : channels_(data.shape[1]) {
    const int64_t blocks = blocks_of<A>(channels_);
    image = task / blocks;
    channel = task % blocks * kLanes<A>;
    lanes = static_cast<int>(std::min<int64_t>(kLanes<A>, channels_ - channel));
    offset = (image * channels_ + channel) * data.shape[2] * data.shape[3];
  }
  // Where the outputs of RoI k for these channels begin, of which each channel has `outputs`.
  GR_INLINE int64_t row(int64_t k, int64_t outputs) const {
    return (k * channels_ + channel) * outputs;
  }
  static int64_t count(const Tensor& data) { return data.shape[0] * blocks_of<A>(data.shape[1]); }

 private:
  int64_t channels_;
};

}  // namespace gluon_roi
