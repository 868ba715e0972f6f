// SPDX-License-Identifier: Apache-2.0
// The same as inference.h for operators of float32 arrays of any number of dimensions.
#pragma once
#include <utility>
#include <vector>

#include "../core/any_rank.h"
#include "inference.h"

namespace gluon_roi {

// Op defines kName, kInputs with one input, Params and params(), and
//   array_count(params), the number of arrays if the input is variadic;
//   infer(params, inputs), the sizes of the output, or throws; it sets unknown sizes of inputs that
//   follow from others;
//   forward(params, inputs, output).
template <class Op>
class AnyRankOperator final : public ForwardOnCpu, private AnyRank {
 public:
  using Params = typename Op::Params;

  AnyRankOperator()
      : ForwardOnCpu({Op::kName,
                      "",
                      {std::begin(Op::kInputs), std::end(Op::kInputs)},
                      {{"output", GLUON_ROI_FLOAT32}},
                      0,
                      sizeof(Params)},
                     &inference_operators()) {}
  void visit(ParamVisitor* visitor, void* params) const override {
    Op::params(visitor, static_cast<Params*>(params));
  }
  std::vector<Input> inputs(const Attributes& attributes) const override {
    return std::vector<Input>(static_cast<size_t>(Op::array_count(parse(attributes))),
                              Op::kInputs[0]);
  }

  // ---- Called by MXNet ----
  const AnyRank* any_rank() const override { return this; }
  ArraySizes infer(const Attributes& attributes, std::vector<ArraySizes>* inputs) const override {
    const ArraySizes sizes = Op::infer(parse(attributes), inputs);
    check_elements(Op::kName, "output", sizes.data(), sizes.size(), kMaxElementsInMXNet);
    return sizes;
  }
  void forward(const Attributes& attributes, const std::vector<SizedArray>& inputs,
               const SizedArray& output) const override {
    const Params params = parse(attributes);
    std::vector<ArraySizes> sizes;
    sizes.reserve(inputs.size());
    for (const SizedArray& input : inputs) sizes.push_back(input.sizes);
    // MXNet takes an input of unknown shape for a scalar.
    Op::infer(params, &sizes);
    Tensor row{output.data, GLUON_ROI_FLOAT32, 1, {1}};
    for (const int64_t size : output.sizes) row.shape[0] *= size;
    run(row, [&] { Op::forward(params, inputs, output); });
  }

  // ---- The same for arrays of at most 4 dimensions ----
  std::vector<Tensor> infer(const Attributes& attributes,
                            const std::vector<Tensor>& inputs) const override {
    std::vector<ArraySizes> sizes;
    sizes.reserve(inputs.size());
    for (const Tensor& input : inputs) sizes.push_back(sized(input).sizes);
    const ArraySizes found = infer(attributes, &sizes);
    Tensor output{nullptr, GLUON_ROI_FLOAT32, static_cast<int32_t>(found.size()), {}};
    std::copy(found.begin(), found.end(), output.shape);
    return {output};
  }
  void forward(const Attributes& attributes, const std::vector<Tensor>& inputs,
               const std::vector<Tensor>& outputs, const gluon_roi_device&) const override {
    std::vector<SizedArray> arrays;
    arrays.reserve(inputs.size());
    for (const Tensor& input : inputs) arrays.push_back(sized(input));
    forward(attributes, arrays, sized(outputs[0]));
  }

 private:
  static Params parse(const Attributes& attributes) {
    Params params{};
    parse_params(Op::kName, attributes, [&](ParamVisitor* visit) { Op::params(visit, &params); });
    return params;
  }
  static SizedArray sized(const Tensor& tensor) {
    return {data_of<float>(tensor), ArraySizes(tensor.shape, tensor.shape + tensor.ndim)};
  }
};

}  // namespace gluon_roi
