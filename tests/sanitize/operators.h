// SPDX-License-Identifier: Apache-2.0
// The operators, with valid and invalid parameters of each.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <vector>

#include "arrays.h"
#include "gluon_roi.h"
#include "random.h"

namespace sanitize {

union Params {
  gluon_roi_roi_pool_params roi_pool;
  gluon_roi_roi_align_params roi_align;
  gluon_roi_ps_roi_pool_params ps_roi_pool;
  gluon_roi_ps_roi_align_params ps_roi_align;
  gluon_roi_rotated_roi_align_params rotated_roi_align;
  gluon_roi_pr_roi_pool_params pr_roi_pool;
  gluon_roi_deformable_ps_roi_pool_params deformable_ps_roi_pool;
  gluon_roi_pyramid_roi_align_params pyramid_roi_align;
  gluon_roi_deformable_sampling_params deformable_sampling;
  gluon_roi_box_nms_params box_nms;
  gluon_roi_proposal_params proposal;
};

// Properties that follow from the parameters.
struct Consequences {
  int64_t pooled_height, pooled_width;
  std::vector<double> scales;     // of each map
  int64_t lists = 1;              // of boxes in rois
  int64_t groups = 1;             // channels of the map for each channel of the output
  int64_t* output_dim = nullptr;  // to be set to the channels of the output, or left 0
  bool rois_grad = false;
  bool pad_beyond = false;
  int64_t part_height = 0, part_width = 0;  // of trans; 0 if the operator reads none
};

template <class P>
Consequences randomize_common(Random* random, P* p) {
  const int most = random->chance(0.1) ? 14 : 4;
  p->pooled_height = static_cast<int32_t>(random->integer(1, most));
  p->pooled_width = static_cast<int32_t>(random->integer(1, most));
  if (random->chance(0.03)) p->pooled_height = 1, p->pooled_width = 70;
  p->bad_index = random->chance(0.3) ? GLUON_ROI_BAD_INDEX_PADDING : GLUON_ROI_BAD_INDEX_ERROR;
  Consequences so{p->pooled_height, p->pooled_width, {}};
  so.pad_beyond = p->bad_index == GLUON_ROI_BAD_INDEX_PADDING;
  return so;
}

template <class P>
void randomize_scale(Random* random, P* p, Consequences* so) {
  p->spatial_scale = random->chance(0.93)
                         ? random->pick({1.0 / 16, 0.25, 1.0, 0.3, 1.0 / 7})
                         : random->pick({1e-30, 1e30, 1e300, 1e-300, 5e-324, DBL_MAX, 1e9, 1e-9});
  so->scales = {p->spatial_scale};
}

template <class P>
void randomize_samples(Random* random, P* p, Consequences* so) {
  p->sampling_ratio = random->pick({-1, -1, 0, 1, 2, 3, 5, 64, 1000, INT32_MIN});
  p->aligned = random->chance(0.5);
  p->rois_grad = random->chance(0.5);
  so->rois_grad = p->rois_grad != 0;
}

template <class P>
void randomize_groups(Random* random, P* p, Consequences* so) {
  if (random->chance(0.4)) {
    p->group_height = static_cast<int32_t>(random->integer(1, 5));
    p->group_width = static_cast<int32_t>(random->integer(1, 5));
  }
  so->groups =
      p->group_height ? p->group_height * p->group_width : so->pooled_height * so->pooled_width;
  so->output_dim = &p->output_dim;
}

inline Consequences randomize(Random* random, gluon_roi_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_samples(random, p, &so);
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_ps_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_groups(random, p, &so);
  p->convention = random->pick<int32_t>({GLUON_ROI_RFCN, GLUON_ROI_TORCHVISION});
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_ps_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  so.groups = so.pooled_height * so.pooled_width;
  so.output_dim = &p->output_dim;
  randomize_samples(random, p, &so);
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_rotated_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_samples(random, p, &so);
  // Each sample is stored separately, so a bin needs memory for the square of this.
  p->sampling_ratio = std::min(p->sampling_ratio, 16);
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_pr_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  p->rois_grad = random->chance(0.5);
  so.rois_grad = p->rois_grad != 0;
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_deformable_ps_roi_pool_params* p) {
  Consequences so = randomize_common(random, p);
  randomize_scale(random, p, &so);
  randomize_groups(random, p, &so);
  if (random->chance(0.4)) {
    p->part_height = static_cast<int32_t>(random->integer(1, 9));
    p->part_width = static_cast<int32_t>(random->integer(1, 9));
  }
  so.part_height = p->part_height ? p->part_height : p->pooled_height;
  so.part_width = p->part_width ? p->part_width : p->pooled_width;
  p->sample_per_part = random->pick({1, 2, 3, 4, 64, 1000});
  p->trans_std = random->pick({0.1, 0.1, 1.0, -0.5, 0.0, 1e-30, 1e9});
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_pyramid_roi_align_params* p) {
  Consequences so = randomize_common(random, p);
  p->maps = static_cast<int32_t>(random->integer(1, random->chance(0.1) ? GLUON_ROI_MOST_MAPS : 4));
  double scale = random->pick({1.0, 0.25, 0.25, 0.3, 1e9, 1e-9, 1e300, 1e-300});
  for (int32_t map = 0; map < p->maps; ++map) {
    so.scales.push_back(p->spatial_scale[map] = scale);
    scale *= random->pick({0.5, 0.5, 0.5, 0.25, 0.3});
  }
  randomize_samples(random, p, &so);
  p->canonical_size = random->pick({224.0, 224.0, 16.0, 1.0, 1e-300, 1e300});
  p->canonical_level = random->pick({4, 4, 2, 0, -3, INT32_MIN, INT32_MAX});
  p->assignment = random->pick<int32_t>({GLUON_ROI_BY_SIZE, GLUON_ROI_GIVEN});
  so.lists = p->assignment == GLUON_ROI_GIVEN ? p->maps : 1;
  return so;
}

inline Consequences randomize(Random* random, gluon_roi_deformable_sampling_params* p) {
  const int most = random->chance(0.1) ? 7 : 3;
  for (int32_t* size : {&p->kernel_height, &p->kernel_width, &p->stride_height, &p->stride_width,
                        &p->dilate_height, &p->dilate_width}) {
    *size = static_cast<int32_t>(random->integer(1, most));
  }
  p->pad_height = static_cast<int32_t>(random->integer(0, most));
  p->pad_width = static_cast<int32_t>(random->integer(0, most));
  p->num_deformable_group = static_cast<int32_t>(random->integer(1, 3));
  p->convention = random->pick<int32_t>({GLUON_ROI_MXNET, GLUON_ROI_TORCHVISION});
  p->layout = random->pick<int32_t>({GLUON_ROI_MAP, GLUON_ROI_COLUMNS});
  return Consequences{0, 0, {1.0}};
}

inline Consequences randomize(Random* random, gluon_roi_box_nms_params* p) {
  p->overlap_thresh = random->pick({0.5, 0.3, 0.7, 0.0, 1.0, -1.0, 3e38});
  p->valid_thresh = random->pick({0.0, 0.0, 0.05, 0.5, -3e38, 3e38});
  p->topk = random->pick({-1, -1, 400, 5, 1, 0, INT32_MIN, INT32_MAX});
  p->coord_start = 2;
  p->score_index = 1;
  p->id_index = random->pick({-1, 0, 0, INT32_MIN});
  if (random->chance(0.3)) p->coord_start = 0, p->score_index = 4, p->id_index = 6;
  p->background_id = random->pick({-1, 0, 1, INT32_MIN, INT32_MAX});
  p->force_suppress = random->chance(0.3);
  p->in_format = random->pick<int32_t>({GLUON_ROI_CORNER, GLUON_ROI_CENTER});
  p->out_format = random->pick<int32_t>({GLUON_ROI_CORNER, GLUON_ROI_CENTER});
  return Consequences{};
}

inline Consequences randomize(Random* random, gluon_roi_proposal_params* p) {
  p->rpn_pre_nms_top_n = random->pick({6000, 20, 1, 0, -1, INT32_MIN, INT32_MAX});
  p->rpn_post_nms_top_n = static_cast<int32_t>(random->integer(1, 40));
  p->threshold = random->pick({0.7, 0.5, 0.0, 1.0, -1.0, 3e38});
  p->rpn_min_size = random->pick({16, 0, 1, 100, -5, INT32_MIN, INT32_MAX});
  p->scale_count = static_cast<int32_t>(random->integer(1, 3));
  p->ratio_count = static_cast<int32_t>(random->integer(1, 3));
  for (int i = 0; i < 3; ++i) {
    p->scales[i] = random->pick({1.0, 4.0, 8.0, 0.5, 1e-300, 1e30, 1e300});
    p->ratios[i] = random->pick({0.5, 1.0, 2.0, 0.1, 1e-300, 1e30, 1e300});
  }
  p->feature_stride = random->pick({16, 16, 1, 7, 64, 1 << 24});
  p->iou_loss = random->chance(0.3);
  p->output_score = random->chance(0.5);
  return Consequences{0, 0, {1.0}};
}

// Parameters that have to be rejected.
inline int32_t no_boolean(Random* random) { return random->pick({-1, 2, INT32_MIN, INT32_MAX}); }
inline double no_scale(Random* random) {
  return random->pick({0.0, -0.0, -1.0, -DBL_MAX, NAN * 1.0, INFINITY * 1.0});
}
inline int64_t no_output_dim(Random* random) {
  return random->pick(
      {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 62, (int64_t{1} << 62) + 1});
}
template <class P>
void spoil_common(Random* random, P* p) {
  switch (random->integer(0, 2)) {
    case 0: p->pooled_height = random->pick({0, -1, INT32_MIN, INT32_MAX, (1 << 24) + 1}); break;
    case 1: p->pooled_width = random->pick({0, -1, INT32_MIN, INT32_MAX, (1 << 24) + 1}); break;
    default: p->bad_index = no_boolean(random);
  }
}
inline void spoil(Random* random, gluon_roi_roi_pool_params* p) {
  if (random->chance(0.3)) return void(p->spatial_scale = no_scale(random));
  spoil_common(random, p);
}
inline void spoil(Random* random, gluon_roi_roi_align_params* p) {
  switch (random->integer(0, 3)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->aligned = no_boolean(random); break;
    case 2: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
inline void spoil(Random* random, gluon_roi_ps_roi_pool_params* p) {
  switch (random->integer(0, 4)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->output_dim = no_output_dim(random); break;
    case 2: p->group_height = random->pick({-1, INT32_MIN, INT32_MAX}); break;
    case 3: p->convention = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
inline void spoil(Random* random, gluon_roi_ps_roi_align_params* p) {
  switch (random->integer(0, 4)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->output_dim = no_output_dim(random); break;
    case 2: p->aligned = no_boolean(random); break;
    case 3: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
inline void spoil(Random* random, gluon_roi_rotated_roi_align_params* p) {
  switch (random->integer(0, 3)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->aligned = no_boolean(random); break;
    case 2: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
inline void spoil(Random* random, gluon_roi_pr_roi_pool_params* p) {
  switch (random->integer(0, 2)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}
inline void spoil(Random* random, gluon_roi_deformable_ps_roi_pool_params* p) {
  switch (random->integer(0, 6)) {
    case 0: p->spatial_scale = no_scale(random); break;
    case 1: p->output_dim = no_output_dim(random); break;
    case 2: p->group_height = random->pick({-1, INT32_MIN, INT32_MAX}); break;
    case 3: p->part_width = random->pick({-1, INT32_MIN, INT32_MAX}); break;
    case 4: p->sample_per_part = random->pick({0, -1, INT32_MIN, INT32_MAX}); break;
    case 5: p->trans_std = random->pick({NAN * 1.0, INFINITY * 1.0, -INFINITY * 1.0}); break;
    default: spoil_common(random, p);
  }
}
inline void spoil(Random* random, gluon_roi_pyramid_roi_align_params* p) {
  switch (random->integer(0, 6)) {
    case 6: p->assignment = no_boolean(random); break;
    case 0: p->spatial_scale[random->integer(0, p->maps - 1)] = no_scale(random); break;
    case 1: p->maps = random->pick({0, -1, GLUON_ROI_MOST_MAPS + 1, INT32_MIN, INT32_MAX}); break;
    case 2: p->canonical_size = no_scale(random); break;
    case 3: p->aligned = no_boolean(random); break;
    case 4: p->rois_grad = no_boolean(random); break;
    default: spoil_common(random, p);
  }
}

inline void spoil(Random* random, gluon_roi_deformable_sampling_params* p) {
  int32_t* const steps[] = {&p->kernel_height, &p->kernel_width, &p->stride_height,
                            &p->stride_width,  &p->dilate_width, &p->num_deformable_group};
  switch (random->integer(0, 3)) {
    case 0: p->pad_width = random->pick({-1, INT32_MIN, INT32_MAX}); break;
    case 1: p->convention = no_boolean(random); break;
    case 2: p->layout = no_boolean(random); break;
    default: *steps[random->integer(0, 5)] = random->pick({0, -1, INT32_MIN, INT32_MAX});
  }
}

inline void spoil(Random* random, gluon_roi_box_nms_params* p) {
  int32_t* const flags[] = {&p->force_suppress, &p->in_format, &p->out_format};
  const double no_number = random->pick({NAN * 1.0, INFINITY * 1.0, 1e39, -DBL_MAX});
  switch (random->integer(0, 4)) {
    case 0: p->coord_start = random->pick({-1, INT32_MIN, INT32_MAX, 10}); break;
    case 1:
      p->score_index = random->pick({-1, INT32_MIN, INT32_MAX, 10, p->coord_start + 3});
      break;
    case 2: p->id_index = random->pick({p->score_index, p->coord_start, 10, INT32_MAX}); break;
    case 3: (random->chance(0.5) ? p->overlap_thresh : p->valid_thresh) = no_number; break;
    default: *flags[random->integer(0, 2)] = no_boolean(random);
  }
}

inline void spoil(Random* random, gluon_roi_proposal_params* p) {
  switch (random->integer(0, 5)) {
    case 0: p->threshold = random->pick({NAN * 1.0, INFINITY * 1.0, 1e39}); break;
    case 1: p->rpn_post_nms_top_n = random->pick({0, -1, INT32_MIN, INT32_MAX}); break;
    case 2: p->feature_stride = random->pick({0, -1, INT32_MIN, INT32_MAX}); break;
    case 3: p->scales[0] = no_scale(random); break;
    case 4: p->ratio_count = random->pick({0, -1, p->ratio_count + 1, INT32_MAX, 9}); break;
    default: p->iou_loss = no_boolean(random);
  }
}

using Tensor = gluon_roi_tensor;
using Device = gluon_roi_device;

struct Operator {
  const char* name;     // in sentences
  int64_t coordinates;  // of a box; 0 if there are none
  Consequences (*randomize)(Random*, Params*);
  void (*spoil)(Random*, Params*);
  int (*forward)(const Params*, const Tensor*, int32_t, const Tensor*, const Device*);
  int (*backward)(const Params*, const Tensor*, int32_t, const Tensor*, const Tensor*,
                  const Device*);
  int (*workspace)(const Params*, const Tensor*, int32_t, int, int32_t, size_t*);
};

#define OPERATOR(name, coordinates, op)                                                            \
  Operator {                                                                                       \
    name, coordinates, [](Random* random, Params* p) { return randomize(random, &p->op); },        \
        [](Random* random, Params* p) { spoil(random, &p->op); },                                  \
        [](const Params* p, const Tensor* inputs, int32_t count, const Tensor* out,                \
           const Device* device) {                                                                 \
          return gluon_roi_##op##_forward(p ? &p->op : nullptr, inputs, count, out, device);       \
        },                                                                                         \
        [](const Params* p, const Tensor* inputs, int32_t count, const Tensor* d_out,              \
           const Tensor* d_inputs, const Device* device) {                                         \
          return gluon_roi_##op##_backward(p ? &p->op : nullptr, inputs, count, d_out, d_inputs,   \
                                           device);                                                \
        },                                                                                         \
        [](const Params* p, const Tensor* inputs, int32_t count, int backward, int32_t device,     \
           size_t* bytes) {                                                                        \
          return gluon_roi_##op##_workspace(p ? &p->op : nullptr, inputs, count, backward, device, \
                                            bytes);                                                \
        }                                                                                          \
  }

const Operator kOperators[] = {
    OPERATOR("ROIPool", 4, roi_pool),
    OPERATOR("ROIAlign", 4, roi_align),
    OPERATOR("PSROIPool", 4, ps_roi_pool),
    OPERATOR("PSROIAlign", 4, ps_roi_align),
    OPERATOR("RotatedROIAlign", 5, rotated_roi_align),
    OPERATOR("PrROIPool", 4, pr_roi_pool),
    OPERATOR("DeformablePSROIPool", 4, deformable_ps_roi_pool),
    OPERATOR("PyramidROIAlign", 4, pyramid_roi_align),
    OPERATOR("DeformableSampling", 0, deformable_sampling),
    OPERATOR("BoxNMS", 0, box_nms),
    OPERATOR("Proposal", 0, proposal),
};

}  // namespace sanitize
