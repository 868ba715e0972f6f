// The loops of ROIAlign, PrROIPool and PyramidROIAlign, whose bins read all channels of a map, each
// axis through its own taps: out = Ay . X . Ax^T. Op::rule(params) gives the taps,
// Op::pyramid(params) the map of each RoI. DESIGN.md ("Taps", "Bands") explains the loops.
#pragma once
#include "../core/geometry/pyramid.h"
#include "box_gradient.h"
#include "taps.h"
#include "tasks.h"
#include "threads.h"

namespace gluon_roi::cpu {

// Consecutive rows of an image's map, few enough for a channel block of them to stay in the
// second-level cache while gradients are added to it. (With all of a map of 200 x 304 in one block,
// 7 x 7 bins take 1.1 times as long, 14 x 14 bins the same.)
struct Band {
  // The taps of a RoI that weigh its rows.
  struct RowTaps {
    int64_t roi;
    int32_t begin, end;
  };
  int32_t first;                    // the number of its first row
  std::vector<Coverage::Run> runs;  // what is covered, from its first cell on
  std::vector<RowTaps> taps;        // in the table's order
};

// One map, and the RoIs that are pooled from it.
template <class T>
struct AlignedMap {
  using A = SumOf<T>;
  Tensor data;
  RoiTable<A> table;
  TapTable<A> axes;      // of some of the RoIs
  bool earlier = false;  // whether there were others before them
  int32_t band_rows;
  std::vector<Band> bands;  // of every image, after cut_bands()

  AlignedMap(int pooled_height, int pooled_width, const Tensor& map, RoiTable<A> rows)
      : data(map), table(std::move(rows)), axes(pooled_height, pooled_width, map) {
    constexpr int64_t kBandBytes = 1 << 20;
    const int64_t height = std::max<int64_t>(map.shape[2], 1);
    const int64_t row_bytes = std::max<int64_t>(map.shape[3], 1) * kCellBytes;
    band_rows =
        static_cast<int32_t>(std::min(std::max<int64_t>(kBandBytes / row_bytes, 1), height));
  }
  int64_t bands_per_image() const { return (data.shape[2] + band_rows - 1) / band_rows; }

  // Cuts the map into bands. The taps are ordered by cell.
  void cut_bands() {
    const int64_t per_image = bands_per_image(), band_cells = band_rows * data.shape[3];
    bands.assign(static_cast<size_t>(data.shape[0] * per_image), Band{});
    for (size_t b = 0; b < bands.size(); ++b) {
      const int64_t image = static_cast<int64_t>(b) / per_image;
      bands[b].first = static_cast<int32_t>(static_cast<int64_t>(b) % per_image) * band_rows;
      const int64_t begin = bands[b].first * data.shape[3];
      for (const Coverage::Run& run : axes.coverage.runs(image)) {
        const Coverage::Run own = clip(run, begin, begin + band_cells);
        if (own.begin < own.end) bands[b].runs.push_back({own.begin - begin, own.end - begin});
      }
    }
    for (int64_t i = axes.chunk.begin; i < axes.chunk.end; ++i) {
      const auto all = axes.all_rows(i);
      const Tap<A>* taps = axes.taps(i);
      const int64_t first = table.rois[table.order[i]].image * per_image;
      for (int32_t begin = all.begin, end; begin < all.end; begin = end) {
        const int32_t band = taps[begin].cell / band_rows;
        end = begin + 1;
        while (end < all.end && taps[end].cell / band_rows == band) ++end;
        bands[first + band].taps.push_back(Band::RowTaps{i, begin, end});
      }
    }
  }
};

// The number of each row's map.
template <class G>
std::vector<int32_t> maps_of(const Pyramid& pyramid, const RoiTable<G>& table) {
  std::vector<int32_t> maps(table.rois.size(), 0);
  if (pyramid.maps == 1) return maps;
  for (const int64_t k : table.order) maps[k] = pyramid.map_of(table.rois[k]);
  return maps;
}

template <class Op, class T>
std::vector<AlignedMap<T>> aligned_maps(const typename Op::Params& p, const Inputs& in) {
  RoiTable<SumOf<T>> table(Op::kName, in, p.bad_index);
  std::vector<AlignedMap<T>> maps;
  if (in.count == 1) {
    maps.emplace_back(p.pooled_height, p.pooled_width, in.data, std::move(table));
    return maps;
  }
  const std::vector<int32_t> map_of = maps_of(Op::pyramid(p), table);
  maps.reserve(static_cast<size_t>(in.count));
  for (int32_t i = 0; i < in.count; ++i) {
    maps.emplace_back(p.pooled_height, p.pooled_width, in.maps[i],
                      table.only([&](int64_t k) { return map_of[k] == i; }));
  }
  return maps;
}

// Makes the taps of a chunk of each map, calls prepare(&map) for each and body() once, and repeats
// until no map has RoIs left. at_a_time(map) is the number of RoIs in a chunk.
template <class Op, class T, class AtATime, class Prepare, class Body>
void for_each_round(const typename Op::Params& p, std::vector<AlignedMap<T>>* maps,
                    const AtATime& at_a_time, const Prepare& prepare, const Body& body) {
  const Pyramid pyramid = Op::pyramid(p);
  auto rule = Op::rule(p);
  for (bool earlier = false, more = true; more; earlier = true) {
    more = false;
    for (size_t i = 0; i < maps->size(); ++i) {
      AlignedMap<T>& map = (*maps)[i];
      const Chunk chunk = map.axes.chunk.next(map.table.count(), at_a_time(map));
      rule.spatial_scale = pyramid.scale[i];
      map.earlier = earlier;
      map.axes.make(rule, map.table, chunk);
      prepare(&map);
      more = more || chunk.end < map.table.count();
    }
    body();
  }
}

// Runs body(map, number of the map, number of the task) for the tasks of all maps, tasks(map) each,
// in one parallel loop: threads that are done with one map help with the others.
template <class T, class Tasks, class Body>
void for_each_task(const std::vector<AlignedMap<T>>& maps, int64_t work, const Tasks& tasks,
                   const Body& body) {
  int64_t all = 0;
  for (const auto& map : maps) {
    all += tasks(map);
    work += elements(map.data);
  }
  parallel_for(all, work, [&](int64_t id) {
    size_t i = 0;
    for (; id >= tasks(maps[i]); ++i) id -= tasks(maps[i]);
    body(maps[i], i, id);
  });
}

// At most this many rows of the map go through the columns' taps at a time, and as many bins of a
// row through the rows' taps, so that finding a tap's cell and weight is paid once for all of them.
// (With SSE2, four instead of two took up to 1.5 times as long.)
constexpr int kMostTogether = 4;
template <class Values>
constexpr int kTogether = Values::kRegisters < 4 ? kMostTogether : 2;

// Calls body(first, std::integral_constant<int, count>()) for groups of up to kTogether numbers of
// [begin, end).
template <class Values, class Body>
ALWAYS_INLINE void for_each_group(int64_t begin, int64_t end, const Body& body) {
  constexpr int kMost = kTogether<Values>;
  for (; begin + kMost <= end; begin += kMost) {
    body(begin, std::integral_constant<int, kMost>());
  }
  if constexpr (kMost > 3) {
    if (end - begin == 3) return body(begin, std::integral_constant<int, 3>());
    if (end - begin == 2) return body(begin, std::integral_constant<int, 2>());
  }
  if (end - begin == 1) body(begin, std::integral_constant<int, 1>());
}

// Calls body(i) for i < count, which is constant in each.
template <int count, class Body>
ALWAYS_INLINE void unrolled(const Body& body) {
  if constexpr (count > 0) {
    unrolled<count - 1>(body);
    body(std::integral_constant<int, count - 1>());
  }
}

// One row of `columns` channel-last values: the sum of the taps [begin, end), each of which weighs
// row taps[t].bin of `from`.
template <class Values, class A>
ALWAYS_INLINE void sum_rows(const Tap<A>* taps, int32_t begin, int32_t end, const A* from,
                            int64_t columns, A* to) {
  for_each_group<Values>(0, columns, [&](int64_t first, auto count) INLINE_LAMBDA {
    Values sums[count];
    unrolled<count>([&](auto n) INLINE_LAMBDA { sums[n] = Values::all(0); });
    for (int32_t r = begin; r < end; ++r) {
      const A* row = from + (taps[r].bin * columns + first) * kLanes<A>;
      unrolled<count>([&](auto n) INLINE_LAMBDA {
        sums[n] += taps[r].weighted(Values::load(row + n * kLanes<A>));
      });
    }
    unrolled<count>([&](auto n) INLINE_LAMBDA { sums[n].store(to + (first + n) * kLanes<A>); });
  });
}

template <class Op, class T>
void align_forward(const typename Op::Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  std::vector<AlignedMap<T>> maps = aligned_maps<Op, T>(p, in);
  T* result = static_cast<T*>(out.data);
  const int64_t columns = p.pooled_width, outputs = p.pooled_height * columns;
  maps[0].table.fill_special_rows(result, in.data.shape[1] * outputs);
  for (auto& map : maps) map.table.sort_by_lower_edge();

  const auto pool = [&](const auto& map, size_t, int64_t id) {
    const ChannelTask<A> task(id, map.data);
    const RoiTable<A>& table = map.table;
    const TapTable<A>& axes = map.axes;
    const T* data = static_cast<const T*>(map.data.data);
    const int64_t width = map.data.shape[3], cells = map.data.shape[2] * width;
    const Chunk rois = table.of_image(task.image, axes.chunk);
    if (rois.empty()) return;
    A* block = scratch<A>((cells + outputs + map.data.shape[2] * columns) * kLanes<A>);
    A* tile = block + cells * kLanes<A>;   // the outputs of one RoI, channel-last
    A* rows = tile + outputs * kLanes<A>;  // the rows of the map that it reads, through Ax
    const auto& runs = axes.coverage.runs(task.image);
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      int64_t packed = 0;  // rows
      for (int64_t i = rois.begin; i < rois.end; ++i) {
        const int64_t k = table.order[i];
        const Tap<A>* taps = axes.taps(i);
        const auto* y_ranges = axes.row_ranges(i);
        const auto* x_ranges = axes.column_ranges(i);
        const auto list = axes.list(i);
        // 1. The rows of the map down to this RoI's last, channel-last; most are there already.
        packed = pack_rows(runs, packed, axes.end_of(list), width, data + task.offset, cells,
                           task.lanes, block, simd);
        GradualPrefetch<T> target(result + task.first_output(table.ahead(i), outputs),
                                  task.lanes * outputs, list.end - list.begin);
        // 2. X . Ax^T: each row of the map that the RoI reads becomes a row of `columns` values.
        for_each_group<Values>(list.begin, list.end, [&](int64_t first, auto count) INLINE_LAMBDA {
          target.next(count);
          const A* lines[count];
          unrolled<count>([&](auto n) INLINE_LAMBDA {
            lines[n] = block + axes.cells[first + n] * width * kLanes<A>;
          });
          A* row = rows + (first - list.begin) * columns * kLanes<A>;
          for (int64_t q = 0; q < columns; ++q, row += kLanes<A>) {
            Values sums[count];
            unrolled<count>([&](auto n) INLINE_LAMBDA { sums[n] = Values::all(0); });
            for (int32_t t = x_ranges[q].begin; t < x_ranges[q].end; ++t) {
              const int64_t offset = taps[t].offset(kLanes<A>);
              unrolled<count>([&](auto n) INLINE_LAMBDA {
                sums[n] += taps[t].weighted(Values::load(lines[n] + offset));
              });
            }
            unrolled<count>([&](auto n)
                                INLINE_LAMBDA { sums[n].store(row + n * columns * kLanes<A>); });
          }
        });
        // 3. Ay . (X . Ax^T): here `bin` of a tap is the place of its row in the list.
        for (int p = 0; p < axes.pooled_height; ++p) {
          sum_rows<Values>(taps, y_ranges[p].begin, y_ranges[p].end, rows, columns,
                           tile + p * columns * kLanes<A>);
        }
        // 4. Channel-first again.
        unpack_planes(tile, outputs, task.lanes, outputs, result + task.first_output(k, outputs),
                      simd);
      }
    });
  };
  for_each_round<Op, T>(
      p, &maps, [](const auto& map) { return rois_at_a_time<T>(map.data, map.axes.bytes()); },
      [](auto* map) { map->axes.list_rows(); },
      [&] {
        for_each_task(
            maps, elements(out), [](const auto& map) { return ChannelTask<A>::count(map.data); },
            pool);
      });
}

template <class Op, class T>
void align_backward(const typename Op::Params& p, const Inputs& in, const Tensor& d_out,
                    const Tensor* d_maps) {
  using A = SumOf<T>;
  std::vector<AlignedMap<T>> maps = aligned_maps<Op, T>(p, in);
  const T* gradient = static_cast<const T*>(d_out.data);
  const int64_t columns = p.pooled_width, outputs = p.pooled_height * columns;

  const auto spread = [&](const auto& map, size_t of, int64_t id) {
    const int64_t bands = map.bands_per_image();
    const ChannelTask<A> task(id / bands, map.data);
    const Band& band = map.bands[task.image * bands + id % bands];
    if (map.earlier && band.taps.empty()) return;
    const RoiTable<A>& table = map.table;
    const TapTable<A>& axes = map.axes;
    const int64_t width = map.data.shape[3], cells = map.data.shape[2] * width;
    const int64_t begin = band.first * width;
    const int64_t band_cells = std::min(map.band_rows * width, cells - begin);
    T* const planes = static_cast<T*>(d_maps[of].data) + task.offset + begin;
    A* block = scratch<A>((band_cells + outputs + kMostTogether * columns) * kLanes<A>);
    A* tile = block + band_cells * kLanes<A>;
    A* rows = tile + outputs * kLanes<A>;  // gradients of some rows of the map, through Ay
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      begin_gradients(band.runs, map.earlier, planes, cells, task.lanes, block, simd);
      for (size_t i = 0; i < band.taps.size(); ++i) {
        const Band::RowTaps& y_taps = band.taps[i];
        const Band::RowTaps& later = band.taps[std::min(i + 1, band.taps.size() - 1)];
        const Tap<A>* taps = axes.taps(y_taps.roi);
        const auto x_taps = axes.all_columns(y_taps.roi);
        // 1. The gradients of the RoI's outputs, channel-last.
        pack_planes(gradient + task.first_output(table.order[y_taps.roi], outputs), outputs,
                    task.lanes, outputs, tile, simd);
        GradualPrefetch<T> slopes(gradient + task.first_output(table.order[later.roi], outputs),
                                  task.lanes * outputs, y_taps.end - y_taps.begin);
        for (int32_t first = y_taps.begin; first < y_taps.end;) {
          // 2. Ay^T . dY for some rows of the map: the taps of a row of bins stand in the order of
          // the rows of the map, and those of one row of the map are summed before it is visited.
          A* lines[kMostTogether];
          int found = 0;
          for (; found < kTogether<Values> && first < y_taps.end; ++found) {
            const int32_t end = same_cell(taps, first, y_taps.end);
            slopes.next(end - first);
            lines[found] = block + (taps[first].cell - band.first) * width * kLanes<A>;
            sum_rows<Values>(taps, first, end, tile, columns, rows + found * columns * kLanes<A>);
            first = end;
          }
          // 3. (Ay^T . dY) . Ax is added to those rows: a cell is loaded and stored once for all
          // columns of bins that read it.
          for_each_group<Values>(0, found, [&](int64_t, auto count) INLINE_LAMBDA {
            for (int32_t t = x_taps.begin; t < x_taps.end;) {
              const int32_t cell = taps[t].cell;
              const int64_t offset = taps[t].offset(kLanes<A>);
              Values totals[count];
              unrolled<count>([&](auto n)
                                  INLINE_LAMBDA { totals[n] = Values::load(lines[n] + offset); });
              for (;;) {
                const A* slope = rows + taps[t].bin * kLanes<A>;
                unrolled<count>([&](auto n) INLINE_LAMBDA {
                  totals[n] += taps[t].weighted(Values::load(slope + n * columns * kLanes<A>));
                });
                ++t;
                if (t == x_taps.end || taps[t].cell != cell) break;
              }
              unrolled<count>([&](auto n) INLINE_LAMBDA { totals[n].store(lines[n] + offset); });
            }
          });
        }
      }
      end_gradients(band.runs, map.earlier, block, cells, task.lanes, band_cells, planes, simd);
    });
  };
  for_each_round<Op, T>(
      p, &maps, [](const auto& map) { return gradients_at_a_time<T>(map.data, map.axes.bytes()); },
      [](auto* map) {
        map->axes.sort_by_cell();
        map->cut_bands();
      },
      [&] {
        for_each_task(
            maps, elements(d_out),
            [](const auto& map) { return ChannelTask<A>::count(map.data) * map.bands_per_image(); },
            spread);
      });
}

template <class Op, class T>
void align_roi_gradient(const typename Op::Params& p, const Inputs& in, const Tensor& d_out,
                        const Tensor& d_rois) {
  using G = SumOf<T>;
  const RoiTable<G> table(Op::kName, in, p.bad_index);
  const Pyramid pyramid = Op::pyramid(p);
  const std::vector<int32_t> map_of = maps_of(pyramid, table);
  const int64_t outputs = static_cast<int64_t>(p.pooled_height) * p.pooled_width;
  write_roi_gradients(
      table, in.coordinates, 4 * elements(d_out), d_rois,
      [&](int64_t k, const Roi<G>& roi, double* gradient) {
        const Tensor& data = in.maps[map_of[k]];
        const int64_t channels = data.shape[1], cells = data.shape[2] * data.shape[3];
        auto rule = Op::rule(p);
        rule.spatial_scale = pyramid.scale[map_of[k]];
        const RoiGradient<G> terms(p.pooled_height, p.pooled_width, rule, roi, data);
        for (int64_t c = 0; c < channels; ++c) {
          const T* map = static_cast<const T*>(data.data) + (roi.image * channels + c) * cells;
          terms.add([&](int, int) { return map; },
                    static_cast<const T*>(d_out.data) + (k * channels + c) * outputs, gradient);
        }
        terms.finish(gradient);
      });
}

}  // namespace gluon_roi::cpu
