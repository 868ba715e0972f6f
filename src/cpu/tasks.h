// Into which parts an operator's work falls: images and blocks of channels.
#pragma once
#include "../core/geometry/channels.h"
#include "coverage.h"
#include "memory.h"

namespace gluon_roi::cpu {

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
  ALWAYS_INLINE int64_t row(int64_t k, int64_t outputs) const {
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
  run_simd([&](auto simd) INLINE_LAMBDA {
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
        run_simd([&](auto) INLINE_LAMBDA {
          for (const Coverage::Run& run : runs) {
            store_run(plane + run.begin, run.end - run.begin, sums + run.begin);
          }
        });
      }
    }
    return;
  }
  A* block = scratch<A>(cells * kLanes<A>);
  run_simd([&](auto simd) INLINE_LAMBDA {
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
  ALWAYS_INLINE int64_t row(int64_t k, int64_t outputs) const {
    return (k * channels_ + channel) * outputs;
  }
  static int64_t count(const Tensor& data) { return data.shape[0] * blocks_of<A>(data.shape[1]); }

 private:
  int64_t channels_;
};

}  // namespace gluon_roi::cpu
