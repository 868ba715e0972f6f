// SPDX-License-Identifier: Apache-2.0
#include "box_iou.h"

#include <vector>

#include "../bindings/c.h"
#include "../cpu/suppression.h"

namespace gluon_roi {

using namespace cpu;

// ---- Shapes -------------------------------------------------------------------------------------

static void check_boxes(const char* name, const Tensor& boxes, bool rotated) {
  if (boxes.ndim < 0) return;
  if (boxes.ndim < 2) {
    fail(BoxIoU::kName, name, " has shape ", shape_text(boxes),
         ", expected at least 2 dimensions (..., ", rotated ? 5 : 4, ")");
  }
  const int64_t width = boxes.shape[boxes.ndim - 1], expected = rotated ? 5 : 4;
  if (width < 0 || width == expected) return;
  fail(BoxIoU::kName, name, " has ", width, " numbers in each row, expected ", expected,
       rotated ? ": centre x, y, width, height, angle" : " in the formats 'corner' and 'center'");
}

void BoxIoU::infer(const Params& p, const View& in, Tensor* outputs, int64_t max_elements) {
  const bool rotated = p.format == GLUON_ROI_ROTATED;
  check_boxes("lhs", in.lhs, rotated);
  check_boxes("rhs", in.rhs, rotated);
  if (in.lhs.ndim < 0 || in.rhs.ndim < 0) return;
  const int32_t dtype = outputs[0].dtype;
  Tensor out{};
  out.dtype = dtype;
  const auto append = [&](const Tensor& boxes) {
    for (int i = 0; i + 1 < boxes.ndim; ++i) {
      if (out.ndim == 4) fail(kName, "expected an output of at most 4 dimensions, got more");
      out.shape[out.ndim++] = boxes.shape[i];
    }
  };
  append(in.lhs);
  if (p.aligned == 0) {
    append(in.rhs);
  } else {
    bool known = true;
    for (const Tensor* boxes : {&in.lhs, &in.rhs}) {
      for (int i = 0; i + 1 < boxes->ndim; ++i) known = known && boxes->shape[i] >= 0;
    }
    if (known && box_count(in.lhs) != box_count(in.rhs)) {
      fail(kName, "rhs has ", box_count(in.rhs), " boxes, expected ", box_count(in.lhs),
           " as lhs, because aligned is true");
    }
  }
  check_elements(kName, "output", out, max_elements);
  outputs[0] = out;
}

// ---- Kernels ------------------------------------------------------------------------------------

namespace {

template <class A, class T>
OverlapBox<A> upright_box(const T* row, bool center) {
  A values[4];
  for (int n = 0; n < 4; ++n) values[n] = load(row + n);
  return box_of_row(values, center);
}
template <class T>
RotatedOverlapBox rotated_box(const T* row) {
  SumOf<T> values[5];
  for (int n = 0; n < 5; ++n) values[n] = load(row + n);
  return rotated_overlap_box_of_row(values);
}

}  // namespace

template <class T>
void BoxIoU::forward(const Params& p, const View& in, const Outputs& out_tensors) {
  using A = SumOf<T>;
  const T* const lhs = data_of<const T>(in.lhs);
  const T* const rhs = data_of<const T>(in.rhs);
  T* const out = data_of<T>(out_tensors[0]);
  const int64_t rows = box_count(in.lhs), columns = box_count(in.rhs);
  const bool over_first = p.mode == GLUON_ROI_IOF, center = p.format == GLUON_ROI_CENTER;
  // The approximate number of additions for a pair.
  constexpr int64_t kWorkOfUprightPair = 4, kWorkOfRotatedPair = 100;
  if (p.format == GLUON_ROI_ROTATED) {
    if (p.aligned != 0) {
      return parallel_for(rows, rows * kWorkOfRotatedPair, [&](int64_t i) {
        const double overlap =
            overlap_of(rotated_box(lhs + 5 * i), rotated_box(rhs + 5 * i), over_first);
        store(out + i, static_cast<A>(overlap));
      });
    }
    Vector<RotatedOverlapBox> others;
    others.reserve(static_cast<size_t>(columns));
    for (int64_t j = 0; j < columns; ++j) others.push_back(rotated_box(rhs + 5 * j));
    return parallel_for(rows, rows * columns * kWorkOfRotatedPair, [&](int64_t i) {
      const RotatedOverlapBox box = rotated_box(lhs + 5 * i);
      for (int64_t j = 0; j < columns; ++j) {
        store(out + i * columns + j, static_cast<A>(overlap_of(box, others[j], over_first)));
      }
    });
  }
  if (p.aligned != 0) {
    return parallel_for(rows, rows * kWorkOfUprightPair, [&](int64_t i) {
      const OverlapBox<A> a = upright_box<A>(lhs + 4 * i, center);
      const OverlapBox<A> b = upright_box<A>(rhs + 4 * i, center);
      A overlap;
      measure_overlap(a, b, over_first, A(1), &overlap);
      store(out + i, overlap);
    });
  }
  BoxColumns<A> others(columns);
  for (int64_t j = 0; j < columns; ++j) others.set(j, upright_box<A>(rhs + 4 * j, center));
  parallel_for(rows, rows * columns * kWorkOfUprightPair, [&](int64_t i) {
    const OverlapBox<A> box = upright_box<A>(lhs + 4 * i, center);
    run_simd([&](auto simd) INLINE_LAMBDA {
      using Values = Lanes<A, decltype(simd)>;
      using Register = typename Values::Register;
      const OverlapBox<Register> one_box = {
          Values::all(box.x1).registers[0], Values::all(box.y1).registers[0],
          Values::all(box.x2).registers[0], Values::all(box.y2).registers[0],
          Values::all(box.area).registers[0]};
      const Register one = Values::all(1).registers[0];
      for (int64_t j = 0; j < columns; j += kLanes<A>) {
        Values results;
        Values::for_each([&](int n) INLINE_LAMBDA {
          const OverlapBox<Register> other =
              others.template load<decltype(simd)>(j + n * Values::kPerRegister);
          measure_overlap(one_box, other, over_first, one, &results.registers[n]);
        });
        T* const to = out + i * columns + j;
        const int64_t left = columns - j;
        if (left >= kLanes<A>) {
          results.store(to);
        } else {
          results.scatter(static_cast<int>(left), to, 1);
        }
      }
    });
  });
}

}  // namespace gluon_roi

GLUON_ROI_OPERATOR(BoxIoU, box_iou)
