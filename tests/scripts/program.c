/* SPDX-License-Identifier: Apache-2.0 */
/* The worked example of ROIPool, from C. */
#include <stdio.h>

#include "gluon_roi.h"

int main(void) {
  float data[48], rois[5] = {0, 0, 0, 4, 4}, out[4], d_data[48], d_rois[5];
  gluon_roi_roi_pool_params params = {2, 2, 1.0, GLUON_ROI_BAD_INDEX_ERROR};
  gluon_roi_tensor inputs[] = {{data, GLUON_ROI_FLOAT32, 4, {1, 1, 8, 6}},
                               {rois, GLUON_ROI_FLOAT32, 2, {1, 5}}};
  gluon_roi_tensor result = {out, GLUON_ROI_FLOAT32, 4, {1, 1, 2, 2}};
  gluon_roi_tensor gradients[] = {{d_data, GLUON_ROI_FLOAT32, 4, {1, 1, 8, 6}},
                                  {d_rois, GLUON_ROI_FLOAT32, 2, {1, 5}}};
  gluon_roi_device device = {GLUON_ROI_CPU, NULL, NULL, 0};
  size_t bytes = 1;
  int i;
  for (i = 0; i < 48; ++i) data[i] = (float)i;
  if (gluon_roi_roi_pool_workspace(&params, inputs, 2, 1, GLUON_ROI_CPU, &bytes) || bytes) return 1;
  if (gluon_roi_roi_pool_forward(&params, inputs, 2, &result, &device)) return 2;
  if (gluon_roi_roi_pool_backward(&params, inputs, 2, &result, gradients, &device)) return 3;
  printf("%g %g %g %g %g %g\n", out[0], out[1], out[2], out[3], d_data[28], d_rois[4]);
  printf("%d\n", (int)(gluon_roi_build_info()[0] == '{' && *gluon_roi_last_error() == 0));
  params.pooled_width = 0;
  printf("%d ", gluon_roi_roi_pool_forward(&params, inputs, 2, &result, &device));
  puts(gluon_roi_last_error());
  return 0;
}
