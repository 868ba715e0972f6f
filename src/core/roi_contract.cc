// SPDX-License-Identifier: Apache-2.0
#include "roi_contract.h"

namespace gluon_roi {

// "data", or "data 2" if there are several maps.
static std::string map_name(const RoiArrays& in, int i) {
  return in.count == 1 ? "data" : "data " + std::to_string(i);
}

static void check_maps(const char* op, const RoiArrays& in) {
  for (int i = 0; i < in.count; ++i) {
    const Tensor& map = in.maps[i];
    if (map.ndim >= 0 && map.ndim != 4) {
      fail(op, map_name(in, i), " has shape ", shape_text(map),
           ", expected 4 dimensions (N, C, H, W)");
    }
    if (map.ndim != 4 || in.data.ndim != 4) continue;
    for (int axis = 0; axis < 2; ++axis) {
      if (map.shape[axis] >= 0 && in.data.shape[axis] >= 0 &&
          map.shape[axis] != in.data.shape[axis]) {
        fail(op, map_name(in, i), " has shape ", shape_text(map), ", expected the ",
             axis == 0 ? "batch size" : "channels", " of the first map, ", shape_text(in.data));
      }
    }
  }
}

// Splits the `all` rows of rois among the lists, and returns the rows of one list.
static int64_t rows_of_list(const char* op, const RoiArrays& in, int64_t all) {
  if (all < 0) return -1;
  if (all % in.lists != 0) {
    fail(op, "rois has shape ", shape_text(in.rois), ", expected a list of boxes for each of the ",
         in.lists, " maps, all of one length");
  }
  return all / in.lists;
}

int64_t check_shapes(const char* op, const RoiArrays& in) {
  check_maps(op, in);
  const Tensor &rois = in.rois, &counts = in.rois_num;
  const int64_t images = in.data.ndim == 4 ? in.data.shape[0] : -1;
  const bool with_counts = !is_absent(counts);
  if (with_counts && in.lists > 1) {
    fail(op, "rois_num is given, expected none for several lists of boxes");
  }
  if (with_counts && counts.ndim >= 0) {
    if (counts.ndim != 1) {
      fail(op, "rois_num has shape ", shape_text(counts), ", expected 1 dimension (N,)");
    }
    if (images >= 0 && counts.shape[0] >= 0 && counts.shape[0] != images) {
      fail(op, "rois_num has shape ", shape_text(counts), ", expected (", images,
           ",), the batch size of data");
    }
  }
  if (rois.ndim < 0) return -1;
  const int64_t columns = rois.ndim >= 1 && rois.ndim <= 4 ? rois.shape[rois.ndim - 1] : 0;
  const int box = in.coordinates;
  if (with_counts) {
    if (rois.ndim != 2 || (columns >= 0 && columns != box)) {
      fail(op, "rois has shape ", shape_text(rois), ", expected (K, ", box,
           ") rows together with rois_num");
    }
    return rois.shape[0];
  }
  if (rois.ndim == 2 && (columns < 0 || columns == box + 1)) {
    return rows_of_list(op, in, rois.shape[0]);
  }
  if (rois.ndim != 3 || (columns >= 0 && columns != box)) {
    fail(op, "rois has shape ", shape_text(rois), ", expected (K, ", box + 1,
         box == 4 ? ") rows [batch_index, x1, y1, x2, y2]"
                  : ") rows [batch_index, cx, cy, w, h, theta]",
         ", (N, R, ", box, ") boxes per image, or (K, ", box, ") together with rois_num");
  }
  if (images >= 0 && rois.shape[0] >= 0 && rois.shape[0] != in.lists * images) {
    fail(op, "rois has shape ", shape_text(rois), ", expected (", in.lists * images, ", R, ", box,
         ") for the batch size of data");
  }
  // The number of boxes is unknown if N or R is.
  if (rois.shape[0] < 0 || rois.shape[1] < 0) return -1;
  int64_t rows;
  if (!multiply_up_to(kMaxElements, rois.shape[0], rois.shape[1], &rows)) {
    fail(op, "rois has shape ", shape_text(rois), ", expected at most ", kMaxElements, " boxes");
  }
  return rows_of_list(op, in, rows);
}

void check_output_size(const char* op, const Tensor& out, bool has_output_dim,
                       int64_t max_elements) {
  const int64_t rows = out.shape[0], channels = out.shape[1];
  int64_t size;
  if (!multiply_up_to(max_elements, out.shape[2], out.shape[3], &size)) {
    fail(op, "argument pooled_size: expected at most ", max_elements, " bins, got ", out.shape[2],
         " * ", out.shape[3]);
  }
  if (channels > 0 && !multiply_up_to(max_elements, size, channels, &size)) {
    fail(op, "argument ", has_output_dim ? "output_dim" : "pooled_size", ": expected at most ",
         max_elements, " elements for a row of the output, got ", channels, " channels of ",
         out.shape[2], " * ", out.shape[3]);
  }
  int64_t all;
  if (channels > 0 && rows > 0 && !multiply_up_to(max_elements, size, rows, &all)) {
    fail(op, "rois has ", rows, " rows, expected at most ", max_elements / size,
         ", for which the output ", shape_text(out), " has no more than ", max_elements,
         " elements");
  }
}

}  // namespace gluon_roi
