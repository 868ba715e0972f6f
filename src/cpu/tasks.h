// SPDX-License-Identifier: Apache-2.0
// The division of an operator's work into tasks: images and blocks of channels.
#pragma once
#include "../core/geometry/channels.h"
#include "coverage.h"
#include "memory.h"
#include "threads.h"

namespace gluon_roi::cpu {

// A task of an operator that uses read_maps() and add_to_maps(): the RoIs of one image, kLanes
// output channels c, and a few neighbouring groups (gh, gw) in row gh, that is, the score maps
// (c * GH + gh) * GW + gw. An operator that is not position-sensitive has one group.
template <class A>
struct GroupTask {
  // The maximum number of groups in a task. With 8, the outputs of a channel that are written
  // together fill a register, and one prefetch covers them.
  static constexpr int kMaxGroups = 8;

  int64_t image;
  int64_t channel;  // the first output channel
  int64_t offset;   // of the first score map, in elements
  int64_t stride;   // from an output channel's score map to the next channel's, in elements
  int lanes;
  int groups;
  int p_begin, p_end, q_begin, q_end;  // the bins that read these groups
  int q_edge[kMaxGroups + 1];  // first column of bins of each group; the last element is the end

  GroupTask(int64_t task, const ChannelLayout& layout, const Tensor& data, int groups_per_task = 1)
      : output_dim_(layout.output_dim) {
    const int64_t cells = data.shape[2] * data.shape[3];
    const int64_t blocks = blocks_of<A>(layout.output_dim);
    const int64_t tasks_per_row = div_up(layout.group_width, groups_per_task);
    const int gw = static_cast<int>(task % tasks_per_row) * groups_per_task;
    const int gh = static_cast<int>(task / tasks_per_row % layout.group_height);
    const int64_t block = task / tasks_per_row / layout.group_height;
    image = block / blocks;
    channel = block % blocks * kLanes<A>;
    lanes = static_cast<int>(std::min<int64_t>(kLanes<A>, layout.output_dim - channel));
    groups = std::min(groups_per_task, layout.group_width - gw);
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
  // The offset of RoI k's outputs in the first channel; each channel has `bins` outputs.
  ALWAYS_INLINE int64_t first_output(int64_t k, int64_t bins) const {
    return (k * output_dim_ + channel) * bins;
  }
  // The share of a RoI's bins that read these groups.
  double share_of_bins(const ChannelLayout& layout) const {
    return static_cast<double>(p_end - p_begin) / layout.pooled_height * (q_end - q_begin) /
           layout.pooled_width;
  }
  // The same task for a single channel.
  GroupTask single_channel(int lane) const {
    GroupTask one = *this;
    one.channel += lane;
    one.offset += lane * stride;
    one.lanes = 1;
    return one;
  }
  static int64_t count(const ChannelLayout& layout, const Tensor& data, int groups_per_task = 1) {
    return data.shape[0] * blocks_of<A>(layout.output_dim) * layout.group_height *
           (div_up(layout.group_width, groups_per_task));
  }
  // The number of groups per task: as many as have channel blocks that fit into the L2 cache
  // together, but few enough that every thread has several tasks.
  static int max_groups_per_task(const ChannelLayout& layout, const Tensor& data) {
    constexpr int64_t kBlocksBytes = 3 << 19;
    constexpr int kTasksPerThread = 4;
    const int64_t bytes = data.shape[2] * data.shape[3] * kCellBytes;
    const int64_t cached = bytes > 0 ? kBlocksBytes / bytes : kMaxGroups;
    int per_task = static_cast<int>(std::min<int64_t>({cached, kMaxGroups, layout.group_width}));
    while (per_task > 1 && count(layout, data, per_task) < kTasksPerThread * max_threads())
      --per_task;
    // Balances the tasks of a row. per_task is 0 if not even one block fits.
    const int tasks_per_row =
        per_task > 1 ? div_up(layout.group_width, per_task) : layout.group_width;
    return div_up(layout.group_width, tasks_per_row);
  }

 private:
  int64_t output_dim_;
};

// Runs kernel(task, block, tile, simd) for a task that reads its score maps: either for all
// channels at once, on a channel block for each group, or channel by channel on the maps
// themselves, whichever is faster. The tile is a buffer for one row of the task's bins.
template <class T, class Kernel>
void read_maps(const GroupTask<SumOf<T>>& task, const ChannelLayout& layout,
               const Coverage& coverage, const T* data, int64_t cells, const Kernel& kernel) {
  using A = SumOf<T>;
  const int64_t row_bins = task.q_end - task.q_begin;
  if (coverage.unpacked_is_faster(task.image, task.share_of_bins(layout), task.groups,
                                  task.lanes)) {
    A* tile = scratch<A>(row_bins);
    run_scalar<T>([&](auto simd) INLINE_LAMBDA {
      for (int lane = 0; lane < task.lanes; ++lane) {
        const GroupTask<A> single = task.single_channel(lane);
        kernel(single, data + single.offset, tile, OneChannel<decltype(simd)>{});
      }
    });
    return;
  }
  A* block = scratch<A>((task.groups * cells + row_bins) * kLanes<A>);
  run_simd([&](auto simd) INLINE_LAMBDA {
    for (int g = 0; g < task.groups; ++g) {
      pack_runs(coverage.runs(task.image), data + task.offset + g * cells, task.stride, task.lanes,
                block + g * cells * kLanes<A>, simd);
    }
    kernel(task, block, block + task.groups * cells * kLanes<A>, simd);
  });
}

// The same for a task that computes the gradients of its score maps. With `accumulate` it adds to
// the gradients in memory, otherwise it overwrites all cells. (float16 is summed in float32 in a
// single chunk, so it never accumulates.)
template <class T, class Kernel>
void add_to_maps(const GroupTask<SumOf<T>>& task, const ChannelLayout& layout,
                 const Coverage& coverage, bool accumulate, T* d_data, int64_t cells,
                 const Kernel& kernel) {
  using A = SumOf<T>;
  const auto& runs = coverage.runs(task.image);
  const int64_t row_bins = task.q_end - task.q_begin, all_cells = task.groups * cells;
  if (coverage.unpacked_is_faster(task.image, task.share_of_bins(layout), task.groups,
                                  task.lanes)) {
    A* tile = scratch<A>(row_bins + all_cells);
    run_scalar<T>([&](auto simd) INLINE_LAMBDA {
      for (int lane = 0; lane < task.lanes; ++lane) {
        const GroupTask<A> single = task.single_channel(lane);
        T* const planes = d_data + single.offset;
        if (!accumulate) std::fill(planes, planes + all_cells, T{});
        if constexpr (std::is_same<T, A>::value) {
          kernel(single, planes, tile, OneChannel<decltype(simd)>{});
        } else {
          A* const sums = tile + row_bins;
          for (int g = 0; g < task.groups; ++g) clear_runs(runs, sums + g * cells, 1);
          kernel(single, sums, tile, OneChannel<decltype(simd)>{});
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
  A* block = scratch<A>((all_cells + row_bins) * kLanes<A>);
  run_simd([&](auto simd) INLINE_LAMBDA {
    for (int g = 0; g < task.groups; ++g) {
      begin_gradients(runs, accumulate, d_data + task.offset + g * cells, task.stride, task.lanes,
                      block + g * cells * kLanes<A>, simd);
    }
    kernel(task, block, block + all_cells * kLanes<A>, simd);
    for (int g = 0; g < task.groups; ++g) {
      end_gradients(runs, accumulate, block + g * cells * kLanes<A>, task.stride, task.lanes, cells,
                    d_data + task.offset + g * cells, simd);
    }
  });
}

// A task of the other operators: the RoIs of one image and kLanes consecutive channels.
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
  // The offset of RoI k's outputs in the first channel; each channel has `bins` outputs.
  ALWAYS_INLINE int64_t first_output(int64_t k, int64_t bins) const {
    return (k * channels_ + channel) * bins;
  }
  static int64_t count(const Tensor& data) { return data.shape[0] * blocks_of<A>(data.shape[1]); }

 private:
  int64_t channels_;
};

}  // namespace gluon_roi::cpu
