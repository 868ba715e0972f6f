// SPDX-License-Identifier: Apache-2.0
// The common part of the operators whose bins read all channels of a map: cpu/align.h and
// cuda/align.h define what is declared here.
#pragma once
#include "geometry/channels.h"
#include "roi_contract.h"

namespace gluon_roi {

// Op defines rule(params), the weights of a bin, and pyramid(params), the map of each RoI.
template <class Op, class P>
class AlignOperator : public RoiOperator<Op> {
 public:
  using Params = P;
  static constexpr Input kInputs[] = {kData, kRois, kRoisNum};
  static constexpr bool kGrouped = false;  // bins read their output's own channel

  static PositionSensitive layout(const P& p, int64_t channels) {
    return PositionSensitive::ungrouped(channels, p.pooled_height, p.pooled_width);
  }
  static bool rois_gradient(const P& p) { return p.rois_grad != 0; }
  static int64_t output_channels(const P&, int64_t channels) { return channels; }

  static void forward(Cpu, const P& p, const Inputs& in, const Tensor& out);
  static void backward(Cpu, const P& p, const Inputs& in, const Tensor& d_out, const Gradients& d);
  static void forward(Gpu, const P& p, const Inputs& in, const Tensor& out);
  static void backward(Gpu, const P& p, const Inputs& in, const Tensor& d_out, const Gradients& d);
  static size_t workspace(const P& p, const Inputs& in, bool backward);

 private:
  AlignOperator() = default;
  friend Op;
};

}  // namespace gluon_roi
