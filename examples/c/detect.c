/* SPDX-License-Identifier: Apache-2.0 */
/* Serves an exported detector without Python, with MXNet's C interface: docs/deploy.md.

     detect LIBGLUON_ROI.so PREFIX IMAGE.ppm

   Reads PREFIX-symbol.json and PREFIX-0000.params, and prints id, score, x1, y1, x2 and y2 of the
   detections in a binary PPM that has the scale of PREFIX-metadata.json already. */
#include <mxnet/c_api.h>
#include <mxnet/c_predict_api.h>
#include <stdio.h>
#include <stdlib.h>

/* Of PREFIX-metadata.json: for red, green and blue. */
static const float kMean[3] = {123.675f, 116.28f, 103.53f};
static const float kStd[3] = {58.395f, 57.12f, 57.375f};

static void fail(const char* what, const char* why) {
  fprintf(stderr, "detect: %s: %s\n", what, why);
  exit(1);
}

/* Every function of MXNet returns 0 on success. */
static void check(const char* what, int status) {
  if (status) fail(what, MXGetLastError());
}

/* A whole file, and a 0 after its end. */
static char* read_file(const char* prefix, const char* ending, long* size) {
  char name[4096];
  char* content;
  FILE* file;
  snprintf(name, sizeof(name), "%s%s", prefix, ending);
  file = fopen(name, "rb");
  if (!file || fseek(file, 0, SEEK_END) || (*size = ftell(file)) < 0) fail(name, "cannot be read");
  content = calloc((size_t)*size + 1, 1);
  rewind(file);
  if (!content || fread(content, 1, (size_t)*size, file) != (size_t)*size) fail(name, "is cut");
  fclose(file);
  return content;
}

/* The pixels of a PPM as the network takes them: (1, 3, height, width), normalised. */
static float* read_image(const char* name, uint32_t shape[4]) {
  unsigned width, height, most, row, column, channel;
  float* data;
  FILE* file = fopen(name, "rb");
  if (!file || fscanf(file, "P6 %u %u %u", &width, &height, &most) != 3 || most != 255) {
    fail(name, "is not a binary PPM of 8 bits");
  }
  fgetc(file); /* one space ends the header */
  data = malloc(sizeof(float) * 3 * height * width);
  if (!data) fail(name, "is too large");
  for (row = 0; row < height; ++row)
    for (column = 0; column < width; ++column)
      for (channel = 0; channel < 3; ++channel) {
        int pixel = fgetc(file);
        if (pixel == EOF) fail(name, "is cut");
        data[(channel * height + row) * width + column] =
            ((float)pixel - kMean[channel]) / kStd[channel];
      }
  fclose(file);
  shape[0] = 1, shape[1] = 3, shape[2] = height, shape[3] = width;
  return data;
}

/* An output of the network; `count` is the number of rows of its only image. */
static float* output(PredictorHandle net, uint32_t index, uint32_t* count) {
  uint32_t *shape, rank, axis, size = 1;
  float* values;
  check("output", MXPredGetOutputShape(net, index, &shape, &rank));
  for (axis = 0; axis < rank; ++axis) size *= shape[axis];
  *count = shape[1];
  values = malloc(sizeof(float) * size);
  check("output", MXPredGetOutput(net, index, values, size));
  return values;
}

int main(int argc, char** argv) {
  const char* inputs[] = {"data"};
  const uint32_t ranks[] = {0, 4}; /* where the shape of each input begins and ends */
  uint32_t shape[4], count, row;
  long symbol_size, params_size;
  char *symbol, *params;
  float *data, *ids, *scores, *boxes;
  PredictorHandle net;
  if (argc != 4) fail("usage", "detect LIBGLUON_ROI.so PREFIX IMAGE.ppm");

  check("library", MXLoadLib(argv[1], 0)); /* once, before the first symbol */
  symbol = read_file(argv[2], "-symbol.json", &symbol_size);
  params = read_file(argv[2], "-0000.params", &params_size);
  data = read_image(argv[3], shape);
  check("network",
        MXPredCreate(symbol, params, (int)params_size, 1, 0, 1, inputs, ranks, shape, &net));
  check("input", MXPredSetInput(net, "data", data, 3 * shape[2] * shape[3]));
  check("forward", MXPredForward(net));
  ids = output(net, 0, &count);
  scores = output(net, 1, &count);
  boxes = output(net, 2, &count);
  for (row = 0; row < count; ++row) {
    const float* box = boxes + 4 * row;
    if (ids[row] < 0) continue; /* an empty row */
    printf("%.0f %.6f %.3f %.3f %.3f %.3f\n", ids[row], scores[row], box[0], box[1], box[2],
           box[3]);
  }
  MXPredFree(net);
  return 0;
}
