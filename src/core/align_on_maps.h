// What ROIAlign and PyramidROIAlign have in common.
#pragma once
#include "geometry/pyramid.h"
#include "operator.h"

namespace gluon_roi {

// What ROIAlign and PyramidROIAlign run: ROIAlign of each RoI on its own map of a pyramid, of which
// ROIAlign's is the only one. The kernels are in ops/roi_align.cc and ops/roi_align.cu.
struct AlignOnMaps {
  const char* op;
  int32_t pooled_height, pooled_width;
  Pyramid pyramid;
  int32_t sampling_ratio, aligned, rois_grad, bad_index;

  void forward(Cpu, const Inputs& in, const Tensor& out) const;
  void backward(Cpu, const Inputs& in, const Tensor& d_out, const Gradients& d) const;
  void forward(Gpu gpu, const Inputs& in, const Tensor& out) const;
  void backward(Gpu gpu, const Inputs& in, const Tensor& d_out, const Gradients& d) const;
  size_t workspace(const Inputs& in, bool backward) const;
};

// The operators that are that, with Op::on_maps(params).
template <class Op>
struct AlignOperator : OperatorBase {
  template <class Device, class Params>
  static void forward(const Device& device, const Params& p, const Inputs& in, const Tensor& out) {
    Op::on_maps(p).forward(device, in, out);
  }
  template <class Device, class Params>
  static void backward(const Device& device, const Params& p, const Inputs& in, const Tensor& d_out,
                       const Gradients& d) {
    Op::on_maps(p).backward(device, in, d_out, d);
  }
  template <class Params>
  static size_t workspace(const Params& p, const Inputs& in, bool backward) {
    return Op::on_maps(p).workspace(in, backward);
  }
  template <class Params>
  static bool rois_gradient(const Params& p) {
    return p.rois_grad != 0;
  }
  template <class Params>
  static int64_t output_channels(const Params&, int64_t channels) {
    return channels;
  }
};

}  // namespace gluon_roi
