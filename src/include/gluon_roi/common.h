/* SPDX-License-Identifier: Apache-2.0 */
/* What the operators share: arrays, devices, and the constants of several operators. */
#ifndef GLUON_ROI_COMMON_H_
#define GLUON_ROI_COMMON_H_

#include <stddef.h>
#include <stdint.h>

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

/* The maximum number of maps of a pyramid. */
enum { GLUON_ROI_MAX_MAPS = 8 };

/* The conventions of ps_roi_pool and of deformable_sampling; see src/ops/ps_roi_pool.h and
 * src/ops/deformable_sampling.h. */
enum { GLUON_ROI_RFCN = 0, GLUON_ROI_MXNET = 0, GLUON_ROI_TORCHVISION = 1 };

/* The box formats of box_nms and box_iou: (x1, y1, x2, y2); (centre x, centre y, width, height); or
 * the latter with an angle in degrees, counter-clockwise in an image whose y points down. */
enum { GLUON_ROI_CORNER = 0, GLUON_ROI_CENTER = 1, GLUON_ROI_ROTATED = 2 };

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

/* The functions of an operator. */
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

#endif /* GLUON_ROI_COMMON_H_ */
