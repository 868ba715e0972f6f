// SPDX-License-Identifier: Apache-2.0
// The maps of an AlignOperator, each with its RoIs, split into bands.
#pragma once
#include "../core/geometry/pyramid.h"
#include "memory.h"
#include "taps.h"
#include "tasks.h"
#include "threads.h"

namespace gluon_roi::cpu {

// Consecutive rows of an image's map, few enough that their channel block stays in the second-level
// cache while gradients are added to it. (Without bands, on a map of 200 x 304, 7 x 7 bins take 1.1
// times as long, 14 x 14 bins the same.)
struct Band {
  // The range of a RoI's taps that fall into the band.
  struct RoiRange {
    int64_t roi;
    int32_t begin, end;
  };
  int32_t first;          // index of the first row
  Vector<Run> runs;       // covered cells, relative to the band's first cell
  Vector<RoiRange> taps;  // in the table's order
};

// A map, and the RoIs that are pooled from it.
template <class T>
struct PooledMap {
  using A = SumOf<T>;
  Tensor data;
  RoiTable<A> table;
  TapTable<A> tap_table;    // taps of the current chunk of RoIs
  bool accumulate = false;  // whether earlier chunks have written gradients
  int32_t band_rows;
  Vector<Band> bands;  // of all images, set by cut_bands()

  PooledMap(int pooled_height, int pooled_width, const Tensor& map, RoiTable<A> rows)
      : data(map), table(std::move(rows)), tap_table(pooled_height, pooled_width, map) {
    constexpr int64_t kBandBytes = 1 << 20;
    const int64_t height = std::max<int64_t>(map.shape[2], 1);
    const int64_t row_bytes = std::max<int64_t>(map.shape[3], 1) * kCellBytes;
    band_rows =
        static_cast<int32_t>(std::min(std::max<int64_t>(kBandBytes / row_bytes, 1), height));
  }
  int64_t bands_per_image() const { return div_up(data.shape[2], band_rows); }

  // Splits the map into bands. The taps must be sorted by cell.
  void cut_bands() {
    const int64_t per_image = bands_per_image(), band_cells = band_rows * data.shape[3];
    bands.assign(static_cast<size_t>(data.shape[0] * per_image), Band{});
    for (size_t b = 0; b < bands.size(); ++b) {
      const int64_t image = static_cast<int64_t>(b) / per_image;
      bands[b].first = static_cast<int32_t>(static_cast<int64_t>(b) % per_image) * band_rows;
      const int64_t begin = bands[b].first * data.shape[3];
      for (const Run& run : tap_table.coverage.runs(image)) {
        const Run inside = run.clip(begin, begin + band_cells);
        if (!inside.empty()) {
          bands[b].runs.push_back({inside.begin - begin, inside.end - begin});
        };
      }
    }
    for (int64_t i = tap_table.chunk.begin; i < tap_table.chunk.end; ++i) {
      const auto all = tap_table.all_rows(i);
      const Tap<A>* taps = tap_table.taps(i);
      const int64_t first = table.rois[table.order[i]].image * per_image;
      for (int32_t begin = all.begin, end; begin < all.end; begin = end) {
        const int32_t band = taps[begin].cell / band_rows;
        end = begin + 1;
        while (end < all.end && taps[end].cell / band_rows == band) ++end;
        bands[first + band].taps.push_back(Band::RoiRange{i, begin, end});
      }
    }
  }
};

// The index of the map for each row of rois.
template <class G>
Vector<int32_t> maps_of(const Pyramid& pyramid, const RoiTable<G>& table) {
  Vector<int32_t> maps(table.rois.size(), 0);
  if (pyramid.maps == 1) return maps;
  for (const int64_t k : table.order) {
    maps[k] = pyramid.map_of(table.rows, k);
  }
  return maps;
}

// The maps of a call, each with the RoIs that are pooled from it.
template <class Op, class T>
Vector<PooledMap<T>> pooled_maps(const typename Op::Params& p, const RoiArrays& in,
                                 RoiTable<SumOf<T>> table) {
  Vector<PooledMap<T>> maps;
  if (in.count == 1) {
    maps.emplace_back(p.pooled_height, p.pooled_width, in.data, std::move(table));
    return maps;
  }
  const Vector<int32_t> map_of = maps_of(Op::pyramid(p), table);
  maps.reserve(static_cast<size_t>(in.count));
  for (int32_t i = 0; i < in.count; ++i) {
    maps.emplace_back(p.pooled_height, p.pooled_width, in.maps[i],
                      table.only([&](int64_t k) { return map_of[k] == i; }));
  }
  return maps;
}

// In each round, makes the taps of one chunk for every map, calls prepare(&map) for every map, and
// then body() once. Repeats until no map has RoIs left. at_a_time(map) is the number of RoIs in a
// chunk.
template <class Op, class T, class AtATime, class Prepare, class Body>
void for_each_round(const typename Op::Params& p, Vector<PooledMap<T>>* maps,
                    const AtATime& at_a_time, const Prepare& prepare, const Body& body) {
  const Pyramid pyramid = Op::pyramid(p);
  auto rule = Op::rule(p);
  for (bool accumulate = false, more = true; more; accumulate = true) {
    more = false;
    for (size_t i = 0; i < maps->size(); ++i) {
      PooledMap<T>& map = (*maps)[i];
      const Chunk chunk = map.tap_table.chunk.next(map.table.count(), at_a_time(map));
      rule.spatial_scale = pyramid.scale[i];
      map.accumulate = accumulate;
      map.tap_table.make(rule, map.table, chunk);
      prepare(&map);
      more = more || chunk.end < map.table.count();
    }
    body();
  }
}

// Calls body(map, map index, task index) for the tasks(map) tasks of every map in one parallel
// loop, so that threads that have finished one map help with the others.
template <class T, class Tasks, class Body>
void for_each_task(const Vector<PooledMap<T>>& maps, int64_t work, const Tasks& tasks,
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

}  // namespace gluon_roi::cpu
