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

#include <stddef.h>
#include <stdint.h>

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

/* Element types, with MXNet's numbers. */
enum {
  GLUON_ROI_FLOAT32 = 0,
  GLUON_ROI_FLOAT64 = 1,
  GLUON_ROI_FLOAT16 = 2,
  GLUON_ROI_INT32 = 4,
  GLUON_ROI_INT64 = 6
};

/* Return codes. */
enum {
  GLUON_ROI_OK = 0,
  GLUON_ROI_INVALID = 1,    /* an invalid argument or environment variable; nothing was computed */
  GLUON_ROI_NO_CUDA = 2,    /* a CUDA device was given, but the library is built without CUDA */
  GLUON_ROI_CUDA_ERROR = 3, /* the CUDA runtime rejected a launch */
  GLUON_ROI_NO_MEMORY = 4   /* there is not enough memory; outputs may be written in part */
};

enum { GLUON_ROI_CPU = 0, GLUON_ROI_CUDA = 1 };

/* The maximum number of maps of a pyramid. GLUON_ROI_MOST_MAPS is its former name. */
enum { GLUON_ROI_MAX_MAPS = 8, GLUON_ROI_MOST_MAPS = GLUON_ROI_MAX_MAPS };

/* The conventions of ps_roi_pool and of deformable_sampling; see src/ops/ps_roi_pool.h and
 * src/ops/deformable_sampling.h. */
enum { GLUON_ROI_RFCN = 0, GLUON_ROI_MXNET = 0, GLUON_ROI_TORCHVISION = 1 };

/* The layouts of deformable_sampling's output: (N, C, Ho * kh, Wo * kw) or (N, C * kh * kw, Ho,
 * Wo). */
enum { GLUON_ROI_MAP = 0, GLUON_ROI_COLUMNS = 1 };

/* The box formats of box_nms and box_iou: (x1, y1, x2, y2); (centre x, centre y, width, height); or
 * the latter with an angle in degrees, counter-clockwise in an image whose y points down. */
enum { GLUON_ROI_CORNER = 0, GLUON_ROI_CENTER = 1, GLUON_ROI_ROTATED = 2 };

/* The methods of box_nms: a box with a higher score removes the boxes that it overlaps by more than
 * overlap_thresh; or multiplies their scores by 1 - overlap; or multiplies all scores by
 * exp(-overlap^2 / sigma). */
enum { GLUON_ROI_HARD = 0, GLUON_ROI_LINEAR = 1, GLUON_ROI_GAUSSIAN = 2 };

/* The divisor of box_iou: the area of the union, or of the lhs box. */
enum { GLUON_ROI_IOU = 0, GLUON_ROI_IOF = 1 };

/* What roi_align takes of a bin's samples: their mean, or the largest one. */
enum { GLUON_ROI_AVG = 0, GLUON_ROI_MAX = 1 };

/* How pyramid_roi_align assigns boxes to maps: by size, or as given. In the latter case rois has a
 * list of K boxes for each map, one list after the other, and row k of the output is the sum over
 * the lists of the features pooled for row k. A padding row in a list pools nothing. */
enum { GLUON_ROI_BY_SIZE = 0, GLUON_ROI_GIVEN = 1 };

/* A batch index >= N in rois is an error (on CUDA, a row of NaN), or marks a padding row. */
enum { GLUON_ROI_BAD_INDEX_ERROR = 0, GLUON_ROI_BAD_INDEX_PADDING = 1 };

typedef struct gluon_roi_tensor {
  void* data;       /* first element, on the device of the call */
  int32_t dtype;    /* GLUON_ROI_FLOAT32 ... */
  int32_t ndim;     /* number of dimensions in use, 0 to 4 */
  int64_t shape[4]; /* elements along each dimension */
} gluon_roi_tensor;

typedef struct gluon_roi_device {
  int32_t type;    /* GLUON_ROI_CPU or GLUON_ROI_CUDA */
  void* stream;    /* CUDA: the cudaStream_t to launch on; never synchronised. CPU: NULL */
  void* workspace; /* CUDA: device memory of gluon_roi_<op>_workspace bytes, 256-byte aligned */
  size_t workspace_size; /* bytes at workspace */
} gluon_roi_device;

typedef struct gluon_roi_roi_pool_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_roi_pool_params;

typedef struct gluon_roi_roi_align_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int32_t sampling_ratio;              /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  int32_t aligned;                     /* 1: shift boxes by half a cell, no minimum size */
  int32_t rois_grad;                   /* 1: backward writes real gradients to d_rois, else zeros */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
  int32_t mode;      /* GLUON_ROI_AVG or GLUON_ROI_MAX */
} gluon_roi_roi_align_params;

typedef struct gluon_roi_ps_roi_pool_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int64_t output_dim; /* channels of the output; 0: C / (group_height * group_width) */
  int32_t group_height, group_width; /* grid of channel groups; 0: pooled_height / pooled_width */
  int32_t convention;                /* GLUON_ROI_RFCN or GLUON_ROI_TORCHVISION */
  int32_t bad_index;                 /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_ps_roi_pool_params;

typedef struct gluon_roi_ps_roi_align_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int64_t output_dim;                  /* channels of the output; 0: C / (P * Q) */
  int32_t sampling_ratio;              /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  int32_t aligned;                     /* 1: shift boxes by half a cell, no minimum size */
  int32_t rois_grad;                   /* 1: backward writes real gradients to d_rois, else zeros */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_ps_roi_align_params;

typedef struct gluon_roi_rotated_roi_align_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int32_t sampling_ratio;              /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  int32_t aligned;                     /* 1: shift centres by half a cell, no minimum size */
  int32_t rois_grad;                   /* 1: backward writes real gradients to d_rois, else zeros */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_rotated_roi_align_params;

typedef struct gluon_roi_pr_roi_pool_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int32_t rois_grad;                   /* 1: backward writes real gradients to d_rois, else zeros */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_pr_roi_pool_params;

typedef struct gluon_roi_deformable_ps_roi_pool_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int64_t output_dim; /* channels of the output; 0: C / (group_height * group_width) */
  int32_t group_height, group_width; /* grid of channel groups; 0: pooled_height / pooled_width */
  int32_t part_height, part_width;   /* grid of trans; 0: pooled_height / pooled_width */
  int32_t sample_per_part;           /* samples per bin and axis, at least 1 */
  double trans_std;                  /* factor of trans; the product is in units of the box size */
  int32_t bad_index;                 /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_deformable_ps_roi_pool_params;

typedef struct gluon_roi_pyramid_roi_align_params {
  int32_t pooled_height, pooled_width;      /* P, Q: bins of the output, at least 1 */
  double spatial_scale[GLUON_ROI_MAX_MAPS]; /* of each map, cells per image pixel; each is at
                                                most half of the previous one */
  int32_t maps;                             /* number of maps in the inputs and in spatial_scale */
  int32_t sampling_ratio;  /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  int32_t aligned;         /* 1: shift boxes by half a cell, no minimum size */
  int32_t rois_grad;       /* 1: backward writes real gradients to d_rois, else zeros */
  double canonical_size;   /* side in pixels of a box of level canonical_level, > 0 */
  int32_t canonical_level; /* 4: a map of stride 2^4 */
  int32_t bad_index;       /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
  int32_t assignment;      /* GLUON_ROI_BY_SIZE or GLUON_ROI_GIVEN */
} gluon_roi_pyramid_roi_align_params;

typedef struct gluon_roi_deformable_roi_align_params {
  int32_t pooled_height, pooled_width; /* P, Q: bins of the output, at least 1 */
  double spatial_scale;                /* map cells per image pixel, > 0 */
  int32_t sampling_ratio;              /* samples per bin and axis; <= 0: ceil(roi size / bins) */
  double gamma;      /* factor of offset; the product is in units of the box size */
  int32_t aligned;   /* 1: shift boxes by half a cell, no minimum size */
  int32_t rois_grad; /* 1: backward writes real gradients to d_rois, else zeros */
  int32_t bad_index; /* GLUON_ROI_BAD_INDEX_ERROR or GLUON_ROI_BAD_INDEX_PADDING */
} gluon_roi_deformable_roi_align_params;

typedef struct gluon_roi_deformable_sampling_params {
  int32_t kernel_height, kernel_width; /* size of the kernel, at least 1 */
  int32_t stride_height, stride_width; /* map cells between outputs, at least 1 */
  int32_t dilate_height, dilate_width; /* map cells between kernel cells, at least 1 */
  int32_t pad_height, pad_width;       /* padding in cells at each edge, at least 0 */
  int32_t num_deformable_group;        /* number of channel groups with separate offsets */
  int32_t convention;                  /* GLUON_ROI_MXNET or GLUON_ROI_TORCHVISION */
  int32_t layout;                      /* of the output, GLUON_ROI_MAP or GLUON_ROI_COLUMNS */
} gluon_roi_deformable_sampling_params;

typedef struct gluon_roi_box_nms_params {
  double overlap_thresh;  /* overlap above which the lower score is suppressed */
  double valid_thresh;    /* rows with scores <= this are ignored */
  int32_t topk;           /* number of valid rows of a batch to consider; negative: all */
  int32_t coord_start;    /* first column of the box, which has four columns, or five if rotated */
  int32_t score_index;    /* column of the score */
  int32_t id_index;       /* column of the class; negative: no classes */
  int32_t background_id;  /* class whose rows are ignored */
  int32_t force_suppress; /* 1: suppress boxes of all classes, 0: only of the same class */
  int32_t in_format;      /* box format of data: GLUON_ROI_CORNER, _CENTER or _ROTATED */
  int32_t out_format;     /* box format of out; GLUON_ROI_ROTATED if and only if in_format is */
  int32_t return_indices; /* used by Python only: the record is always written */
  int32_t method;         /* GLUON_ROI_HARD, GLUON_ROI_LINEAR or GLUON_ROI_GAUSSIAN */
  double sigma;           /* for GLUON_ROI_GAUSSIAN, > 0 */
  double min_score;       /* minimum score for the soft methods, >= 0 */
} gluon_roi_box_nms_params;

typedef struct gluon_roi_proposal_params {
  int32_t rpn_pre_nms_top_n;  /* number of boxes per image to consider; <= 0: all */
  int32_t rpn_post_nms_top_n; /* rows of the output per image, at least 1 */
  double threshold;           /* overlap above which the lower score is suppressed */
  int32_t rpn_min_size;       /* minimum side in pixels, multiplied by the scale of im_info */
  double scales[GLUON_ROI_MAX_MAPS]; /* anchor scales, > 0 */
  int32_t scale_count;               /* their number */
  double ratios[GLUON_ROI_MAX_MAPS]; /* anchor ratios, height / width, > 0 */
  int32_t ratio_count;               /* their number */
  int32_t feature_stride;            /* pixels per cell, at least 1 */
  int32_t output_score;              /* used by Python only: scores are always written */
  int32_t iou_loss;                  /* 1: bbox_pred holds corner offsets in pixels */
} gluon_roi_proposal_params;

typedef struct gluon_roi_box_iou_params {
  int32_t format;  /* GLUON_ROI_CORNER, GLUON_ROI_CENTER or GLUON_ROI_ROTATED */
  int32_t mode;    /* GLUON_ROI_IOU or GLUON_ROI_IOF */
  int32_t aligned; /* 1: pairs row i of lhs with row i of rhs; 0: all pairs */
} gluon_roi_box_iou_params;

#define GLUON_ROI_DECLARE(op)                                                                    \
  int gluon_roi_##op##_forward(const gluon_roi_##op##_params* params,                            \
                               const gluon_roi_tensor* inputs, int32_t count,                    \
                               const gluon_roi_tensor* out, const gluon_roi_device* device);     \
  /* d_inputs: `count` tensors, each with the shape and dtype of its input. For a gradient       \
   * that is not needed pass a zeroed tensor (no data, ndim 0); maps always have one. */         \
  int gluon_roi_##op##_backward(const gluon_roi_##op##_params* params,                           \
                                const gluon_roi_tensor* inputs, int32_t count,                   \
                                const gluon_roi_tensor* d_out, const gluon_roi_tensor* d_inputs, \
                                const gluon_roi_device* device);                                 \
  /* *bytes <- required size of device->workspace; 0 on the CPU. Only shapes are read. */        \
  int gluon_roi_##op##_workspace(const gluon_roi_##op##_params* params,                          \
                                 const gluon_roi_tensor* inputs, int32_t count, int backward,    \
                                 int32_t device, size_t* bytes);

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
