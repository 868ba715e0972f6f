// SPDX-License-Identifier: Apache-2.0
#include "rotated_roi_align.h"

#include "../bindings/c.h"
#include "../cpu/box_gradient.h"
#include "../cpu/rotated_taps.h"
#include "../cpu/tasks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

namespace {

template <class G>
SampledBox<G> box_of(const RotatedRule& rule, const Roi<G>& roi, const Tensor& data) {
  return rule.box(roi, static_cast<int32_t>(data.shape[2]), static_cast<int32_t>(data.shape[3]));
}

// The cost of making a bin's taps, in the unit of parallel_for's `work`.
constexpr int64_t kElementsPerBin = 1000;

// ---- Lists of taps, for many channels -----------------------------------------------------------

// The taps of a chunk of RoIs, and the cells that they read.
template <class G>
struct ChunkTaps {
  Chunk chunk{0, 0};
  Vector<const WeightTap<G>*> taps;  // of each RoI
  Vector<const int64_t*> ends;       // of each RoI
  Coverage coverage;

  // Makes the taps of a chunk, of which there are about `estimate`, reusing the memory of the
  // previous chunk.
  void make(const RotatedRule& rule, const RoiTable<G>& table, const Chunk& rois, int64_t estimate,
            const Tensor& data) {
    chunk = rois;
    coverage = Coverage(data);
    const int64_t bins = rule.bins(), shares = chunk.shares();
    const auto count = static_cast<size_t>(chunk.count());
    taps.resize(count);
    ends.resize(count);
    cells_.resize(count);
    shares_.resize(std::max(shares_.size(), static_cast<size_t>(shares)));
    parallel_for(shares, chunk.count() * bins * kElementsPerBin, [&](int64_t number) {
      RoiTaps<G>& list = shares_[number];
      const Chunk share = chunk.share(number);
      list.clear();
      list.reserve(estimate / shares);
      for (int64_t i = share.begin; i < share.end; ++i) {
        const Roi<G>& roi = table.rois[table.order[i]];
        cells_[i - chunk.begin] = list.add(rule, box_of(rule, roi, data));
      }
    });
    for (int64_t number = 0; number < shares; ++number) {
      const RoiTaps<G>& list = shares_[number];
      const Chunk share = chunk.share(number);
      for (int64_t i = share.begin; i < share.end; ++i) {
        const int64_t n = i - chunk.begin;
        const CellRect& rect = cells_[n];
        taps[n] = list.taps();
        ends[n] = list.ends() + (i - share.begin) * (bins + 1);
        coverage.add(table.rois[table.order[i]].image, Run{rect.y0, rect.y1}, Run{rect.x0, rect.x1},
                     ends[n][bins] - ends[n][0]);
      }
    }
    coverage.finish();
  }

 private:
  Vector<RoiTaps<G>> shares_;  // of the RoIs
  Vector<CellRect> cells_;     // of each RoI
};

// Calls body(taps) for chunks of RoIs in their order. A chunk has an estimated 8 taps for each cell
// of the map, so that packing the map again costs little in comparison, but at least 4 and at most
// 64 MB of them.
template <class G, class Body>
void for_each_chunk_of_taps(const RotatedRule& rule, const RoiTable<G>& table, const Tensor& data,
                            const Body& body) {
  const int64_t cells = data.shape[0] * data.shape[2] * data.shape[3];
  const int64_t max_taps = std::clamp<int64_t>(8 * cells, 1 << 18, 1 << 22);
  const int64_t count = table.count();
  ChunkTaps<G> chunk;
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    int64_t taps = 0;
    for (; end < count && taps < max_taps; ++end) {
      taps += estimated_taps(rule, box_of(rule, table.rois[table.order[end]], data));
    }
    chunk.make(rule, table, Chunk{begin, end}, taps, data);
    body(chunk);
  }
}

// Calls body(i, k, taps, ends) for the RoIs of one image in a chunk; i is the index in the table's
// order, and k the row of rois.
template <class G, class Body>
ALWAYS_INLINE void for_each_roi(const RoiTable<G>& table, const ChunkTaps<G>& taps, int64_t image,
                                const Body& body) {
  const Chunk rois = table.of_image(image, taps.chunk);
  for (int64_t i = rois.begin; i < rois.end; ++i) {
    const int64_t n = i - taps.chunk.begin;
    body(i, table.order[i], taps.taps[n], taps.ends[n]);
  }
}

// ---- Forward ------------------------------------------------------------------------------------

// The sum of weight times cell over taps. Even and odd taps have sums of their own, because an
// addition waits for the previous one.
template <class Values>
struct TapSum {
  Values next = Values::all(0), other = Values::all(0);

  // The cells of `map` have a number for each lane.
  template <class G, class T>
  ALWAYS_INLINE void add(const WeightTap<G>& tap, const T* map) {
    next.add_weighted(Values::load(map + tap.cell * Values::kCount), tap.weight);
    std::swap(next, other);
  }
  ALWAYS_INLINE Values total() const {
    Values sum = next;
    sum += other;
    return sum;
  }
};

// Packed maps need a list of taps that is kept, which takes about as long as reading this many
// channels directly.
constexpr int64_t kChannelsToList = 4;

// Whether the RoIs of an image read so few cells that reading its maps directly is faster than
// packing them.
template <class G>
bool reads_few(const Coverage& coverage, int64_t image, int64_t channels) {
  return coverage.unpacked_is_faster(image, 1, blocks_of<G>(channels), channels - kChannelsToList);
}

// Pools a RoI from the maps of its image, channel by channel.
template <class T, class A>
void pool_channels(const RotatedRule& rule, const SampledBox<A>& box, const T* maps,
                   int64_t channels, RoiTaps<A>* list, T* out) {
  const int64_t bins = rule.bins(), cells = int64_t{box.height} * box.width;
  list->clear();
  list->add(rule, box);
  const WeightTap<A>* const taps = list->taps();
  const int64_t* const ends = list->ends();
  run_scalar<T>([&](auto simd) INLINE_LAMBDA {
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t bin = 0; bin < bins; ++bin) {
        TapSum<Lanes<A, OneChannel<decltype(simd)>>> sum;
        for (int64_t t = ends[bin]; t < ends[bin + 1]; ++t) sum.add(taps[t], maps + c * cells);
        sum.total().store(out + c * bins + bin);
      }
    }
  });
}

// The same for a single channel: taps are used where they are made.
template <class T, class A>
void pool_one_channel(const RotatedRule& rule, const SampledBox<A>& box, const T* map,
                      BinTaps<A>* taps, T* out) {
  taps->begin(rule, box);
  run_scalar<T>([&](auto simd) INLINE_LAMBDA {
    for (int p = 0; p < rule.pooled_height; ++p) {
      for (int q = 0; q < rule.pooled_width; ++q) {
        TapSum<Lanes<A, OneChannel<decltype(simd)>>> sum;
        taps->for_each(p, q, [&](const WeightTap<A>& tap) INLINE_LAMBDA { sum.add(tap, map); });
        sum.total().store(out++);
      }
    }
  });
}

// Pools RoIs that read few cells.
template <class T>
void pool_few_cells(const RotatedRule& rule, const RoiTable<SumOf<T>>& table, const Tensor& data,
                    T* out) {
  using A = SumOf<T>;
  const int64_t channels = data.shape[1], cells = data.shape[2] * data.shape[3];
  const Chunk all{0, table.count()};
  parallel_for(all.shares(), all.count() * rule.bins() * kElementsPerBin, [&](int64_t number) {
    BinTaps<A> bin_taps;
    RoiTaps<A> roi_taps;
    const Chunk share = all.share(number);
    for (int64_t i = share.begin; i < share.end; ++i) {
      const Roi<A>& roi = table.rois[table.order[i]];
      const SampledBox<A> box = box_of(rule, roi, data);
      const T* const maps = data_of<const T>(data) + roi.image * channels * cells;
      T* const row = out + table.order[i] * channels * rule.bins();
      // Cells that are far apart are rarely in a cache; reads of a list wait for many at once.
      if (channels == 1 && !box.samples_share_no_cells()) {
        pool_one_channel(rule, box, maps, &bin_taps, row);
      } else {
        pool_channels(rule, box, maps, channels, &roi_taps, row);
      }
    }
  });
}

// ---- Backward -----------------------------------------------------------------------------------

template <class T>
void run_roi_gradient(const RotatedROIAlign::Params& p, const RoiArrays& in, const Tensor& d_out,
                      const Tensor& d_rois) {
  using A = SumOf<T>;
  const RotatedRule rule = RotatedROIAlign::rule(p);
  const RoiTable<A> table(RotatedROIAlign::kName, in, p.bad_index);
  const int64_t channels = in.data.shape[1], cells = in.data.shape[2] * in.data.shape[3];
  const int64_t bins = rule.bins();
  write_roi_gradients(
      table, in.coordinates, 8 * elements(d_out), d_rois,
      [&](int64_t k, const Roi<A>& roi, double* gradient) {
        const SampledBox<A> box = box_of(rule, roi, in.data);
        const SlopeTaps<A> taps(rule, box);
        const int64_t* const tap_cells = taps.cells.data();
        const int64_t* const ends = taps.ends.data();
        // The slopes of a tap are the same for all channels, so the products of cell values and
        // gradients are summed over the channels first.
        Vector<double> sums(taps.cells.size());
        // float16 values are gathered and converted together. (Converted one by one, they take 1.6
        // times as long as float32. Gathering float32 first takes 1.3 times as long.)
        constexpr bool kConverts = !std::is_same<T, A>::value;
        Vector<T> stored(kConverts ? sums.size() : 0);
        Vector<A> values(stored.size());
        for (int64_t c = 0; c < channels; ++c) {
          const T* map = data_of<const T>(in.data) + (roi.image * channels + c) * cells;
          const T* d_plane = data_of<const T>(d_out) + (k * channels + c) * bins;
          if constexpr (kConverts) {
            for (size_t t = 0; t < stored.size(); ++t) stored[t] = map[tap_cells[t]];
            run_simd([&](auto simd) INLINE_LAMBDA {
              copy_run(stored.data(), static_cast<int64_t>(stored.size()), values.data(), simd);
            });
          }
          int64_t t = 0;
          for (int64_t bin = 0; bin < bins; ++bin) {
            const double d_bin = load(d_plane + bin);
            for (; t < ends[bin]; ++t) {
              if constexpr (kConverts) {
                sums[t] += d_bin * values[t];
              } else {
                sums[t] += d_bin * map[tap_cells[t]];
              }
            }
          }
        }
        const double divisor = box.divisor();
        for (size_t t = 0; t < sums.size(); ++t) {
          for (int i = 0; i < kRotatedCoordinates; ++i) {
            gradient[i] += sums[t] * taps.slopes[t].of[i] / divisor;
          }
        }
      });
}

}  // namespace

template <class T>
void RotatedROIAlign::forward(const Params& p, const RoiArrays& in, const Tensor& out) {
  using A = SumOf<T>;
  const RotatedRule box_rule = rule(p);
  const RoiTable<A> all_rois(kName, in, p.bad_index);
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t channels = in.data.shape[1], cells = in.data.shape[2] * in.data.shape[3];
  const int64_t bins = box_rule.bins();
  all_rois.fill_special_rows(result, channels * bins);

  // With fewer channels, reading directly is always chosen, and no estimate is needed.
  Coverage estimate(in.data);
  if (channels > kChannelsToList + 1) {
    for (const int64_t k : all_rois.order) {
      const SampledBox<A> box = box_of(box_rule, all_rois.rois[k], in.data);
      const CellRect rect = box.cells();
      estimate.add(all_rois.rois[k].image, Run{rect.y0, rect.y1}, Run{rect.x0, rect.x1},
                   estimated_taps(box_rule, box));
    }
  }
  estimate.finish();
  const auto is_direct = [&](int64_t k) {
    return reads_few<A>(estimate, all_rois.rois[k].image, channels);
  };
  pool_few_cells(box_rule, all_rois.only(is_direct), in.data, result);

  const RoiTable<A> table = all_rois.only([&](int64_t k) { return !is_direct(k); });
  for_each_chunk_of_taps(box_rule, table, in.data, [&](const ChunkTaps<A>& chunk_taps) {
    const int64_t work = elements(in.data) + chunk_taps.chunk.count() * channels * bins;
    parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
      const ChannelTask<A> task(id, in.data);
      A* block = scratch<A>((cells + bins) * kLanes<A>);
      A* tile = block + cells * kLanes<A>;  // the outputs of one RoI, channel-last
      run_simd([&](auto simd) INLINE_LAMBDA {
        // The block has the cells of the image that the chunk's RoIs read.
        pack_runs(chunk_taps.coverage.runs(task.image), data + task.offset, cells, task.lanes,
                  block, simd);
        for_each_roi(
            table, chunk_taps, task.image,
            [&](int64_t i, int64_t k, const WeightTap<A>* taps, const int64_t* ends) INLINE_LAMBDA {
              GradualPrefetch<T> target(result + task.first_output(table.ahead(i), bins),
                                        task.lanes * bins, bins);
              for (int64_t bin = 0; bin < bins; ++bin) {
                target.next();
                TapSum<Lanes<A, decltype(simd)>> sum;
                for (int64_t t = ends[bin]; t < ends[bin + 1]; ++t) sum.add(taps[t], block);
                sum.total().store(tile + bin * kLanes<A>);
              }
              unpack_planes(tile, bins, task.lanes, bins, result + task.first_output(k, bins),
                            simd);
            });
      });
    });
  });
}

template <class T>
void RotatedROIAlign::backward(const Params& p, const RoiArrays& in, const Tensor& d_out_tensor,
                               const RoiArrays& d) {
  using A = SumOf<T>;
  const RotatedRule box_rule = rule(p);
  const RoiTable<A> table(kName, in, p.bad_index);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t cells = in.data.shape[2] * in.data.shape[3], bins = box_rule.bins();
  // Each chunk adds to the sums of the previous ones; float16 is summed in float32.
  Vector<A> own_sums;
  A* sums;
  if constexpr (std::is_same<T, A>::value) {
    sums = result;
    zero_fill(Cpu{}, d.data);
  } else {
    own_sums.resize(static_cast<size_t>(elements(d.data)));
    sums = own_sums.data();
  }

  for_each_chunk_of_taps(box_rule, table, in.data, [&](const ChunkTaps<A>& chunk_taps) {
    const int64_t work = elements(d.data) + chunk_taps.chunk.count() * in.data.shape[1] * bins;
    parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
      const ChannelTask<A> task(id, in.data);
      if (reads_few<A>(chunk_taps.coverage, task.image, in.data.shape[1])) {
        for_each_roi(
            table, chunk_taps, task.image,
            [&](int64_t, int64_t k, const WeightTap<A>* taps, const int64_t* ends) INLINE_LAMBDA {
              for (int lane = 0; lane < task.lanes; ++lane) {
                A* const plane = sums + task.offset + lane * cells;
                const T* const d_bins = d_out + task.first_output(k, bins) + lane * bins;
                for (int64_t bin = 0; bin < bins; ++bin) {
                  const A d_bin = load(d_bins + bin);
                  for (int64_t t = ends[bin]; t < ends[bin + 1]; ++t) {
                    plane[taps[t].cell] += d_bin * taps[t].weight;
                  }
                }
              }
            });
        return;
      }
      A* block = scratch<A>((cells + bins) * kLanes<A>);
      A* tile = block + cells * kLanes<A>;
      const auto& runs = chunk_taps.coverage.runs(task.image);
      run_simd([&](auto simd) INLINE_LAMBDA {
        using Values = Lanes<A, decltype(simd)>;
        pack_runs(runs, sums + task.offset, cells, task.lanes, block, simd);
        for_each_roi(
            table, chunk_taps, task.image,
            [&](int64_t i, int64_t k, const WeightTap<A>* taps, const int64_t* ends) INLINE_LAMBDA {
              pack_planes(d_out + task.first_output(k, bins), bins, task.lanes, bins, tile, simd);
              GradualPrefetch<T> next_d_out(d_out + task.first_output(table.ahead(i), bins),
                                            task.lanes * bins, bins);
              for (int64_t bin = 0; bin < bins; ++bin) {
                next_d_out.next();
                const Values d_bin = Values::load(tile + bin * kLanes<A>);
                for (int64_t t = ends[bin]; t < ends[bin + 1]; ++t) {
                  d_bin.weighted(taps[t].weight).add_to(block + taps[t].cell * kLanes<A>);
                }
              }
            });
        unpack_runs(runs, block, cells, task.lanes, sums + task.offset, simd);
      });
    });
  });
  if constexpr (!std::is_same<T, A>::value) {
    const int64_t planes = d.data.shape[0] * d.data.shape[1];
    parallel_for(planes, elements(d.data), [&](int64_t plane) {
      run_simd([&](auto simd) INLINE_LAMBDA {
        copy_run(sums + plane * cells, cells, result + plane * cells, simd);
      });
    });
  }
  if (!is_absent(d.rois)) run_roi_gradient<T>(p, in, d_out_tensor, d.rois);
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(RotatedROIAlign, rotated_roi_align)
