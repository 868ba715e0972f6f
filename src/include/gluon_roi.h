/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of gluon_roi on raw pointers: a plain C interface for any array library.
 *
 * For each <op> of GLUON_ROI_OPERATORS, below, the shared library exports
 *
 *   int gluon_roi_<op>_forward  (params, inputs, count, out, device)
 *       out <- op(inputs)
 *   int gluon_roi_<op>_backward (params, inputs, count, d_out, d_inputs, device)
 *       gradients of the inputs <- gradient of out
 *   int gluon_roi_<op>_workspace(params, inputs, count, backward, device, bytes)
 *       the scratch memory that a CUDA call needs
 *
 * inputs are `count` tensors, in this order:
 *
 *   data      (N, C, H, W), float16 / float32 / float64; for pyramid_roi_align several maps, finest
 *             first, with equal N and C and different sizes
 *   rois      boxes in image coordinates (pixels), float32 or float64 (float16 is converted):
 *             (K, 5) rows [batch_index, x1, y1, x2, y2], a negative batch_index marks a padding
 *             row; (N, R, 4) boxes per image, K = N * R; or (K, 4) together with rois_num.
 *             rotated_roi_align: cx, cy, w, h, theta instead of x1, y1, x2, y2, with theta in
 *             degrees, counter-clockwise in an image whose y points down
 *   trans     (K, 2 * classes, T, T), of data's type: offsets of the bins; deformable_ps_roi_pool
 *             only, optional
 *   offset    (K, 2, P, Q), of data's type: x and y for each bin; deformable_roi_align only,
 *             optional
 *   mask      (K, 1, P, Q), of data's type: a factor for each bin; deformable_roi_align only,
 *             optional
 *   rois_num  (N,) boxes per image, int32 / int64 / float32 / float64; optional
 *
 * The other operators have these inputs, which src/ops/<op>.h describes:
 *
 *   deformable_sampling  data, offset (N, 2 * groups * kh * kw, Ho, Wo) and optionally mask
 *                        (N, groups * kh * kw, Ho, Wo), all of the same type
 *   box_nms              data (..., n, w), with 2 to 4 dimensions
 *   proposal             cls_prob (N, 2 * A, H, W), bbox_pred (N, 4 * A, H, W), im_info (N, 3)
 *   box_iou              lhs (a..., w), rhs (b..., w); the output is (a..., b...), with at most 4
 *                        dimensions
 *
 * box_nms and proposal have two outputs: out points to an array of two tensors, and d_out to an
 * array of their gradients. The record of box_nms has no gradient, so d_out[1] is the record
 * itself.
 *
 * A trailing optional input may be omitted; any other one is passed as a zeroed gluon_roi_tensor
 * (no data, ndim 0). gluon_roi_operators() describes all of this as JSON, with the fields of every
 * params struct.
 *
 * gluon_roi/<op>.h declares gluon_roi_<op>_params, and gluon_roi/common.h arrays, devices, types,
 * return codes and the three functions. Include this file, which includes them.
 *
 * Every function returns GLUON_ROI_OK or an error code; gluon_roi_last_error() returns the message
 * on the calling thread. Functions that return a string return NULL on an error. Outputs and
 * gradients are overwritten completely, never accumulated. Arrays are contiguous, in row-major
 * order. Arrays that a call writes must not overlap any other array.
 *
 * A later version may append fields to a struct; 0 then selects the previous behaviour. A program
 * that initialises its structs with braces or with zeros only has to be recompiled.
 */
#ifndef GLUON_ROI_H_
#define GLUON_ROI_H_

#include "gluon_roi/box_iou.h"
#include "gluon_roi/box_nms.h"
#include "gluon_roi/common.h"
#include "gluon_roi/deformable_ps_roi_pool.h"
#include "gluon_roi/deformable_roi_align.h"
#include "gluon_roi/deformable_sampling.h"
#include "gluon_roi/pr_roi_pool.h"
#include "gluon_roi/proposal.h"
#include "gluon_roi/ps_roi_align.h"
#include "gluon_roi/ps_roi_pool.h"
#include "gluon_roi/pyramid_roi_align.h"
#include "gluon_roi/roi_align.h"
#include "gluon_roi/roi_pool.h"
#include "gluon_roi/rotated_roi_align.h"

/* The version of this header and of the library installed with it. */
#define GLUON_ROI_VERSION_MAJOR 1
#define GLUON_ROI_VERSION_MINOR 0
#define GLUON_ROI_VERSION_PATCH 0
/* For comparisons: 10203 is 1.2.3. */
#define GLUON_ROI_VERSION \
  (GLUON_ROI_VERSION_MAJOR * 10000 + GLUON_ROI_VERSION_MINOR * 100 + GLUON_ROI_VERSION_PATCH)

#ifdef __cplusplus
extern "C" {
#endif

/* X(op) for each operator. */
#define GLUON_ROI_OPERATORS(X) \
  X(roi_pool)                  \
  X(roi_align)                 \
  X(ps_roi_pool)               \
  X(ps_roi_align)              \
  X(rotated_roi_align)         \
  X(pr_roi_pool)               \
  X(deformable_ps_roi_pool)    \
  X(pyramid_roi_align)         \
  X(deformable_roi_align)      \
  X(deformable_sampling)       \
  X(box_nms)                   \
  X(proposal)                  \
  X(box_iou)

GLUON_ROI_OPERATORS(GLUON_ROI_DECLARE)

/* The message of this thread's last failed call, or "". It is valid until the next failure. */
const char* gluon_roi_last_error(void);

/* Describes all operators, with their inputs and parameters, as a JSON array. Each parameter lists
 * the type, offset and name of its fields in the struct. */
const char* gluon_roi_operators(void);

/* Describes the build and the instruction set in use as a JSON object. Returns NULL if the
 * environment variable GLUON_ROI_SIMD is not an instruction set of this processor. */
const char* gluon_roi_build_info(void);

#ifdef __cplusplus
}
#endif

#endif /* GLUON_ROI_H_ */
