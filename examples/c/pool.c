/* SPDX-License-Identifier: Apache-2.0 */
/* ROIPool from C: a map of 0, 1, 2, ..., one box, 2 x 2 bins, and their gradient. */
#include <gluon_roi.h>
#include <stdio.h>
#include <string.h>

/* Whether the loaded library has the version of the header that this program was compiled with. */
static int has_version_of_header(void) {
  char expected[64];
  const char* info = gluon_roi_build_info(); /* {"version": "1.0.0", ... */
  snprintf(expected, sizeof expected, "{\"version\": \"%d.%d.%d\"", GLUON_ROI_VERSION_MAJOR,
           GLUON_ROI_VERSION_MINOR, GLUON_ROI_VERSION_PATCH);
  if (info != NULL && strncmp(info, expected, strlen(expected)) == 0) return 1;
  fprintf(stderr, "pool: expected %s..., got %s\n", expected, info ? info : gluon_roi_last_error());
  return 0;
}

int main(void) {
  float data[8 * 6], d_data[8 * 6], out[4];
  float rois[5] = {0, 0, 0, 4, 4}; /* image 0; x1, y1, x2, y2 */
  gluon_roi_roi_pool_params params = {2, 2, 1.0, GLUON_ROI_BAD_INDEX_ERROR};
  gluon_roi_tensor inputs[] = {{data, GLUON_ROI_FLOAT32, 4, {1, 1, 8, 6}},
                               {rois, GLUON_ROI_FLOAT32, 2, {1, 5}}};
  gluon_roi_tensor result = {out, GLUON_ROI_FLOAT32, 4, {1, 1, 2, 2}};
  /* No gradient of the boxes is wanted. */
  gluon_roi_tensor gradients[] = {{d_data, GLUON_ROI_FLOAT32, 4, {1, 1, 8, 6}},
                                  {NULL, GLUON_ROI_FLOAT32, 0, {0}}};
  gluon_roi_device device = {GLUON_ROI_CPU, NULL, NULL, 0};
  int i;

  if (!has_version_of_header()) return 1;
  for (i = 0; i < 8 * 6; ++i) data[i] = (float)i;
  if (gluon_roi_roi_pool_forward(&params, inputs, 2, &result, &device) ||
      gluon_roi_roi_pool_backward(&params, inputs, 2, &result, gradients, &device)) {
    fprintf(stderr, "%s\n", gluon_roi_last_error());
    return 1;
  }
  printf("%g %g %g %g\n", out[0], out[1], out[2], out[3]);
  /* The bins themselves were passed as their gradient, and the maximum 28 is that of cell 28. */
  printf("gradient of cell 28: %g\n", d_data[28]);

  params.pooled_width = 0;
  if (gluon_roi_roi_pool_forward(&params, inputs, 2, &result, &device)) {
    printf("%s\n", gluon_roi_last_error());
  }
  return 0;
}
