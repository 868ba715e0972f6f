// SPDX-License-Identifier: Apache-2.0
// What the operators that sample at offset positions have in common: parameters, checks of arrays,
// and the samples of a call.
#pragma once
#include "../include/gluon_roi/deformable_sampling.h"
#include "contract.h"
#include "geometry/deform_conv.h"
#include "params.h"

namespace gluon_roi {

// `layout` is visited by the operator that has it.
using DeformableParams = gluon_roi_deformable_sampling_params;
void visit_deformable(ParamVisitor* visit, DeformableParams* p);

// A mask that is omitted has no memory.
struct DeformableArrays {
  Tensor data, offset, mask;
};

// The tensor (N, C, Ho, Wo) with the sizes of the convolution's output, as far as they are known.
// Throws unless the arrays fit together.
Tensor infer_deformable(const char* op, const DeformableParams& p, const DeformableArrays& in,
                        int64_t max_elements);

template <class T>
DeformSampler<T> deform_sampler(const DeformableParams& p, const DeformableArrays& in) {
  const DeformKernel kernel{p.kernel_height,
                            p.kernel_width,
                            p.stride_height,
                            p.stride_width,
                            p.dilate_height,
                            p.dilate_width,
                            p.pad_height,
                            p.pad_width,
                            p.convention == GLUON_ROI_TORCHVISION,
                            p.layout == GLUON_ROI_COLUMNS,
                            static_cast<int32_t>(in.data.shape[2]),
                            static_cast<int32_t>(in.data.shape[3]),
                            in.offset.shape[2],
                            in.offset.shape[3]};
  return {kernel, data_of<const T>(in.offset), data_of<const T>(in.mask)};
}

// A call, divided into pairs of an image and a deformable group.
template <class T>
struct SampledPairs {
  DeformSampler<T> sampler;
  int64_t pairs, channels;  // channels: of a pair
  int64_t cells, samples;   // cells of a map, and samples of a channel of the output

  SampledPairs(const DeformableParams& p, const DeformableArrays& in)
      : sampler(deform_sampler<T>(p, in)),
        pairs(in.data.shape[0] * p.num_deformable_group),
        channels(in.data.shape[1] / p.num_deformable_group),
        cells(sampler.kernel.map_cells()),
        samples(sampler.kernel.samples()) {}
};

}  // namespace gluon_roi
