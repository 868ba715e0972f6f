// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <sstream>

namespace gluon_roi {

std::vector<const Operator*>& operators() {
  static std::vector<const Operator*> all;
  return all;
}

Operator::Operator(const char* name, const char* symbol) : name_(name), symbol_(symbol) {
  operators().push_back(this);
}

std::string describe_operator(const Operator& op, const Input* inputs, size_t count,
                              int coordinates, size_t params_size, const std::string& params) {
  static const char* const roles[] = {"maps", "rows", "like", "rois", "counts"};
  const auto flag = [](bool set) { return set ? "true" : "false"; };
  std::ostringstream json;
  json << "{\"name\": \"" << op.name() << "\", \"symbol\": \"" << op.symbol()
       << "\", \"inputs\": [";
  for (size_t i = 0; i < count; ++i) {
    const Input& input = inputs[i];
    json << (i > 0 ? ", " : "") << "{\"name\": \"" << input.name << "\", \"role\": \""
         << roles[static_cast<int>(input.role)] << "\", \"rank\": " << input.rank
         << ", \"optional\": " << flag(input.optional)
         << ", \"has_gradient\": " << flag(input.has_gradient)
         << ", \"several\": " << flag(input.several) << "}";
  }
  json << "], \"outputs\": [";
  for (size_t i = 0; i < op.outputs().size(); ++i) {
    json << (i > 0 ? ", \"" : "\"") << op.outputs()[i].name << "\"";
  }
  json << "], \"coordinates\": " << coordinates << ", \"params_size\": " << params_size
       << ", \"params\": [" << params << "]}";
  return json.str();
}

}  // namespace gluon_roi
