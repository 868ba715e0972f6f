// SPDX-License-Identifier: Apache-2.0
#include "rotated_roi_align.h"

#include "../bindings/c.h"
#include "../cpu/box_gradient.h"
#include "../cpu/tasks.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

namespace {

template <class G>
struct WeightTap {
  int64_t cell;
  G weight;
};

template <class G>
struct SlopeTap {
  int64_t cell;
  G slopes[kRotatedCoordinates];
};

// A growing list of taps with at most one tap per cell and bin.
template <class Tap>
class TapList {
 public:
  explicit TapList(int64_t cells) : last_(static_cast<size_t>(cells), -1) {}

  const Vector<Tap>& taps() const { return taps_; }
  int64_t size() const { return static_cast<int64_t>(taps_.size()); }
  void begin_bin() { begin_ = size(); }
  // Returns the tap of a cell in the current bin, and adds it if there is none.
  Tap* tap_of(int64_t cell) {
    int64_t& index = last_[cell];
    if (index < begin_) {
      index = size();
      taps_.push_back(Tap{});
      taps_.back().cell = cell;
    }
    return &taps_[index];
  }

 private:
  Vector<Tap> taps_;
  Vector<int64_t> last_;  // for each cell, the index of its latest tap
  int64_t begin_ = 0;
};

// The taps of the bins of a chunk. The weights of a rotated box do not factor per axis, so a tap is
// a cell of the map with the sum of its weights over the samples of one bin. A bin has at most as
// many taps as the map has cells.
template <class G>
struct RoiTaps {
  using Tap = WeightTap<G>;
  Chunk chunk;
  Vector<TapList<Tap>> lists;   // one list for each share of the RoIs
  Vector<const Tap*> roi_taps;  // for each RoI, the list that has its taps
  Vector<int64_t>
      ends;  // for each RoI 1 + bins offsets into that list, where its bins begin and end
  Coverage coverage;

  RoiTaps(const RotatedRule& rule, const RoiTable<G>& table, const Chunk& rois, const Tensor& data)
      : chunk(rois),
        roi_taps(static_cast<size_t>(chunk.count())),
        ends(chunk.count() * (bins(rule) + 1)),
        coverage(data) {
    const int64_t cells = data.shape[2] * data.shape[3], count = chunk.count();
    lists.assign(static_cast<size_t>(chunk.shares()), TapList<Tap>(cells));
    parallel_for(chunk.shares(), count * bins(rule) * kElementsPerBin, [&](int64_t number) {
      TapList<Tap>& list = lists[number];
      const Chunk share = chunk.share(number);
      for (int64_t i = share.begin; i < share.end; ++i) {
        add(rule, table.rois[table.order[i]], data, i - chunk.begin, &list);
      }
      for (int64_t i = share.begin; i < share.end; ++i) {
        roi_taps[i - chunk.begin] = list.taps().data();
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      cover(table.rois[table.order[chunk.begin + i]].image, data.shape[3], roi_taps[i],
            ends[i * (bins(rule) + 1)], ends[(i + 1) * (bins(rule) + 1) - 1]);
    }
    coverage.finish();
  }

 private:
  // The cost of making a bin's taps, in the unit of parallel_for's `work`.
  static constexpr int64_t kElementsPerBin = 1000;

  static int64_t bins(const RotatedRule& rule) {
    return static_cast<int64_t>(rule.pooled_height) * rule.pooled_width;
  }
  void add(const RotatedRule& rule, const Roi<G>& roi, const Tensor& data, int64_t i,
           TapList<Tap>* list) {
    const RotatedBox<G> box =
        rule.box(roi, static_cast<int32_t>(data.shape[2]), static_cast<int32_t>(data.shape[3]));
    const G share = static_cast<G>(1) / box.divisor();
    int64_t* bin_end = ends.data() + i * (bins(rule) + 1);
    *bin_end++ = list->size();
    for (int ph = 0; ph < rule.pooled_height; ++ph) {
      for (int pw = 0; pw < rule.pooled_width; ++pw) {
        list->begin_bin();
        box.for_each_weight(
            ph, pw, [&](int64_t cell, G weight) { list->tap_of(cell)->weight += weight * share; });
        *bin_end++ = list->size();
      }
    }
  }
  void cover(int64_t image, int64_t width, const Tap* taps, int64_t from, int64_t to) {
    Run y, x;
    for (int64_t t = from; t < to; ++t) {
      y.include(taps[t].cell / width);
      x.include(taps[t].cell % width);
    }
    coverage.add(image, y, x, to - from);
  }
};

// Calls body(taps) for chunks of RoIs in their order, with an estimated 64 MB of taps each: four
// cells per sample, but not more than the cells of the map and the overlap of the bins.
template <class G, class Body>
void for_each_chunk_of_taps(const RotatedRule& rule, const RoiTable<G>& table, const Tensor& data,
                            const Body& body) {
  constexpr double kMaxTaps = 4e6;
  const double cells = static_cast<double>(data.shape[2]) * static_cast<double>(data.shape[3]);
  const double bins = static_cast<double>(rule.pooled_height) * rule.pooled_width;
  const int64_t count = table.count();
  for (int64_t begin = 0, end = 0; begin < count; begin = end) {
    for (double taps = 0; end < count && taps < kMaxTaps; ++end) {
      const double samples = rule.box(table.rois[table.order[end]], 0, 0).divisor();
      taps += std::min(4 * samples * bins, 2 * cells + 4 * bins);
    }
    body(RoiTaps<G>(rule, table, Chunk{begin, end}, data));
  }
}

// Calls body(i, k, taps, ends) for the RoIs of one image in a chunk; i is the index in the table's
// order, and k the row of rois.
template <class G, class Body>
ALWAYS_INLINE void for_each_roi(const RoiTable<G>& table, const RoiTaps<G>& taps, int64_t image,
                                int64_t bins, const Body& body) {
  const Chunk rois = table.of_image(image, taps.chunk);
  for (int64_t i = rois.begin; i < rois.end; ++i) {
    const int64_t n = i - taps.chunk.begin;
    body(i, table.order[i], taps.roi_taps[n], taps.ends.data() + n * (bins + 1));
  }
}

template <class T>
void run_roi_gradient(const RotatedROIAlign::Params& p, const Inputs& in, const Tensor& d_out,
                      const Tensor& d_rois) {
  using G = SumOf<T>;
  const RotatedRule rule = RotatedROIAlign::rule(p);
  const RoiTable<G> table(RotatedROIAlign::kName, in, p.bad_index);
  const int64_t channels = in.data.shape[1], cells = in.data.shape[2] * in.data.shape[3];
  const int64_t bins = static_cast<int64_t>(p.pooled_height) * p.pooled_width;
  write_roi_gradients(
      table, in.coordinates, 8 * elements(d_out), d_rois,
      [&](int64_t k, const Roi<G>& roi, double* gradient) {
        const RotatedBox<G> box = rule.box(roi, static_cast<int32_t>(in.data.shape[2]),
                                           static_cast<int32_t>(in.data.shape[3]));
        TapList<SlopeTap<G>> list(cells);
        Vector<int64_t> ends;
        for (int64_t bin = 0; bin < bins; ++bin) {
          list.begin_bin();
          box.for_each_gradient(static_cast<int>(bin / p.pooled_width),
                                static_cast<int>(bin % p.pooled_width),
                                [&](int64_t cell, const G* slopes) {
                                  SlopeTap<G>* tap = list.tap_of(cell);
                                  for (int i = 0; i < kRotatedCoordinates; ++i) {
                                    tap->slopes[i] += slopes[i];
                                  }
                                });
          ends.push_back(list.size());
        }
        // The slopes of a tap are the same for all channels, so the products of cell values and
        // gradients are summed over the channels first.
        const auto& taps = list.taps();
        Vector<double> sums(taps.size());
        // float16 values are gathered and converted together. (Converted one by one, they take 1.6
        // times as long as float32. Gathering float32 first takes 1.3 times as long.)
        constexpr bool kConverts = !std::is_same<T, G>::value;
        Vector<T> stored(kConverts ? taps.size() : 0);
        Vector<G> values(stored.size());
        for (int64_t c = 0; c < channels; ++c) {
          const T* map = data_of<const T>(in.data) + (roi.image * channels + c) * cells;
          const T* d_plane = data_of<const T>(d_out) + (k * channels + c) * bins;
          if constexpr (kConverts) {
            for (size_t t = 0; t < taps.size(); ++t) stored[t] = map[taps[t].cell];
            run_simd([&](auto simd) INLINE_LAMBDA {
              copy_run(stored.data(), list.size(), values.data(), simd);
            });
          }
          int64_t t = 0;
          for (int64_t bin = 0; bin < bins; ++bin) {
            const double d_bin = load(d_plane + bin);
            for (; t < ends[bin]; ++t) {
              if constexpr (kConverts) {
                sums[t] += d_bin * values[t];
              } else {
                sums[t] += d_bin * map[taps[t].cell];
              }
            }
          }
        }
        const double divisor = box.divisor();
        for (size_t t = 0; t < sums.size(); ++t) {
          for (int i = 0; i < kRotatedCoordinates; ++i) {
            gradient[i] += sums[t] * taps[t].slopes[i] / divisor;
          }
        }
        for (int i = 0; i < kScaledCoordinates; ++i)
          gradient[i] *= pow2_scale<G>(rule.spatial_scale);
      });
}

}  // namespace

template <class T>
void RotatedROIAlign::forward(const Params& p, const Inputs& in, const Tensor& out) {
  using A = SumOf<T>;
  const RoiTable<A> table(kName, in, p.bad_index);
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t cells = in.data.shape[2] * in.data.shape[3];
  const int64_t bins = static_cast<int64_t>(p.pooled_height) * p.pooled_width;
  table.fill_special_rows(result, in.data.shape[1] * bins);

  for_each_chunk_of_taps(rule(p), table, in.data, [&](const RoiTaps<A>& all) {
    const int64_t work = elements(in.data) + all.chunk.count() * in.data.shape[1] * bins;
    parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
      const ChannelTask<A> task(id, in.data);
      A* block = scratch<A>((cells + bins) * kLanes<A>);
      A* tile = block + cells * kLanes<A>;  // the outputs of one RoI, channel-last
      run_simd([&](auto simd) INLINE_LAMBDA {
        using Values = Lanes<A, decltype(simd)>;
        // The block has the cells of the image that the chunk's RoIs read.
        pack_runs(all.coverage.runs(task.image), data + task.offset, cells, task.lanes, block,
                  simd);
        for_each_roi(
            table, all, task.image, bins,
            [&](int64_t i, int64_t k, const WeightTap<A>* taps, const int64_t* ends) INLINE_LAMBDA {
              GradualPrefetch<T> target(result + task.first_output(table.ahead(i), bins),
                                        task.lanes * bins, bins);
              const auto add_tap = [&](const WeightTap<A>& tap, Values* sum) INLINE_LAMBDA {
                sum->add_weighted(Values::load(block + tap.cell * kLanes<A>), tap.weight);
              };
              for (int64_t bin = 0; bin < bins; ++bin) {
                target.next();
                // Two independent sums hide the latency of additions.
                Values even = Values::all(0), odd = Values::all(0);
                int64_t t = ends[bin];
                for (; t + 1 < ends[bin + 1]; t += 2) {
                  add_tap(taps[t], &even);
                  add_tap(taps[t + 1], &odd);
                }
                if (t < ends[bin + 1]) add_tap(taps[t], &even);
                even += odd;
                even.store(tile + bin * kLanes<A>);
              }
              unpack_planes(tile, bins, task.lanes, bins, result + task.first_output(k, bins),
                            simd);
            });
      });
    });
  });
}

template <class T>
void RotatedROIAlign::backward(const Params& p, const Inputs& in, const Tensor& d_out_tensor,
                               const Gradients& d) {
  using A = SumOf<T>;
  const RoiTable<A> table(kName, in, p.bad_index);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* result = data_of<T>(d.data);
  const int64_t cells = in.data.shape[2] * in.data.shape[3];
  const int64_t bins = static_cast<int64_t>(p.pooled_height) * p.pooled_width;
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

  for_each_chunk_of_taps(rule(p), table, in.data, [&](const RoiTaps<A>& all) {
    const int64_t work = elements(d.data) + all.chunk.count() * in.data.shape[1] * bins;
    parallel_for(ChannelTask<A>::count(in.data), work, [&](int64_t id) {
      const ChannelTask<A> task(id, in.data);
      A* block = scratch<A>((cells + bins) * kLanes<A>);
      A* tile = block + cells * kLanes<A>;
      const auto& runs = all.coverage.runs(task.image);
      run_simd([&](auto simd) INLINE_LAMBDA {
        using Values = Lanes<A, decltype(simd)>;
        pack_runs(runs, sums + task.offset, cells, task.lanes, block, simd);
        for_each_roi(
            table, all, task.image, bins,
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
