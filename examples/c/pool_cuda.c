/* SPDX-License-Identifier: Apache-2.0 */
/* ROIPool from C on a GPU: the box of pool.c, in device memory, on a stream. */
#include <cuda_runtime_api.h>
#include <gluon_roi.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program with the message of a call of CUDA that has failed. */
static void check(cudaError_t error) {
  if (error != cudaSuccess) {
    fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
    exit(1);
  }
}

/* A copy of `size` bytes in device memory. */
static void* to_device(const void* values, size_t size, cudaStream_t stream) {
  void* memory = NULL;
  check(cudaMalloc(&memory, size));
  check(cudaMemcpyAsync(memory, values, size, cudaMemcpyHostToDevice, stream));
  return memory;
}

int main(void) {
  float data[8 * 6], out[4] = {0};
  float rois[5] = {0, 0, 0, 4, 4}; /* image 0; x1, y1, x2, y2 */
  void *device_data, *device_rois, *device_out;
  cudaStream_t stream;
  int i;

  for (i = 0; i < 8 * 6; ++i) data[i] = (float)i;
  check(cudaStreamCreate(&stream));
  device_data = to_device(data, sizeof data, stream);
  device_rois = to_device(rois, sizeof rois, stream);
  device_out = to_device(out, sizeof out, stream);

  gluon_roi_roi_pool_params params = {2, 2, 1.0, GLUON_ROI_BAD_INDEX_ERROR};
  gluon_roi_tensor inputs[] = {{device_data, GLUON_ROI_FLOAT32, 4, {1, 1, 8, 6}},
                               {device_rois, GLUON_ROI_FLOAT32, 2, {1, 5}}};
  gluon_roi_tensor result = {device_out, GLUON_ROI_FLOAT32, 4, {1, 1, 2, 2}};
  gluon_roi_device device = {GLUON_ROI_CUDA, stream, NULL, 0};
  if (gluon_roi_roi_pool_workspace(&params, inputs, 2, 0, GLUON_ROI_CUDA, &device.workspace_size)) {
    fprintf(stderr, "%s\n", gluon_roi_last_error());
    return 1;
  }
  check(cudaMalloc(&device.workspace, device.workspace_size));
  if (gluon_roi_roi_pool_forward(&params, inputs, 2, &result, &device)) {
    fprintf(stderr, "%s\n", gluon_roi_last_error());
    return 1;
  }
  check(cudaMemcpyAsync(out, device_out, sizeof out, cudaMemcpyDeviceToHost, stream));
  check(cudaStreamSynchronize(stream)); /* until then, inputs and workspace have to stay */
  printf("%g %g %g %g\n", out[0], out[1], out[2], out[3]);

  cudaFree(device.workspace);
  cudaFree(device_out);
  cudaFree(device_rois);
  cudaFree(device_data);
  cudaStreamDestroy(stream);
  return 0;
}
