// SPDX-License-Identifier: Apache-2.0
#include "deformable_sampling.h"

#include "../bindings/c.h"
#include "../cpu/coverage.h"
#include "../cpu/memory.h"
#include "../cpu/sample_lanes.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

void DeformableSampling::infer(const Params& p, const View& in, Tensor* out, int64_t max_elements) {
  *out = infer_deformable(kName, p, in, max_elements);
  const auto multiply = [&](int axis, int64_t by) {
    const int64_t size = out->shape[axis];
    if (size < 0 || multiply_up_to(max_elements, size, by, &out->shape[axis])) return;
    fail(kName, "argument kernel: expected at most ", max_elements,
         " elements of the output along axis ", axis, ", got ", size, " * ", by);
  };
  if (p.layout == GLUON_ROI_COLUMNS) {
    multiply(1, int64_t{p.kernel_height} * p.kernel_width);
  } else {
    multiply(2, p.kernel_height);
    multiply(3, p.kernel_width);
  }
  check_elements(kName, "output", *out, max_elements);
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

using Params = DeformableSampling::Params;
using View = DeformableSampling::View;

// The cost of computing a sample's position and weights, in the unit of parallel_for's `work`.
constexpr int64_t kElementsPerSample = 20;

// A call, whose tasks are pairs combined with blocks of channels.
template <class T>
struct Call : SampledPairs<T> {
  using SampledPairs<T>::sampler;
  int64_t blocks;

  Call(const Params& p, const View& in)
      : SampledPairs<T>(p, in), blocks(blocks_of<SumOf<T>>(this->channels)) {}

  int64_t rows() const { return sampler.kernel.out_height; }
  // Calls body(x, i, j) for the samples of a row of output positions, in the memory order of
  // offset.
  template <class Body>
  void for_each_sample(const Body& body) const {
    for (int32_t i = 0; i < sampler.kernel.kernel_height; ++i) {
      for (int32_t j = 0; j < sampler.kernel.kernel_width; ++j) {
        for (int64_t x = 0; x < sampler.kernel.out_width; ++x) body(x, i, j);
      }
    }
  }
};

// The taps of the samples of a range of pairs. The taps of a pair take as much memory as 8 channels
// of its output.
template <class T>
class SampleTable {
 public:
  using A = SumOf<T>;
  const int64_t first, count;  // pairs

  // `around`: also store the cells around each sample, for the gradients of offset and mask.
  SampleTable(const Call<T>& call, int64_t first_pair, int64_t pairs, bool around)
      : first(first_pair),
        count(pairs),
        samples_(call.samples),
        taps_(static_cast<size_t>(pairs * samples_)),
        around_(around ? taps_.size() : 0),
        runs_(static_cast<size_t>(pairs)) {
    const int64_t rows = call.rows();
    Vector<Run> touched(static_cast<size_t>(pairs * rows));
    parallel_for(pairs * rows, kElementsPerSample * pairs * samples_,
                 [&](int64_t row) { touched[row] = find_row(call, row / rows, row % rows); });
    for (int64_t row = 0; row < pairs * rows; ++row) {
      if (touched[row].empty()) continue;
      auto& runs = runs_[row / rows];
      if (runs.empty()) runs.emplace_back();
      runs[0].include(touched[row]);
    }
  }

  // The samples of a pair; `pair` is relative to `first`.
  const SampleTaps<A>* taps(int64_t pair) const { return taps_.data() + pair * samples_; }
  const SampleCells<A>* around(int64_t pair) const { return around_.data() + pair * samples_; }
  // The cells that the pair's samples read are in these runs.
  const Vector<Run>& runs(int64_t pair) const { return runs_[pair]; }

 private:
  Run find_row(const Call<T>& call, int64_t pair, int64_t y) {
    Run touched;
    call.for_each_sample([&](int64_t x, int32_t i, int32_t j) {
      const SampleCells<A> sample = call.sampler.find(first + pair, y, x, i, j);
      const int64_t sample_number = pair * samples_ + call.sampler.kernel.sample_index(y, x, i, j);
      taps_[sample_number] =
          call.sampler.taps(sample, call.sampler.mask_of(first + pair, y, x, i, j));
      if (!around_.empty()) around_[sample_number] = sample;
      for (const int64_t cell : sample.cell) {
        if (cell != call.sampler.kernel.no_cell()) touched.include(cell);
      }
    });
    return touched;
  }

  const int64_t samples_;
  Vector<SampleTaps<A>> taps_;
  Vector<SampleCells<A>> around_;
  Vector<Vector<Run>> runs_;
};

// Calls body(table) for consecutive ranges of pairs, whose tables take about 16 MB.
template <class T, class Body>
void for_each_table(const Call<T>& call, bool around, const Body& body) {
  constexpr int64_t kMaxSamples = 1 << 19;
  const int64_t step = std::max<int64_t>(1, kMaxSamples / std::max<int64_t>(1, call.samples));
  for (int64_t first = 0; first < call.pairs; first += step) {
    body(SampleTable<T>(call, first, std::min(step, call.pairs - first), around));
  }
}

// A task: a pair and a block of its channels.
template <class T>
struct SampleTask {
  int64_t pair, block;  // pair: relative to the table's first pair
  int64_t map, output;  // offsets of the first channel, in elements
  int lanes;

  SampleTask(int64_t task, const Call<T>& call, int64_t first_pair) {
    using A = SumOf<T>;
    pair = task / call.blocks;
    block = task % call.blocks;
    const int64_t channel = block * kLanes<A>;
    map = ((first_pair + pair) * call.channels + channel) * call.cells;
    output = ((first_pair + pair) * call.channels + channel) * call.samples;
    lanes = static_cast<int>(std::min<int64_t>(kLanes<A>, call.channels - channel));
  }
};

// Writes the gradients of offset and mask for a row of output positions. total[k * samples +
// sample] is the sum over the channels of the value of cell k around the sample times the output
// gradient.
template <class T>
void write_offset_gradients(const Call<T>& call, const SampleTable<T>& table, int64_t pair,
                            int64_t y, const SumOf<T>* total, const View& d) {
  using A = SumOf<T>;
  call.for_each_sample([&](int64_t x, int32_t i, int32_t j) {
    const int64_t number = call.sampler.kernel.sample_index(y, x, i, j);
    A sum[4];
    for (int k = 0; k < 4; ++k) sum[k] = total[k * call.samples + number];
    call.sampler.store_gradients(table.first + pair, y, x, i, j, table.around(pair)[number], sum,
                                 data_of<T>(d.offset), data_of<T>(d.mask));
  });
}

}  // namespace

template <class T>
void DeformableSampling::forward(const Params& p, const View& in, const Tensor& out) {
  using A = SumOf<T>;
  constexpr int64_t kAtATime = 256;
  const Call<T> call(p, in);
  const T* data = data_of<const T>(in.data);
  T* result = data_of<T>(out);
  const int64_t cells = call.cells, samples = call.samples;

  for_each_table(call, false, [&](const SampleTable<T>& table) {
    const int64_t work = table.count * call.channels * (cells + 4 * samples);
    parallel_for(table.count * call.blocks, work, [&](int64_t id) {
      const SampleTask<T> task(id, call, table.first);
      A* block = scratch<A>((cells + 1 + kAtATime) * kLanes<A>);
      A* tile = block + (cells + 1) * kLanes<A>;
      std::fill(tile - kLanes<A>, tile, A(0));  // the cell no_cell(), the last of the block
      const SampleTaps<A>* taps = table.taps(task.pair);
      run_simd([&](auto simd) INLINE_LAMBDA {
        using Values = Lanes<A, decltype(simd)>;
        pack_runs(table.runs(task.pair), data + task.map, cells, task.lanes, block, simd);
        for (int64_t begin = 0; begin < samples; begin += kAtATime) {
          const int64_t count = std::min(kAtATime, samples - begin);
          for (int64_t i = 0; i < count; ++i) {
            sample_lanes<Values>(block, taps[begin + i]).store(tile + i * kLanes<A>);
          }
          unpack_planes(tile, samples, task.lanes, count, result + task.output + begin, simd);
        }
      });
    });
  });
}

template <class T>
void DeformableSampling::backward(const Params& p, const View& in, const Tensor& d_out_tensor,
                                  const View& d) {
  using A = SumOf<T>;
  constexpr int64_t kAtATime = 64;
  const Call<T> call(p, in);
  const T* data = data_of<const T>(in.data);
  const T* d_out = data_of<const T>(d_out_tensor);
  T* d_data = data_of<T>(d.data);
  const int64_t cells = call.cells, samples = call.samples;
  const bool offset_gradients = !is_absent(d.offset) || !is_absent(d.mask);

  for_each_table(call, offset_gradients, [&](const SampleTable<T>& table) {
    // First the sums of each block of channels, then the sums over the blocks, in this order.
    Vector<A> sums(static_cast<size_t>(
        offset_gradients ? table.count * std::max<int64_t>(1, call.blocks) * 4 * samples : 0));
    const int64_t work = table.count * call.channels * (2 * cells + 8 * samples);
    parallel_for(table.count * call.blocks, work, [&](int64_t id) {
      const SampleTask<T> task(id, call, table.first);
      const auto& runs = table.runs(task.pair);
      const int64_t block_size = (cells + 1) * kLanes<A>;
      A* d_block = scratch<A>(2 * block_size + 3 * kAtATime * kLanes<A>);
      A* block = d_block + block_size;
      A* tile = block + block_size;  // output gradients of a few samples, channel-last
      // The gradients of the samples times the values of their cells k, channel-last.
      A* products = tile + kAtATime * kLanes<A>;
      A* planes = products + kAtATime * kLanes<A>;  // the same, channel-first
      // The cell no_cell(), the last of both blocks.
      std::fill(block - kLanes<A>, block, A(0));
      std::fill(tile - kLanes<A>, tile, A(0));
      run_simd([&](auto simd) INLINE_LAMBDA {
        using Values = Lanes<A, decltype(simd)>;
        clear_runs(runs, d_block);
        if (offset_gradients) pack_runs(runs, data + task.map, cells, task.lanes, block, simd);
        for (int64_t begin = 0; begin < samples; begin += kAtATime) {
          const int64_t count = std::min(kAtATime, samples - begin);
          pack_planes(d_out + task.output + begin, samples, task.lanes, count, tile, simd);
          const SampleTaps<A>* taps = table.taps(task.pair) + begin;
          for (int64_t i = 0; i < count; ++i) {
            const Values d_sample = Values::load(tile + i * kLanes<A>);
            for (int k = 0; k < 4; ++k) {
              d_sample.weighted(taps[i].weight[k])
                  .add_to(d_block + int64_t{taps[i].cell[k]} * kLanes<A>);
            }
          }
          if (!offset_gradients) continue;
          const SampleCells<A>* around = table.around(task.pair) + begin;
          for (int k = 0; k < 4; ++k) {
            for (int64_t i = 0; i < count; ++i) {
              Values product = Values::load(block + int64_t{around[i].cell[k]} * kLanes<A>);
              product *= Values::load(tile + i * kLanes<A>);
              product.store(products + i * kLanes<A>);
            }
            unpack_planes(products, kAtATime, task.lanes, count, planes, simd);
            A* sum = sums.data() + (id * 4 + k) * samples + begin;
            for (int lane = 0; lane < task.lanes; ++lane) {
              const A* plane = planes + lane * kAtATime;
#pragma omp simd
              for (int64_t i = 0; i < count; ++i) sum[i] += plane[i];
            }
          }
        }
        clear_others(runs, cells, task.lanes, cells, d_data + task.map);
        unpack_runs(runs, d_block, cells, task.lanes, d_data + task.map, simd);
      });
    });
    if (!offset_gradients) return;

    const DeformKernel& kernel = call.sampler.kernel;
    const int64_t rows = call.rows();
    const int64_t more = table.count * samples * (4 * call.blocks + kElementsPerSample);
    parallel_for(table.count * rows, more, [&](int64_t row) {
      const int64_t pair = row / rows, y = row % rows;
      A* total = sums.data() + pair * std::max<int64_t>(1, call.blocks) * 4 * samples;
      for (int64_t k = 4; k < call.blocks * 4; ++k) {
        for (int64_t run = 0; run < kernel.runs(); ++run) {
          const A* from = total + k * samples + kernel.run_begin(run, y);
          A* to = total + k % 4 * samples + kernel.run_begin(run, y);
#pragma omp simd
          for (int64_t i = 0; i < kernel.run_length(); ++i) to[i] += from[i];
        }
      }
      write_offset_gradients(call, table, pair, y, total, d);
    });
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(DeformableSampling, deformable_sampling)
