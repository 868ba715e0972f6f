// SPDX-License-Identifier: Apache-2.0
// How an operator's work is divided into tasks: images and blocks of channels.
#pragma once
#include "../core/geometry/channels.h"
#include "coverage.h"
#include "memory.h"
#include "threads.h"

namespace gluon_roi::cpu {

// The RoIs of one image against kLanes output channels of some groups (gh, gw) of one row gh, that
// is, against the score maps (c * GH + gh) * GW + gw of kLanes consecutive c.
template <class A>
struct GroupTask {
  // Groups in a task. With 8, the outputs of a channel that are written together fill a register,
  // and one prefetch serves all of them.
  static constexpr int kMaxGroups = 8;

  int64_t image, channel, offset, stride;  // first output channel; first map and step, in elements
  int lanes;
  int groups;
  int p_begin, p_end, q_begin, q_end;  // the bins that read these groups
  int q_edge[kMaxGroups + 1];          // the first column of bins of each group, and the end

  GroupTask(int64_t task, const PositionSensitive& layout, const Tensor& data, int across = 1)
      : output_dim_(layout.output_dim) {
    const int64_t cells = data.shape[2] * data.shape[3];
    const int64_t blocks = blocks_of<A>(layout.output_dim);
    const int64_t tasks_per_row = div_up(layout.group_width, across);
    const int gw = static_cast<int>(task % tasks_per_row) * across;
    const int gh = static_cast<int>(task / tasks_per_row % layout.group_height);
    const int64_t block = task / tasks_per_row / layout.group_height;
    image = block / blocks;
    channel = block % blocks * kLanes<A>;
    lanes = static_cast<int>(std::min<int64_t>(kLanes<A>, layout.output_dim - channel));
    groups = std::min(across, layout.group_width - gw);
    stride = static_cast<int64_t>(layout.group_height) * layout.group_width * cells;
    offset =
        (image * data.shape[1] + (channel * layout.group_height + gh) * layout.group_width + gw) *
        cells;
    p_begin = layout.first_bin(gh, layout.group_height, layout.pooled_height);
    p_end = layout.first_bin(gh + 1, layout.group_height, layout.pooled_height);
    for (int g = 0; g <= groups; ++g) {
      q_edge[g] = layout.first_bin(gw + g, layout.group_width, layout.pooled_width);
    }
    q_begin = q_edge[0], q_end = q_edge[groups];
  }
  // The first output of RoI k for these channels; each channel has `outputs`.
  ALWAYS_INLINE int64_t first_output(int64_t k, int64_t outputs) const {
    return (k * output_dim_ + channel) * outputs;
  }
  // The share of a RoI's bins that read these groups.
  double share_of_bins(const PositionSensitive& layout) const {
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
  static int64_t count(const PositionSensitive& layout, const Tensor& data, int across = 1) {
    return data.shape[0] * blocks_of<A>(layout.output_dim) * layout.group_height *
           (div_up(layout.group_width, across));
  }
  // The best number of groups in a task: their blocks fit into the second-level cache together, and
  // enough tasks are left for all threads.
  static int groups_across(const PositionSensitive& layout, const Tensor& data) {
    constexpr int64_t kBlocksBytes = 3 << 19;
    constexpr int kTasksPerThread = 4;
    const int64_t bytes = data.shape[2] * data.shape[3] * kCellBytes;
    const int64_t cached = bytes > 0 ? kBlocksBytes / bytes : kMaxGroups;
    int across = static_cast<int>(std::min<int64_t>({cached, kMaxGroups, layout.group_width}));
    while (across > 1 && count(layout, data, across) < kTasksPerThread * max_threads()) --across;
    // Makes the tasks of a row about equally wide.
    const int tasks_per_row = across > 1 ? div_up(layout.group_width, across) : layout.group_width;
    return div_up(layout.group_width, tasks_per_row);
  }

 private:
  int64_t output_dim_;
};

// Runs kernel(task, block, tile, simd) for a task that reads its score maps: with all channels at
// once, on a channel block for each group, or channel by channel on the maps themselves, whichever
// is faster. The tile has room for a row of the task's bins.
template <class T, class Kernel>
void read_maps(const GroupTask<SumOf<T>>& task, const PositionSensitive& layout,
               const Coverage& coverage, const T* data, int64_t cells, const Kernel& kernel) {
  using A = SumOf<T>;
  const int64_t bins = task.q_end - task.q_begin;
  if (coverage.unpacked_is_faster(task.image, task.share_of_bins(layout), task.groups,
                                  task.lanes)) {
    A* tile = scratch<A>(bins);
    run_scalar<T>([&](auto simd) INLINE_LAMBDA {
      for (int lane = 0; lane < task.lanes; ++lane) {
        const GroupTask<A> one = task.only(lane);
        kernel(one, data + one.offset, tile, OneChannel<decltype(simd)>{});
      }
    });
    return;
  }
  A* block = scratch<A>((task.groups * cells + bins) * kLanes<A>);
  run_simd([&](auto simd) INLINE_LAMBDA {
    for (int g = 0; g < task.groups; ++g) {
      pack_runs(coverage.runs(task.image), data + task.offset + g * cells, task.stride, task.lanes,
                block + g * cells * kLanes<A>, simd);
    }
    kernel(task, block, block + task.groups * cells * kLanes<A>, simd);
  });
}

// The same for a task that adds to the gradients of its score maps. If `earlier`, tasks have
// written there before and it adds to their sums; otherwise it writes all cells. (float16 is summed
// in float32, so it has no earlier tasks.)
template <class T, class Kernel>
void add_to_maps(const GroupTask<SumOf<T>>& task, const PositionSensitive& layout,
                 const Coverage& coverage, bool earlier, T* d_data, int64_t cells,
                 const Kernel& kernel) {
  using A = SumOf<T>;
  const auto& runs = coverage.runs(task.image);
  const int64_t bins = task.q_end - task.q_begin, all_cells = task.groups * cells;
  if (coverage.unpacked_is_faster(task.image, task.share_of_bins(layout), task.groups,
                                  task.lanes)) {
    A* tile = scratch<A>(bins + all_cells);
    run_scalar<T>([&](auto simd) INLINE_LAMBDA {
      for (int lane = 0; lane < task.lanes; ++lane) {
        const GroupTask<A> one = task.only(lane);
        T* const planes = d_data + one.offset;
        if (!earlier) std::fill(planes, planes + all_cells, T{});
        if constexpr (std::is_same<T, A>::value) {
          kernel(one, planes, tile, OneChannel<decltype(simd)>{});
        } else {
          A* const sums = tile + bins;
          for (int g = 0; g < task.groups; ++g) clear_runs(runs, sums + g * cells, 1);
          kernel(one, sums, tile, OneChannel<decltype(simd)>{});
          for (int g = 0; g < task.groups; ++g) {
            for (const Run& run : runs) {
              const int64_t begin = g * cells + run.begin;
              copy_run(sums + begin, run.count(), planes + begin, simd);
            }
          }
        }
      }
    });
    return;
  }
  A* block = scratch<A>((all_cells + bins) * kLanes<A>);
  run_simd([&](auto simd) INLINE_LAMBDA {
    for (int g = 0; g < task.groups; ++g) {
      begin_gradients(runs, earlier, d_data + task.offset + g * cells, task.stride, task.lanes,
                      block + g * cells * kLanes<A>, simd);
    }
    kernel(task, block, block + all_cells * kLanes<A>, simd);
    for (int g = 0; g < task.groups; ++g) {
      end_gradients(runs, earlier, block + g * cells * kLanes<A>, task.stride, task.lanes, cells,
                    d_data + task.offset + g * cells, simd);
    }
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
  // The first output of RoI k for these channels; each channel has `outputs`.
  ALWAYS_INLINE int64_t first_output(int64_t k, int64_t outputs) const {
    return (k * channels_ + channel) * outputs;
  }
  static int64_t count(const Tensor& data) { return data.shape[0] * blocks_of<A>(data.shape[1]); }

 private:
  int64_t channels_;
};

}  // namespace gluon_roi::cpu
