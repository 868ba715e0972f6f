// SPDX-License-Identifier: Apache-2.0
// Checks of valid calls.
#pragma once
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "calls.h"
#include "failure.h"

namespace sanitize {

struct Results {
  int forward, backward;  // return codes
  Array out, second;      // outputs; the second is absent if there is none
  std::vector<Array> d_inputs;
};

inline Array like(const Array& array, int fill) {
  const Tensor& tensor = array.tensor();
  if (tensor.ndim == 0) return Array();
  return Array(tensor.dtype, {tensor.shape, tensor.shape + tensor.ndim}, fill % 5, fill);
}

// Outputs hold `fill` in every byte before the call.
inline Results run(const Call& call, int threads, int fill, bool maps_alone = false) {
  omp_set_num_threads(threads);
  const Device device{GLUON_ROI_CPU, nullptr, nullptr, 0};
  const std::vector<Tensor> inputs = tensors(call.inputs);
  Results results{0, 0, like(call.d_out, fill), like(call.second, fill), {}};
  const Tensor outputs[] = {results.out.tensor(), results.second.tensor()};
  const Tensor given[] = {call.d_out.tensor(), call.second.tensor()};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool wanted = !maps_alone || i < call.maps();
    results.d_inputs.push_back(wanted ? like(call.inputs[i], fill) : Array());
  }
  results.forward = call.op->forward(&call.params, inputs.data(), call.count, outputs, &device);
  results.backward = call.op->backward(&call.params, inputs.data(), call.count, given,
                                       tensors(results.d_inputs).data(), &device);
  return results;
}

// FNV-1a. All NaN count as equal, because their bits depend on the order of operands.
class Digest {
 public:
  void add(uint64_t word) {
    for (int i = 0; i < 8; ++i) value_ = (value_ ^ (word >> 8 * i & 255)) * 0x100000001b3u;
  }
  void add(const Array& array) {
    for (int64_t i = 0; i < array.size(); ++i) {
      const double value = array.get(i);
      uint64_t bits = 0;
      memcpy(&bits, &value, sizeof(bits));
      add(std::isnan(value) ? 0x7ff8000000000000u : bits);
    }
  }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

inline uint64_t digest_of(const Results& results) {
  Digest digest;
  digest.add(static_cast<uint64_t>(results.forward) << 32 |
             static_cast<uint64_t>(results.backward));
  digest.add(results.out);
  digest.add(results.second);
  for (const Array& gradient : results.d_inputs) digest.add(gradient);
  return digest.value();
}

inline void check_same(const Results& first, const Results& other, const char* what) {
  const auto differ = [&](const std::string& array) {
    fail(array + " differs from that of one thread: " + what);
  };
  if (first.forward != other.forward || first.backward != other.backward) differ("the code");
  if (first.forward == GLUON_ROI_OK && !first.out.same_bytes(other.out)) differ("out");
  if (first.forward == GLUON_ROI_OK && !first.second.same_bytes(other.second)) {
    differ("the second output");
  }
  if (first.backward != GLUON_ROI_OK) return;
  for (size_t i = 0; i < first.d_inputs.size(); ++i) {
    if (other.d_inputs[i].tensor().ndim != 0 && !first.d_inputs[i].same_bytes(other.d_inputs[i])) {
      differ("the gradient of input " + std::to_string(i));
    }
  }
}

inline void check_refused(const char* what, const char* name,
                          const std::vector<const Array*>& outputs, int fill) {
  const std::string sentence = gluon_roi_last_error();
  if (sentence.find(std::string(name) + ": ") != 0) {
    fail(std::string(what) + " was refused with '" + sentence + "', which names no " + name);
  }
  for (const Array* array : outputs) {
    if (!array->filled_with(fill)) fail(std::string(what) + " was refused, and wrote to an output");
  }
}

inline std::vector<const Array*> pointers(const std::vector<Array>& arrays) {
  std::vector<const Array*> all;
  for (const Array& array : arrays) all.push_back(&array);
  return all;
}

inline void check_rows(const Call& call, const Results& results) {
  if (call.op->name() == std::string("BoxIoU")) {
    for (int64_t i = 0; i < results.out.size(); ++i) {
      const double value = results.out.get(i);
      if (!(value >= 0 && value <= 1)) fail("an overlap is not from 0 to 1");
    }
  }
  if (call.maps() == 0) return;  // BoxNMS and BoxIoU
  const int64_t rows = static_cast<int64_t>(call.rows.size());
  const int64_t out_rows = static_cast<int64_t>(call.out_rows.size());
  const int64_t row_size = out_rows ? results.out.size() / out_rows : 0;
  const Array& d_rois = results.d_inputs[call.maps()];
  const double scale = *std::max_element(call.so.scales.begin(), call.so.scales.end());
  // A slope per image pixel is proportional to the scale, and may leave the range of the type.
  const bool in_range = scale < 1e6 && call.rois().tensor().dtype != GLUON_ROI_FLOAT16;
  for (int64_t k = 0; k < out_rows; ++k) {
    const Row row = call.out_rows[static_cast<size_t>(k)];
    const std::string name = "row " + std::to_string(k);
    for (int64_t i = k * row_size; i < (k + 1) * row_size; ++i) {
      const double value = results.out.get(i);
      if (row == Row::kPadding && (value != 0 || std::signbit(value))) {
        fail(name + " is padding, but not 0");
      }
      if (row == Row::kNotFinite && !std::isnan(value)) {
        fail(name + " has no finite box, but is not NaN");
      }
      if (row == Row::kValid && call.finite && !std::isfinite(value)) {
        fail(name + " of a finite map is not finite");
      }
    }
  }
  for (int64_t k = 0; k < rows; ++k) {
    const Row row = call.rows[static_cast<size_t>(k)];
    const std::string name = "row " + std::to_string(k);
    const int64_t columns = call.columns();
    for (int64_t i = 0; i < columns; ++i) {
      const double value = d_rois.get(k * columns + i);
      const bool none =
          row != Row::kValid || !call.so.rois_grad || i < columns - call.op->coordinates();
      if (none && value != 0) fail("d_rois of " + name + " is not 0");
      if (call.finite && in_range && !std::isfinite(value)) {
        fail("d_rois of " + name + " is not finite");
      }
    }
  }
  for (size_t map = 0; map < call.maps(); ++map) {
    const Array& d_map = results.d_inputs[map];
    for (int64_t i = 0; call.finite && i < d_map.size(); ++i) {
      if (!std::isfinite(d_map.get(i))) fail("the gradient of a map is not finite");
    }
  }
}

// <y, g> = <x, J^T g>, which also holds for the maximum.
inline void check_adjoint(const Call& call, const Results& results) {
  // Where one list makes a row NaN, the others still give gradients.
  const auto& sums = call.out_rows;
  if (call.so.lists > 1 && std::count(sums.begin(), sums.end(), Row::kNotFinite) > 0) return;
  double left = 0, right = 0;
  const int64_t rows = static_cast<int64_t>(sums.size());
  for (int64_t i = 0; i < results.out.size(); ++i) {
    if (rows > 0 && sums[static_cast<size_t>(i / (results.out.size() / rows))] != Row::kValid) {
      continue;
    }
    left += results.out.get(i) * call.d_out.get(i);
  }
  for (size_t map = 0; map < call.maps(); ++map) {
    const Array &data = call.inputs[map], &d_data = results.d_inputs[map];
    for (int64_t i = 0; i < data.size(); ++i) {
      if (d_data.get(i) != 0) right += data.get(i) * d_data.get(i);
    }
  }
  if (!(std::fabs(left - right) <= 1e-11 * (left + right))) {
    fail("<y, g> is " + std::to_string(left) + ", <x, J^T g> is " + std::to_string(right));
  }
}

inline uint64_t right_call(const Call& call) {
  const Results results = run(call, 1, 0xff);
  // A call with an empty output returns before it reads rois.
  const bool may_pass = call.d_out.size() == 0;
  const auto check_code = [&](const char* what, int code) {
    if ((code == GLUON_ROI_OK) == call.refused && !may_pass) {
      fail(std::string(what) + " gave " + std::to_string(code) + ", '" + gluon_roi_last_error() +
           "'");
    }
  };
  check_code("forward", results.forward);
  check_code("backward", results.backward);
  const char* name = call.op->name();
  if (results.forward != GLUON_ROI_OK) {
    check_refused("forward", name, {&results.out, &results.second}, 0xff);
  }
  if (results.backward != GLUON_ROI_OK) {
    check_refused("backward", name, pointers(results.d_inputs), 0xff);
  }
  check_same(results, run(call, 2, 0x00), "two threads, other bytes in the outputs before");
  check_same(results, run(call, 3, 0x55, true), "three threads, gradients of the maps alone");
  check_same(results, run(call, 1, 0xff), "again");
  if (results.forward == GLUON_ROI_OK && results.backward == GLUON_ROI_OK && !call.refused) {
    check_rows(call, results);
    if (call.positive && call.d_out.tensor().dtype == GLUON_ROI_FLOAT64) {
      check_adjoint(call, results);
    }
  }
  return digest_of(results);
}

}  // namespace sanitize
