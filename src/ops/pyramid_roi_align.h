// SPDX-License-Identifier: Apache-2.0
// PyramidROIAlign: ROIAlign on a feature pyramid, which pools each RoI from one of several maps.
//
// Reads L maps (N, C, H_i, W_i) and RoIs. Writes all of out (K, C, P, Q): row k is bit for bit the
// ROIAlign of RoI k on its own map. The backward pass writes the gradients of all maps completely.
// d_rois is zeros, or with rois_grad the gradient with respect to the box, in which the choice of
// the map is a constant. Deterministic.
//
// With assignment "given", rois has L lists of K rows, one after the other, and row k of out is the
// sum over i of the ROIAlign of row k of list i on map i. If all of these rows but one are padding,
// as in GluonCV's pyramids, it is bit for bit the ROIAlign of that row.
//
// Source: Lin et al. 2017, Feature Pyramid Networks (arXiv:1612.03144), equation 1, for the choice
// of the map (see core/geometry/pyramid.h); torchvision MultiScaleRoIAlign, GluonCV's FPN R-CNN.
//
// Example: on maps of stride 4, 8, 16 and 32 a box of 224 x 224 pixels goes to the one of stride 16
// (level 4), one of 223 x 223 to stride 8, one of 448 x 448 to stride 32.
#pragma once
#include "../core/align_contract.h"
#include "../core/geometry/pyramid.h"
#include "../core/geometry/samples.h"
#include "../core/params.h"
#include "../include/gluon_roi/pyramid_roi_align.h"

namespace gluon_roi {

struct PyramidROIAlign : public AlignOperator<PyramidROIAlign, gluon_roi_pyramid_roi_align_params> {
  static constexpr const char* kName = "PyramidROIAlign";
  static constexpr Input kInputs[] = {kVariadicMaps, kRois, kRoisNum};

  static void params(ParamVisitor* visit, Params* p) {
    visit->size("pooled_size", FIELD(pooled_height), FIELD(pooled_width));
    visit->positive_list(FIELD(spatial_scale), FIELD(maps));
    visit->integer(FIELD(sampling_ratio), -1);
    visit->boolean(FIELD(aligned), false);
    visit->boolean(FIELD(rois_grad), false);
    visit->positive(FIELD(canonical_size), 224);
    visit->integer(FIELD(canonical_level), 4);
    visit->choice(FIELD(bad_index), kBadIndices);
    visit->choice(FIELD(assignment), {{"size", GLUON_ROI_BY_SIZE}, {"given", GLUON_ROI_GIVEN}});
  }
  static int32_t array_count(const Params& p) { return p.maps; }
  static int32_t lists(const Params& p) { return p.assignment == GLUON_ROI_GIVEN ? p.maps : 1; }
  static void check_inputs(const Params& p, const RoiArrays&) { pyramid(p); }

  static Pyramid pyramid(const Params& p) {
    if (p.assignment == GLUON_ROI_GIVEN) return Pyramid::given(p.spatial_scale, p.maps);
    return Pyramid::make(kName, p.spatial_scale, p.maps, p.canonical_size, p.canonical_level);
  }
  // The scale is set later, to that of the RoI's map.
  static SampleRule rule(const Params& p) { return SampleRule{0, p.aligned, p.sampling_ratio}; }
};

}  // namespace gluon_roi
