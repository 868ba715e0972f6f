// SPDX-License-Identifier: Apache-2.0
// The CPU loops of AlignOperator: out = Ay . X . Ax^T for every channel, with the taps of each axis
// in Ay and Ax. Op::rule(params) gives the taps, Op::pyramid(params) the map of each RoI. DESIGN.md
// ("Taps", "Bands") explains the loops.
#pragma once
#include "../core/align_contract.h"
#include "box_gradient.h"
#include "memory.h"
#include "pooled_map.h"

namespace gluon_roi::cpu {

// The number of map rows that are multiplied by Ax together, and of bins in a row that are
// multiplied by Ay together, so that each tap's cell and weight are loaded once for all of them.
// (With SSE2, four instead of two took up to 1.5 times as long.)
constexpr int kMaxTogether = 4;
template <class Values>
constexpr int kTogether = Values::kRegisters < 4 ? kMaxTogether : 2;

// Calls body(first, std::integral_constant<int, count>()) for consecutive groups of up to kTogether
// indices in [begin, end).
template <class Values, class Body>
ALWAYS_INLINE void for_each_group(int64_t begin, int64_t end, const Body& body) {
  constexpr int kStep = kTogether<Values>;
  for (; begin + kStep <= end; begin += kStep) {
    body(begin, std::integral_constant<int, kStep>());
  }
  if constexpr (kStep > 3) {
    if (end - begin == 3) return body(begin, std::integral_constant<int, 3>());
    if (end - begin == 2) return body(begin, std::integral_constant<int, 2>());
  }
  if (end - begin == 1) body(begin, std::integral_constant<int, 1>());
}

// Calls body(i) for i < count, with i as a compile-time constant.
template <int count, class Body>
ALWAYS_INLINE void unrolled(const Body& body) {
  if constexpr (count > 0) {
    unrolled<count - 1>(body);
    body(std::integral_constant<int, count - 1>());
  }
}

// Computes a row of `columns` channel-last values in `to`: the sum over the taps [begin, end) of
// the tap's weight times row taps[t].*row of `from`.
template <class Values, auto row, class AnyTap, class A>
ALWAYS_INLINE void sum_rows(const AnyTap* taps, int32_t begin, int32_t end, const A* from,
                            int64_t columns, A* to) {
  for_each_group<Values>(0, columns, [&](int64_t first, auto count) INLINE_LAMBDA {
    Values sums[count];
    unrolled<count>([&](auto n) INLINE_LAMBDA { sums[n] = Values::all(0); });
    for (int32_t r = begin; r < end; ++r) {
      const A* values = from + (taps[r].*row * columns + first) * kLanes<A>;
      unrolled<count>([&](auto n) INLINE_LAMBDA {
        sums[n].add_weighted(Values::load(values + n * kLanes<A>), taps[r].weight);
      });
    }
    unrolled<count>([&](auto n) INLINE_LAMBDA { sums[n].store(to + (first + n) * kLanes<A>); });
  });
}

// Writes the rows of out that belong to valid RoIs. Each row has at most one of them.
template <class Op, class T>
void align_valid_rows(const typename Op::Params& p, const RoiArrays& in, RoiTable<SumOf<T>> all,
                      const Tensor& out) {
  using A = SumOf<T>;
  Vector<PooledMap<T>> maps = pooled_maps<Op, T>(p, in, std::move(all));
  T* result = data_of<T>(out);
  const int64_t pooled_width = p.pooled_width, bins = p.pooled_height * pooled_width;
  for (auto& map : maps) map.table.sort_by_lower_edge();

  const auto pool = [&](const auto& map, size_t, int64_t id) {
    const ChannelTask<A> task(id, map.data);
    const RoiTable<A>& table = map.table;
    const TapTable<A>& tap_table = map.tap_table;
    const T* data = data_of<const T>(map.data);
    const int64_t width = map.data.shape[3], cells = map.data.shape[2] * width;
    const Chunk rois = table.of_image(task.image, tap_table.chunk);
    if (rois.empty()) return;
    A* block = scratch<A>((cells + bins + map.data.shape[2] * pooled_width) * kLanes<A>);
    A* tile = block + cells * kLanes<A>;  // the outputs of one RoI, channel-last
    A* rows = tile + bins * kLanes<A>;    // the rows of the map that it reads, times Ax^T
    const auto& runs = tap_table.coverage.runs(task.image);
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      int64_t packed = 0;  // rows
      for (int64_t i = rois.begin; i < rois.end; ++i) {
        const int64_t row_of_out = table.output_row(table.order[i]);
        const Tap<A>* taps = tap_table.taps(i);
        const auto* y_ranges = tap_table.row_ranges(i);
        const auto* x_ranges = tap_table.column_ranges(i);
        const auto list = tap_table.row_list(i);
        // 1. Pack the rows of the map, channel-last, down to the last row of this RoI. Most of them
        // are packed already.
        packed = pack_rows(runs, packed, tap_table.end_of(list), width, data + task.offset, cells,
                           task.lanes, block, simd);
        const int64_t next = table.output_row(table.ahead(i));
        GradualPrefetch<T> target(result + task.first_output(next, bins), task.lanes * bins,
                                  list.end - list.begin);
        // 2. X . Ax^T: each row of the map that the RoI reads becomes a row of `columns` values.
        for_each_group<Values>(list.begin, list.end, [&](int64_t first, auto count) INLINE_LAMBDA {
          target.next(count);
          const A* lines[count];
          unrolled<count>([&](auto n) INLINE_LAMBDA {
            lines[n] = block + tap_table.map_rows[first + n] * width * kLanes<A>;
          });
          A* row = rows + (first - list.begin) * pooled_width * kLanes<A>;
          for (int64_t q = 0; q < pooled_width; ++q, row += kLanes<A>) {
            Values sums[count];
            unrolled<count>([&](auto n) INLINE_LAMBDA { sums[n] = Values::all(0); });
            for (int32_t t = x_ranges[q].begin; t < x_ranges[q].end; ++t) {
              const int64_t offset = taps[t].offset(kLanes<A>);
              unrolled<count>([&](auto n) INLINE_LAMBDA {
                sums[n].add_weighted(Values::load(lines[n] + offset), taps[t].weight);
              });
            }
            unrolled<count>(
                [&](auto n) INLINE_LAMBDA { sums[n].store(row + n * pooled_width * kLanes<A>); });
          }
        });
        // 3. Ay . (X . Ax^T).
        for (int ph = 0; ph < tap_table.pooled_height; ++ph) {
          sum_rows<Values, &RowTap<A>::row>(tap_table.row_taps(i), y_ranges[ph].begin,
                                            y_ranges[ph].end, rows, pooled_width,
                                            tile + ph * pooled_width * kLanes<A>);
        }
        // 4. Unpack to channel-first.
        unpack_planes(tile, bins, task.lanes, bins, result + task.first_output(row_of_out, bins),
                      simd);
      }
    });
  };
  for_each_round<Op, T>(
      p, &maps, [](const auto& map) { return rois_at_a_time<T>(map.data, map.tap_table.bytes()); },
      [](auto* map) { map->tap_table.list_rows(); },
      [&] {
        for_each_task(
            maps, elements(out), [](const auto& map) { return ChannelTask<A>::count(map.data); },
            pool);
      });
}

// Pools several lists of RoIs: a row of out is the sum over the lists, in their order. Nearly
// always only one list has a valid RoI for the row. If there are more, they are pooled in turn and
// added.
template <class Op, class T>
void align_lists(const typename Op::Params& p, const RoiArrays& in, const RoiTable<SumOf<T>>& table,
                 const Tensor& out) {
  using A = SumOf<T>;
  const int64_t rows = table.rows.per_list, row_size = elements(out) / rows;
  RoiTable<A> combined;  // one row for each row of out, valid if a list has a valid RoI for it
  combined.rois.assign(static_cast<size_t>(rows), Roi<A>{RoiState::kPadding, 0, {}});
  Vector<int32_t> turn(table.rois.size()), turns(combined.rois.size(), 0);
  for (size_t k = 0; k < table.rois.size(); ++k) {
    RoiState& state = combined.rois[table.output_row(k)].state;
    if (table.rois[k].state == RoiState::kValid) turn[k] = turns[table.output_row(k)]++;
    if (state != RoiState::kNotFinite && table.rois[k].state != RoiState::kPadding) {
      state = table.rois[k].state;
    }
  }
  const int32_t max_turns = *std::max_element(turns.begin(), turns.end());
  const auto rows_of_turn = [&](int32_t n) {
    return table.only([&](int64_t k) { return turn[k] == n; });
  };
  align_valid_rows<Op, T>(p, in, rows_of_turn(0), out);
  Vector<T> added(max_turns > 1 ? static_cast<size_t>(elements(out)) : 0);
  Tensor addend = out;
  addend.data = added.data();
  for (int32_t n = 1; n < max_turns; ++n) {
    const RoiTable<A> later = rows_of_turn(n);
    align_valid_rows<Op, T>(p, in, later, addend);
    parallel_for(later.count(), later.count() * row_size, [&](int64_t i) {
      const int64_t first = table.output_row(later.order[i]) * row_size;
      T* sum = data_of<T>(out) + first;
      for (int64_t j = 0; j < row_size; ++j)
        store(sum + j, load(sum + j) + load(&added[first + j]));
    });
  }
  combined.fill_special_rows(data_of<T>(out), row_size);
}

template <class Op, class T>
void align_forward(const typename Op::Params& p, const RoiArrays& in, const Tensor& out) {
  RoiTable<SumOf<T>> table(Op::kName, in, p.bad_index);
  if (in.lists > 1) return align_lists<Op, T>(p, in, table, out);
  table.fill_special_rows(data_of<T>(out), elements(out) / out.shape[0]);
  align_valid_rows<Op, T>(p, in, std::move(table), out);
}

template <class Op, class T>
void align_backward(const typename Op::Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                    const Tensor* d_maps) {
  using A = SumOf<T>;
  Vector<PooledMap<T>> maps = pooled_maps<Op, T>(p, in, RoiTable<A>(Op::kName, in, p.bad_index));
  const T* d_out = data_of<const T>(d_out_tensor);
  const int64_t pooled_width = p.pooled_width, bins = p.pooled_height * pooled_width;

  const auto add_gradients = [&](const auto& map, size_t map_number, int64_t id) {
    const int64_t bands = map.bands_per_image();
    const ChannelTask<A> task(id / bands, map.data);
    const Band& band = map.bands[task.image * bands + id % bands];
    if (map.accumulate && band.taps.empty()) return;
    const RoiTable<A>& table = map.table;
    const TapTable<A>& tap_table = map.tap_table;
    const int64_t width = map.data.shape[3], cells = map.data.shape[2] * width;
    const int64_t begin = band.first * width;
    const int64_t band_cells = std::min(map.band_rows * width, cells - begin);
    T* const planes = data_of<T>(d_maps[map_number]) + task.offset + begin;
    A* block = scratch<A>((band_cells + bins + kMaxTogether * pooled_width) * kLanes<A>);
    A* tile = block + band_cells * kLanes<A>;
    A* rows = tile + bins * kLanes<A>;  // Ay^T . dY for a few rows of the map
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      begin_gradients(band.runs, map.accumulate, planes, cells, task.lanes, block, simd);
      for (size_t i = 0; i < band.taps.size(); ++i) {
        const Band::RoiRange& y_taps = band.taps[i];
        const Band::RoiRange& later = band.taps[std::min(i + 1, band.taps.size() - 1)];
        const Tap<A>* taps = tap_table.taps(y_taps.roi);
        const auto x_taps = tap_table.all_columns(y_taps.roi);
        // 1. Pack the gradients of the RoI's outputs, channel-last.
        const auto d_out_of = [&](const Band::RoiRange& taps_of) {
          const int64_t row = table.output_row(table.order[taps_of.roi]);
          return d_out + task.first_output(row, bins);
        };
        pack_planes(d_out_of(y_taps), bins, task.lanes, bins, tile, simd);
        GradualPrefetch<T> next_d_out(d_out_of(later), task.lanes * bins,
                                      y_taps.end - y_taps.begin);
        for (int32_t first = y_taps.begin; first < y_taps.end;) {
          // 2. Ay^T . dY for a few rows of the map. The taps are sorted by row of the map, and the
          // taps of one row are summed before the row is visited.
          A* lines[kMaxTogether];
          int found = 0;
          for (; found < kTogether<Values> && first < y_taps.end; ++found) {
            const int32_t end = end_of_cell(taps, first, y_taps.end);
            next_d_out.next(end - first);
            lines[found] = block + (taps[first].cell - band.first) * width * kLanes<A>;
            sum_rows<Values, &Tap<A>::bin>(taps, first, end, tile, pooled_width,
                                           rows + found * pooled_width * kLanes<A>);
            first = end;
          }
          // 3. Add (Ay^T . dY) . Ax to those rows. Each cell is loaded and stored once for all
          // columns of bins that read it.
          for_each_group<Values>(0, found, [&](int64_t, auto count) INLINE_LAMBDA {
            for (int32_t t = x_taps.begin; t < x_taps.end;) {
              const int32_t cell = taps[t].cell;
              const int64_t offset = taps[t].offset(kLanes<A>);
              Values totals[count];
              unrolled<count>([&](auto n)
                                  INLINE_LAMBDA { totals[n] = Values::load(lines[n] + offset); });
              for (;;) {
                const A* from = rows + taps[t].bin * kLanes<A>;
                unrolled<count>([&](auto n) INLINE_LAMBDA {
                  totals[n].add_weighted(Values::load(from + n * pooled_width * kLanes<A>),
                                         taps[t].weight);
                });
                ++t;
                if (t == x_taps.end || taps[t].cell != cell) break;
              }
              unrolled<count>([&](auto n) INLINE_LAMBDA { totals[n].store(lines[n] + offset); });
            }
          });
        }
      }
      end_gradients(band.runs, map.accumulate, block, cells, task.lanes, band_cells, planes, simd);
    });
  };
  for_each_round<Op, T>(
      p, &maps,
      [](const auto& map) { return gradients_at_a_time<T>(map.data, map.tap_table.bytes()); },
      [](auto* map) {
        map->tap_table.sort_by_cell();
        map->cut_bands();
      },
      [&] {
        for_each_task(
            maps, elements(d_out_tensor),
            [](const auto& map) { return ChannelTask<A>::count(map.data) * map.bands_per_image(); },
            add_gradients);
      });
}

template <class Op, class T>
void align_roi_gradient(const typename Op::Params& p, const RoiArrays& in, const Tensor& d_out,
                        const Tensor& d_rois) {
  using A = SumOf<T>;
  const RoiTable<A> table(Op::kName, in, p.bad_index);
  const Pyramid pyramid = Op::pyramid(p);
  const Vector<int32_t> map_of = maps_of(pyramid, table);
  const ChannelLayout layout = Op::layout(p, in.data.shape[1]);
  const int64_t bins = layout.bins();
  write_roi_gradients(
      table, in.coordinates, 4 * elements(d_out), d_rois,
      [&](int64_t k, const Roi<A>& roi, double* gradient) {
        const Tensor& data = in.maps[map_of[k]];
        const int64_t cells = data.shape[2] * data.shape[3];
        auto rule = Op::rule(p);
        rule.spatial_scale = pyramid.scale[map_of[k]];
        const RoiGradient<A> terms(p.pooled_height, p.pooled_width, rule, roi, data);
        const T* maps = data_of<const T>(data) + roi.image * data.shape[1] * cells;
        const T* d_row = data_of<const T>(d_out) + table.output_row(k) * layout.output_dim * bins;
        run_scalar<T>([&](auto simd) INLINE_LAMBDA {
          for (int64_t c = 0; c < layout.output_dim; ++c) {
            const auto plane = [&](int ph, int pw) INLINE_LAMBDA {
              return maps + (Op::kGrouped ? layout.channel(c, ph, pw) : c) * cells;
            };
            terms.add(plane, d_row + c * bins, gradient, simd);
          }
        });
      });
}

}  // namespace gluon_roi::cpu

namespace gluon_roi {

template <class Op, class P>
template <class T>
void AlignOperator<Op, P>::forward(const P& p, const RoiArrays& in, const Tensor& out) {
  cpu::align_forward<Op, T>(p, in, out);
}

template <class Op, class P>
template <class T>
void AlignOperator<Op, P>::backward(const P& p, const RoiArrays& in, const Tensor& d_out,
                                    const RoiArrays& d) {
  cpu::align_backward<Op, T>(p, in, d_out, d.maps);
  if (!is_absent(d.rois)) cpu::align_roi_gradient<Op, T>(p, in, d_out, d.rois);
}

}  // namespace gluon_roi
