// SPDX-License-Identifier: Apache-2.0
// A random call: its parameters and inputs.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "operators.h"

namespace sanitize {

enum class Row { kValid, kPadding, kNotFinite, kBadBatch };

struct Call {
  const Operator* op;
  Params params{};
  Consequences so;
  std::vector<Array> inputs;  // all declared inputs: the maps, rois, trans, rois_num
  int32_t count;              // number of inputs passed
  Array d_out;
  Array second;                 // what backward gets for a second output; absent if there is none
  std::vector<Row> rows;        // of rois
  std::vector<Row> out_rows;    // of the output: sums over the lists in rois
  std::vector<int64_t> images;  // of the valid rows
  bool refused = false;         // whether the CPU rejects rois or rois_num
  bool finite = true;           // no NaN or infinity in the parts of inputs and d_out that matter
  bool positive = false;        // maps and d_out are positive, so sums do not cancel

  size_t maps() const { return so.scales.size(); }
  const Array& rois() const { return inputs[maps()]; }
  const Array& counts() const { return inputs.back(); }
  int64_t columns() const { return rois().tensor().shape[rois().tensor().ndim - 1]; }
  std::vector<int64_t> out_shape() const {
    return {static_cast<int64_t>(out_rows.size()), inputs[0].tensor().shape[1] / so.groups,
            so.pooled_height, so.pooled_width};
  }
  std::string text() const {
    std::string text = std::string(op->name()) + ":";
    for (const Array& input : inputs) text += " " + input.text();
    return text + ", " + std::to_string(so.pooled_height) + " x " +
           std::to_string(so.pooled_width) + " bins";
  }
};

inline std::vector<Tensor> tensors(const std::vector<Array>& arrays) {
  std::vector<Tensor> all;
  for (const Array& array : arrays) all.push_back(array.tensor());
  return all;
}

// An image coordinate for a map with `cells` cells along the axis.
inline double coordinate(Random* random, int64_t cells, double scale, bool hostile) {
  const double size = static_cast<double>(cells);
  if (!hostile) return random->uniform(-0.3, 1.3) * size / scale;
  switch (random->integer(0, 5)) {
    case 0: return static_cast<double>(random->integer(-2, cells + 2)) / scale;
    case 1: return (static_cast<double>(random->integer(-2, cells + 2)) + 0.5) / scale;
    case 2: return random->pick({0.0, -0.0, 1e-40, 1e-310, 5e-324, -1e-45, 1e-7, -6e-8});
    case 3: return random->either_sign(std::pow(10, random->uniform(0, 9.5)));
    case 4:
      return random->either_sign(random->pick(
          {1e20, 1e30, 3.4e38, 1e39, 1e300, DBL_MAX, 65504.0, 2147483647.0, 2147483648.0, 9.3e18}));
    default: return random->pick({NAN * 1.0, INFINITY * 1.0, -INFINITY * 1.0});
  }
}

inline void random_axis(Random* random, int64_t cells, double scale, bool hostile, double* low,
                        double* high) {
  // Most boxes of a hostile call have one ordinary axis and one that is not.
  hostile = hostile && random->chance(0.6);
  const int kind = static_cast<int>(random->integer(0, 9));
  *low = coordinate(random, cells, scale, hostile && random->chance(0.7));
  *high = coordinate(random, cells, scale, hostile && random->chance(0.7));
  if (hostile && kind == 0) *high = *low;
  if (hostile && kind <= 3) {  // so wide that samples round to cells far away
    *low -= std::pow(10, random->uniform(6, 9.5));
    *high += std::pow(10, random->uniform(6, 9.5));
  }
  if (kind > 4 && *high < *low) std::swap(*low, *high);
}

// A box in the operator's format: corners, or centre, size and angle.
inline std::vector<double> random_box(Random* random, const Call& call, bool hostile) {
  const size_t map = static_cast<size_t>(random->integer(0, static_cast<int64_t>(call.maps()) - 1));
  const Tensor& data = call.inputs[map].tensor();
  double x1, y1, x2, y2;
  random_axis(random, data.shape[3], call.so.scales[map], hostile, &x1, &x2);
  random_axis(random, data.shape[2], call.so.scales[map], hostile, &y1, &y2);
  if (call.op->coordinates() == 4) return {x1, y1, x2, y2};
  const double angle = hostile && random->chance(0.2) ? coordinate(random, 90, 1, true)
                       : random->chance(0.3)          ? 90.0 * random->integer(-4, 4)
                                                      : random->uniform(-400, 400);
  return {x1 / 2 + x2 / 2, y1 / 2 + y2 / 2, x2 - x1, y2 - y1, angle};
}

inline void random_numbers(Random* random, bool positive, bool hostile, Array* array) {
  for (int64_t i = 0; i < array->size(); ++i) {
    double value = positive ? random->uniform(0.5, 1.5) : random->normal();
    if (hostile && random->chance(0.1)) {
      value = random->pick({NAN * 1.0, INFINITY * 1.0, -INFINITY * 1.0, 3e38, -3e38, 1e-40, -0.0,
                            1e308, 65504.0, 1e-310});
    }
    array->set(i, value);
  }
}

// Appends rois and rois_num, which may be absent, to the inputs.
inline void random_rois(Random* random, Call* call, bool hostile) {
  const int64_t images = call->inputs[0].tensor().shape[0], box = call->op->coordinates();
  const int64_t lists = call->so.lists;
  const int form = static_cast<int>(random->integer(0, lists > 1 ? 1 : 2));
  int64_t rows = random->chance(0.05) ? 0 : random->integer(1, random->chance(0.1) ? 50 : 8);
  rows *= lists;
  const int32_t dtype = random->pick<int32_t>(
      {GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const int64_t before = random->integer(0, 9);
  std::vector<double> batch;
  Array rois, counts;
  if (form == 0) {
    rois = Array(dtype, {rows, box + 1}, before, 0);
    for (int64_t k = 0; k < rows; ++k) {
      double index = static_cast<double>(random->integer(0, std::max<int64_t>(images, 1) - 1));
      if (random->chance(lists > 1 ? 0.7 : 0.1))
        index = random->pick({-1.0, -0.5, -1e30, -INFINITY * 1.0});
      if (hostile && random->chance(call->so.pad_beyond ? 0.1 : 0.01)) {
        index = random->pick({static_cast<double>(images), 1e30, INFINITY * 1.0});
      }
      if (hostile && random->chance(0.005)) index = random->pick({0.5, NAN * 1.0});
      rois.set(k * (box + 1), index);
      batch.push_back(rois.get(k * (box + 1)));
    }
  } else if (form == 1) {
    const int64_t each = images ? rows / lists / images : rows;
    rows = lists * images * each;
    rois = Array(dtype, {lists * images, each, box}, before, 0);
    for (int64_t k = 0; k < rows; ++k) batch.push_back(static_cast<double>(k / each % images));
  } else {
    if (images == 0) rows = 0;
    rois = Array(dtype, {rows, box}, before, 0);
    const int32_t counts_dtype = random->pick<int32_t>(
        {GLUON_ROI_INT32, GLUON_ROI_INT64, GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64});
    counts = Array(counts_dtype, {images}, random->integer(0, 3), 0);
    int64_t left = rows;
    for (int64_t i = 0; i < images; ++i) {
      const int64_t count = i + 1 == images ? left : random->integer(0, left);
      counts.set(i, static_cast<double>(count));
      batch.insert(batch.end(), static_cast<size_t>(count), static_cast<double>(i));
      left -= count;
    }
    if (hostile && images && random->chance(0.03)) {
      const bool whole =
          counts.tensor().dtype == GLUON_ROI_INT32 || counts.tensor().dtype == GLUON_ROI_INT64;
      const double count = counts.get(images - 1);
      counts.set(images - 1, whole ? random->pick({-1.0, count + 1, 2147483647.0})
                                   : random->pick({-1.0, count + 0.5, NAN * 1.0, 1e30}));
      call->refused = true;
    }
  }
  for (int64_t k = 0; k < rows; ++k) {
    const int64_t columns = rois.tensor().shape[rois.tensor().ndim - 1];
    bool finite = true;
    int64_t place = (k + 1) * columns - box;
    for (const double value : random_box(random, *call, hostile)) {
      rois.set(place, value);
      finite = finite && std::isfinite(rois.get(place++));
    }
    const double index = batch[static_cast<size_t>(k)];
    const bool whole = index == std::floor(index), beyond = index >= static_cast<double>(images);
    const bool padding = index < 0 || (call->so.pad_beyond && whole && beyond);
    call->rows.push_back(padding                              ? Row::kPadding
                         : !whole || beyond || index != index ? Row::kBadBatch
                         : finite                             ? Row::kValid
                                                              : Row::kNotFinite);
    call->images.push_back(call->rows.back() == Row::kValid ? static_cast<int64_t>(index) : -1);
    call->refused = call->refused || call->rows.back() == Row::kBadBatch;
  }
  call->out_rows.assign(call->rows.begin(), call->rows.begin() + rows / lists);
  for (size_t k = call->out_rows.size(); k < call->rows.size(); ++k) {
    Row& sum = call->out_rows[k % call->out_rows.size()];
    if (sum == Row::kPadding || call->rows[k] == Row::kNotFinite) sum = call->rows[k];
  }
  call->inputs.push_back(std::move(rois));
  if (call->so.part_height > 0 || call->so.bin_offsets) call->inputs.emplace_back();
  if (call->so.bin_offsets) call->inputs.emplace_back();
  call->inputs.push_back(std::move(counts));
}

// Offsets for each RoI and class, unless they are left out.
inline void random_trans(Random* random, bool hostile, Call* call) {
  if (random->chance(0.2)) return;
  const int64_t channels = call->out_shape()[1];
  const int64_t classes = channels > 0 && random->chance(0.5) ? channels : 1;
  Array& trans = call->inputs[call->maps() + 1];
  trans = Array(call->inputs[0].tensor().dtype,
                {static_cast<int64_t>(call->rows.size()), 2 * classes, call->so.part_height,
                 call->so.part_width},
                random->integer(0, 17), 0);
  random_numbers(random, false, hostile, &trans);
}

// Offsets and a mask of the bins, unless they are left out.
inline void random_bin_offsets(Random* random, bool hostile, Call* call) {
  for (const int64_t channels : {2, 1}) {
    if (random->chance(0.3)) continue;
    Array& array = call->inputs[call->maps() + (channels == 2 ? 1 : 2)];
    array = Array(call->inputs[0].tensor().dtype,
                  {static_cast<int64_t>(call->rows.size()), channels, call->so.pooled_height,
                   call->so.pooled_width},
                  random->integer(0, 17), 0);
    random_numbers(random, channels == 1 && call->positive, hostile, &array);
  }
}

// Fills images that no RoI reads, because they may hold anything.
inline void spoil_unread_images(Call* call) {
  for (size_t map = 0; map < call->maps(); ++map) {
    Array& data = call->inputs[map];
    const int64_t images = data.tensor().shape[0];
    for (int64_t i = 0; i < data.size(); ++i) {
      const int64_t image = i / (data.size() / images);
      if (std::count(call->images.begin(), call->images.end(), image) == 0) data.set(i, NAN);
    }
  }
}

// Inputs and d_out of DeformableSampling. Offsets may lead anywhere: that makes nothing infinite.
inline void random_samples(Random* random, Call* call) {
  const gluon_roi_deformable_sampling_params& p = call->params.deformable_sampling;
  const int32_t dtype =
      random->pick<int32_t>({GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const bool hostile = random->chance(0.6), hostile_numbers = random->chance(0.1);
  call->finite = !hostile_numbers;
  call->positive = call->finite && random->chance(0.5);
  const int64_t images = random->chance(0.02) ? 0 : random->integer(1, 3);
  const int64_t channels = random->chance(0.03) ? 0 : random->integer(1, 20);
  const auto size = [&](int64_t kernel, int64_t dilate, int64_t pad) {
    const int64_t any = random->chance(0.03) ? 0 : random->integer(1, 14);
    return std::max(any, dilate * (kernel - 1) + 1 - 2 * pad);
  };
  const auto outputs = [](int64_t cells, int64_t kernel, int64_t stride, int64_t dilate,
                          int64_t pad) {
    return (cells + 2 * pad - dilate * (kernel - 1) - 1) / stride + 1;
  };
  const int64_t height = size(p.kernel_height, p.dilate_height, p.pad_height);
  const int64_t width = size(p.kernel_width, p.dilate_width, p.pad_width);
  const int64_t rows =
      outputs(height, p.kernel_height, p.stride_height, p.dilate_height, p.pad_height);
  const int64_t columns =
      outputs(width, p.kernel_width, p.stride_width, p.dilate_width, p.pad_width);
  const int64_t kernel = int64_t{p.kernel_height} * p.kernel_width * p.num_deformable_group;
  const auto add = [&](std::vector<int64_t> shape) {
    call->inputs.emplace_back(dtype, shape, random->integer(0, 17), 0);
    return &call->inputs.back();
  };
  random_numbers(random, call->positive, hostile_numbers,
                 add({images, channels * p.num_deformable_group, height, width}));
  Array* const offset = add({images, 2 * kernel, rows, columns});
  for (int64_t i = 0; i < offset->size(); ++i) {
    const bool odd = hostile && random->chance(0.2);
    offset->set(i, odd ? coordinate(random, height, 1, true) : 2 * random->normal());
  }
  call->inputs.emplace_back();
  if (random->chance(0.6)) {
    call->inputs.pop_back();
    random_numbers(random, call->positive, hostile_numbers, add({images, kernel, rows, columns}));
  }
  const bool last = call->inputs.back().tensor().ndim != 0 || random->chance(0.5);
  call->count = last ? 3 : 2;
  call->so.scales = {1};
  std::vector<int64_t> out = {images, channels * p.num_deformable_group, rows, columns};
  if (p.layout == GLUON_ROI_COLUMNS) {
    out[1] *= int64_t{p.kernel_height} * p.kernel_width;
  } else {
    out[2] *= p.kernel_height;
    out[3] *= p.kernel_width;
  }
  call->d_out = Array(dtype, out, random->integer(0, 17), 0);
  random_numbers(random, call->positive, hostile_numbers, &call->d_out);
}

inline double random_angle(Random* random) {
  return random->chance(0.3) ? 90.0 * static_cast<double>(random->integer(-4, 4))
                             : random->uniform(-400, 400);
}

// Inputs and d_out of BoxIoU: boxes, of which some of rhs are those of lhs.
inline void random_boxes(Random* random, Call* call) {
  const gluon_roi_box_iou_params& p = call->params.box_iou;
  const int32_t dtype =
      random->pick<int32_t>({GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const bool hostile = random->chance(0.5);
  const int64_t width = p.format == GLUON_ROI_ROTATED ? 5 : 4;
  std::vector<int64_t> out;
  for (int side = 0; side < 2; ++side) {
    std::vector<int64_t> shape = out;  // of aligned boxes
    if (side == 0 || p.aligned == 0) {
      shape = {random->chance(0.05) ? 0 : random->integer(1, random->chance(0.1) ? 90 : 12)};
      if (random->chance(0.3)) shape.push_back(random->integer(0, 3));
    }
    if (side == 0 || p.aligned == 0) out.insert(out.end(), shape.begin(), shape.end());
    shape.push_back(width);
    call->inputs.emplace_back(dtype, shape, random->integer(0, 17), 0);
    Array& boxes = call->inputs.back();
    for (int64_t i = 0; i < boxes.size(); ++i) {
      const int64_t column = i % width;
      double value =
          column == 4 ? random_angle(random) : random->uniform(0, 30) + (column >= 2 ? 10.0 : 0.0);
      if (side == 1 && i < call->inputs[0].size() && random->chance(0.5)) {
        value = call->inputs[0].get(i);
      }
      if (hostile && random->chance(0.1)) value = coordinate(random, 30, 1, true);
      boxes.set(i, value);
    }
  }
  call->count = 2;
  call->d_out = Array(dtype, out, random->integer(0, 17), 0);
  random_numbers(random, false, hostile, &call->d_out);
}

// Inputs, d_out and record of BoxNMS: rows of a class, a score and a box, and more columns.
inline void random_rows(Random* random, Call* call) {
  const int32_t dtype =
      random->pick<int32_t>({GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const bool hostile = random->chance(0.5);
  const int64_t rows =
      random->chance(0.05) ? 0 : random->integer(1, random->chance(0.2) ? 700 : 40);
  std::vector<int64_t> shape = {rows, random->integer(7, 9)};
  if (random->chance(0.6)) shape.insert(shape.begin(), random->integer(0, 3));
  if (shape.size() == 3 && random->chance(0.3)) shape.insert(shape.begin(), random->integer(1, 2));
  call->inputs.emplace_back(dtype, shape, random->integer(0, 17), 0);
  call->count = 1;
  call->d_out = Array(dtype, shape, random->integer(0, 17), 0);
  random_numbers(random, false, hostile, &call->d_out);
  Array& data = call->inputs[0];
  const int64_t width = shape.back(), start = call->params.box_nms.coord_start;
  const int64_t box_size = call->params.box_nms.in_format == GLUON_ROI_ROTATED ? 5 : 4;
  for (int64_t i = 0; i < data.size(); i += width) {
    for (int64_t n = 0; n < width; ++n) {
      const bool is_box = n >= start && n < start + box_size;
      double value = is_box ? random->uniform(0, 30) + (n >= start + 2 ? 10 : 0)
                            : static_cast<double>(random->integer(0, 9)) / (n == 0 ? 3 : 10);
      if (n == start + 4 && box_size == 5) value = random_angle(random);
      if (hostile && random->chance(0.1)) value = coordinate(random, 30, 1, true);
      data.set(i + n, value);
    }
  }
  shape.back() = 1;
  call->second = Array(GLUON_ROI_INT32, shape, random->integer(0, 17), 0);
  for (int64_t i = 0; i < call->second.size(); ++i) {
    call->second.set(i, random->chance(0.5) ? static_cast<double>(i) : -1.0);
  }
}

// Inputs and gradients of Proposal.
inline void random_scores(Random* random, Call* call) {
  const gluon_roi_proposal_params& p = call->params.proposal;
  const int32_t dtype =
      random->pick<int32_t>({GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const bool hostile = random->chance(0.5);
  const int64_t images = random->chance(0.03) ? 0 : random->integer(1, 3);
  const int64_t height = random->integer(1, 9), width = random->integer(1, 9);
  const int64_t anchors = int64_t{p.scale_count} * p.ratio_count;
  const auto add = [&](std::vector<int64_t> shape) {
    call->inputs.emplace_back(dtype, shape, random->integer(0, 17), 0);
    return &call->inputs.back();
  };
  random_numbers(random, false, hostile, add({images, 2 * anchors, height, width}));
  random_numbers(random, false, hostile, add({images, 4 * anchors, height, width}));
  Array* const info = add({images, 3});
  for (int64_t i = 0; i < info->size(); ++i) {
    const int64_t cells = i % 3 == 0 ? height : width;
    // float16 ends at 65504.
    const int64_t most = std::min<int64_t>(cells * p.feature_stride, 60000);
    info->set(i, i % 3 == 2 ? random->pick({1.0, 1.5, 0.0, 6e4})
                            : static_cast<double>(random->integer(0, most)));
  }
  call->count = 3;
  call->so.scales = {1};
  const int64_t rows = images * p.rpn_post_nms_top_n;
  call->d_out = Array(dtype, {rows, 5}, random->integer(0, 17), 0);
  call->second = Array(dtype, {rows, 1}, random->integer(0, 17), 0);
  random_numbers(random, false, hostile, &call->d_out);
}

inline Call random_call(Random* random) {
  Call call;
  call.op = &kOperators[random->integer(0, std::size(kOperators) - 1)];
  call.so = call.op->randomize(random, &call.params);
  if (call.op->coordinates() == 0) {
    const std::string name = call.op->name();
    (name == "BoxNMS"     ? random_rows
     : name == "BoxIoU"   ? random_boxes
     : name == "Proposal" ? random_scores
                          : random_samples)(random, &call);
    return call;
  }
  const int32_t dtype =
      random->pick<int32_t>({GLUON_ROI_FLOAT32, GLUON_ROI_FLOAT64, GLUON_ROI_FLOAT16});
  const int64_t most = call.so.groups > 20 ? 9 : 20;
  int64_t channels = random->chance(0.03) ? 0 : random->integer(1, most);
  if (random->chance(0.15) && call.so.groups == 1) channels = random->integer(30, 70);
  const auto size = [&] {
    return random->chance(0.03) ? 0 : random->integer(1, random->chance(0.1) ? 60 : 14);
  };
  const int64_t images = random->chance(0.02) ? 0 : random->integer(1, 3);
  if (call.so.output_dim && random->chance(0.5)) *call.so.output_dim = channels;
  const bool hostile_numbers = random->chance(0.1);
  call.finite = !hostile_numbers;
  call.positive = call.finite && random->chance(0.5);
  for (size_t map = 0; map < call.maps(); ++map) {
    const int64_t height = size(), before = random->integer(0, 17);
    // Only a few rows of a wide map fit into the cache at a time.
    const bool wide = call.so.groups == 1 && random->chance(0.05);
    const int64_t width = wide ? random->integer(1500, 3000) : size();
    call.inputs.emplace_back(
        dtype, std::vector<int64_t>{images, channels * call.so.groups, height, width}, before, 0);
    random_numbers(random, call.positive, hostile_numbers, &call.inputs.back());
  }
  random_rois(random, &call, random->chance(0.6));
  if (call.so.part_height > 0) random_trans(random, hostile_numbers, &call);
  if (call.so.bin_offsets) random_bin_offsets(random, hostile_numbers, &call);
  const bool last = call.counts().tensor().ndim != 0 || random->chance(0.5);
  call.count = static_cast<int32_t>(call.inputs.size()) - !last;
  call.d_out = Array(dtype, call.out_shape(), random->integer(0, 17), 0);
  random_numbers(random, call.positive, hostile_numbers, &call.d_out);
  if (call.finite) spoil_unread_images(&call);
  return call;
}

}  // namespace sanitize
