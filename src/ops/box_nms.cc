// SPDX-License-Identifier: Apache-2.0
#include "box_nms.h"

#include <cfloat>
#include <limits>
#include <numeric>
#include <vector>

#include "../bindings/c.h"
#include "../cpu/suppression.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

// Throws unless columns [first, first + count) are within a row of `width` columns, if that is
// known.
static void check_columns(const char* name, int64_t first, int64_t count, int64_t width) {
  if (width < 0 || first + count <= width) return;
  const char* const expected = count == 1   ? "a column"
                               : count == 4 ? "four columns"
                                            : "five columns";
  fail(BoxNMS::kName, "argument ", name, ": expected ", expected, " of data, which has ", width,
       ", got ", first);
}
static void check_distinct_column(const char* name, int64_t column, const char* other_name,
                                  int64_t first, int64_t count) {
  if (column < first || column >= first + count) return;
  fail(BoxNMS::kName, "argument ", name, ": expected a column that is not of ", other_name, " = ",
       first, ", got ", column);
}
static void check_soft(const BoxNMS::Params& p) {
  if (p.method == GLUON_ROI_GAUSSIAN && !(p.sigma > 0)) {
    fail(BoxNMS::kName, "argument sigma: expected a finite number > 0, got ", p.sigma);
  }
  if (BoxNMS::is_soft(p) && !(p.min_score >= 0)) {
    fail(BoxNMS::kName, "argument min_score: expected a finite number from 0 on, got ",
         p.min_score);
  }
}

void BoxNMS::infer(const Params& p, const View& data, Tensor* outputs, int64_t max_elements) {
  for (const double threshold : {p.overlap_thresh, p.valid_thresh}) {
    if (std::fabs(threshold) <= FLT_MAX || !std::isfinite(threshold)) continue;
    fail(kName, "argument ", threshold == p.valid_thresh ? "valid_thresh" : "overlap_thresh",
         ": expected a number of float32, got ", threshold);
  }
  const bool rotated = p.in_format == GLUON_ROI_ROTATED;
  if (rotated != (p.out_format == GLUON_ROI_ROTATED)) {
    fail(kName, "argument out_format: expected ", rotated ? "'rotated'" : "'corner' or 'center'",
         ", because in_format is ", rotated ? "'rotated'" : "not 'rotated'", ", got ",
         rotated ? "another format" : "'rotated'");
  }
  check_soft(p);
  const int64_t box_columns = rotated ? 5 : 4;
  check_distinct_column("score_index", p.score_index, "coord_start", p.coord_start, box_columns);
  if (p.id_index >= 0) {
    check_distinct_column("id_index", p.id_index, "coord_start", p.coord_start, box_columns);
    check_distinct_column("id_index", p.id_index, "score_index", p.score_index, 1);
  }
  if (data.ndim < 0) return;
  if (data.ndim < 2) {
    fail(kName, "data has shape ", shape_text(data),
         ", expected at least 2 dimensions (..., boxes, columns)");
  }
  const int64_t width = data.shape[data.ndim - 1];
  check_columns("coord_start", p.coord_start, box_columns, width);
  check_columns("score_index", p.score_index, 1, width);
  if (p.id_index >= 0) check_columns("id_index", p.id_index, 1, width);
  check_elements(kName, "data", data, max_elements);
  for (int i = 0; i < 2; ++i) {
    const int32_t dtype = outputs[i].dtype;
    outputs[i] = data;
    outputs[i].data = nullptr;
    outputs[i].dtype = dtype;
  }
  outputs[1].shape[data.ndim - 1] = 1;
  // Row indices have 32 bits.
  check_elements(kName, "record", outputs[1], std::numeric_limits<int32_t>::max());
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

// A row of a batch: its class, and its index among the sorted rows.
struct Member {
  int32_t class_id, place;
};

// Calls run(members, count) with the sorted rows of each class, because classes do not suppress one
// another.
template <class T, class Run>
void for_each_class(const BoxNMS::Params& p, const Vector<NmsRow<T>>& sorted, const Run& run) {
  Vector<Member> members;
  members.reserve(sorted.size());
  for (const NmsRow<T>& row : sorted) {
    members.push_back({row.class_id(), static_cast<int32_t>(members.size())});
  }
  if (p.id_index >= 0 && p.force_suppress == 0) {
    std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
      return a.class_id != b.class_id ? a.class_id < b.class_id : a.place < b.place;
    });
  }
  for (size_t begin = 0; begin < members.size();) {
    size_t end = begin + 1;
    while (end < members.size() && members[end].class_id == members[begin].class_id) ++end;
    run(members.data() + begin, static_cast<int64_t>(end - begin));
    begin = end;
  }
}

// Returns the indices of the kept rows among the sorted rows, ascending.
template <class T>
Vector<int32_t> kept_places(const BoxNMS::Params& p, const Vector<NmsRow<T>>& sorted,
                            bool parallel) {
  using A = SumOf<T>;
  const float threshold = static_cast<float>(p.overlap_thresh);
  Vector<int32_t> kept;
  for_each_class(p, sorted, [&](const Member* members, int64_t count) {
    Vector<int32_t> of_class;
    if (p.in_format == GLUON_ROI_ROTATED) {
      Vector<RotatedOverlapBox> boxes(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) sorted[members[i].place].load_box(&boxes[i]);
      of_class = RotatedSuppression(boxes, threshold).run(parallel);
    } else {
      BoxColumns<A> boxes(count);
      for (int64_t i = 0; i < count; ++i) {
        OverlapBox<A> box;
        sorted[members[i].place].load_box(&box);
        boxes.set(i, box);
      }
      of_class = Suppression<A, false>(boxes, threshold).run(count, parallel);
    }
    for (const int32_t index : of_class) kept.push_back(members[index].place);
  });
  std::sort(kept.begin(), kept.end());
  return kept;
}

// Returns the rows that soft suppression keeps, by descending score. `ranks` are those of the
// sorted rows.
template <class Box, class T>
Vector<SoftBox<Box>> kept_softly(const BoxNMS::Params& p, const Vector<NmsRow<T>>& sorted,
                                 const Vector<Rank<SumOf<T>>>& ranks) {
  Vector<SoftBox<Box>> kept;
  for_each_class(p, sorted, [&](const Member* members, int64_t count) {
    Vector<SoftBox<Box>> boxes(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      const int32_t place = members[i].place;
      boxes[i].place = place;
      boxes[i].index = ranks[place].index;
      boxes[i].score = sorted[place].score();
      sorted[place].load_box(&boxes[i].box);
    }
    const auto of_class = suppress_softly(std::move(boxes), BoxNMS::decay(p), p.min_score);
    kept.insert(kept.end(), of_class.begin(), of_class.end());
  });
  std::sort(kept.begin(), kept.end(), is_better<Box>);
  return kept;
}

// Processes a batch, whose first row has the index `first`.
template <class T>
void run_batch(const BoxNMS::Params& p, const BoxNMS::Sizes& sizes, const T* data, int64_t first,
               bool parallel, T* out, int32_t* record) {
  using A = SumOf<T>;
  Vector<Rank<A>> ranks;
  ranks.reserve(static_cast<size_t>(sizes.rows));
  for (int64_t i = 0; i < sizes.rows; ++i) {
    const NmsRow<T> row{data + i * sizes.width, p};
    if (row.is_valid()) ranks.push_back(Rank<A>::make(row.score(), static_cast<int32_t>(i)));
  }
  sort_best(&ranks, p.topk < 0 ? sizes.rows : p.topk);
  Vector<NmsRow<T>> sorted;
  sorted.reserve(ranks.size());
  for (const Rank<A>& rank : ranks) sorted.push_back({data + rank.index * sizes.width, p});
  int64_t count = 0;
  const auto keep = [&](int32_t place) {
    sorted[place].copy(sizes.width, out + count * sizes.width);
    record[count++] = static_cast<int32_t>(first + ranks[place].index);
  };
  const auto keep_with_score = [&](const auto& box) {
    keep(box.place);
    store(out + (count - 1) * sizes.width + p.score_index, static_cast<A>(box.score));
  };
  if (!BoxNMS::is_soft(p)) {
    for (const int32_t place : kept_places(p, sorted, parallel)) keep(place);
  } else if (p.in_format == GLUON_ROI_ROTATED) {
    for (const auto& box : kept_softly<RotatedOverlapBox>(p, sorted, ranks)) keep_with_score(box);
  } else {
    for (const auto& box : kept_softly<OverlapBox<double>>(p, sorted, ranks)) keep_with_score(box);
  }
  for (int64_t i = count * sizes.width; i < sizes.rows * sizes.width; ++i) store(out + i, A(-1));
  std::fill(record + count, record + sizes.rows, -1);
}

}  // namespace

template <class T>
void BoxNMS::forward(const Params& p, const View& data_tensor, const Outputs& out_tensors) {
  const Sizes sizes(data_tensor);
  const T* const data = data_of<const T>(data_tensor);
  T* const out = data_of<T>(out_tensors[0]);
  int32_t* const record = data_of<int32_t>(out_tensors[1]);
  const int64_t batch_elements = sizes.rows * sizes.width;
  if (p.topk == 0) {
    std::copy(data, data + sizes.batches * batch_elements, out);
    std::iota(record, record + sizes.batches * sizes.rows, 0);
    return;
  }
  // The cost of sorting, as a lower bound.
  constexpr int64_t kElementsPerRow = 50;
  parallel_for(sizes.batches, sizes.batches * sizes.rows * kElementsPerRow, [&](int64_t batch) {
    const int64_t first = batch * sizes.rows;
    run_batch(p, sizes, data + batch * batch_elements, first, sizes.batches == 1,
              out + batch * batch_elements, record + first);
  });
}

template <class T>
void BoxNMS::backward(const Params& p, const View& data_tensor, const Outputs& d_outputs,
                      const View& d) {
  if (is_absent(d)) return;
  const Sizes sizes(data_tensor);
  const T* const data = data_of<const T>(data_tensor);
  const T* const d_out = data_of<const T>(d_outputs[0]);
  const int32_t* const record = data_of<const int32_t>(d_outputs[1]);
  T* const d_data = data_of<T>(d);
  const int64_t rows = sizes.batches * sizes.rows;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t begin = i / sizes.rows * sizes.rows;
    if (record[i] < 0 || (record[i] >= begin && record[i] < begin + sizes.rows)) continue;
    fail(kName, "record has ", record[i], " for row ", i, ", expected a row of its batch, ", begin,
         " to ", begin + sizes.rows - 1, ", or -1");
  }
  const int64_t batch_elements = sizes.rows * sizes.width;
  parallel_for(sizes.batches, 2 * sizes.batches * batch_elements, [&](int64_t batch) {
    std::fill(d_data + batch * batch_elements, d_data + (batch + 1) * batch_elements, T{});
    for (int64_t i = batch * sizes.rows; i < (batch + 1) * sizes.rows; ++i) {
      if (record[i] < 0) continue;
      const T* const from = d_out + i * sizes.width;
      T* const to = d_data + record[i] * sizes.width;
      std::copy(from, from + sizes.width, to);
      if (!is_soft(p) || p.topk == 0) continue;
      const double factor = decay_of_row(p, sizes, data, record, batch * sizes.rows, i);
      store(to + p.score_index, static_cast<SumOf<T>>(load(from + p.score_index) * factor));
    }
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(BoxNMS, box_nms)
