// SPDX-License-Identifier: Apache-2.0
#include "registry.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <utility>

namespace gluon_roi {

std::vector<const Operator*>& operators() {
  static std::vector<const Operator*> all;
  return all;
}
std::vector<const Operator*>& inference_operators() {
  static std::vector<const Operator*> all;
  return all;
}

Operator::Operator(Declaration declared, std::vector<const Operator*>* list)
    : declared_(std::move(declared)) {
  for (const auto* others : {&operators(), &inference_operators()}) {
    for (const Operator* other : *others) {
      if (std::strcmp(other->name(), name()) != 0) continue;
      std::fprintf(stderr, "gluon_roi: two operators have the name %s\n", name());
      std::abort();  // while the library is loaded, when nothing catches an exception
    }
  }
  list->push_back(this);
}

std::string Operator::describe() const {
  static const char* const roles[] = {"maps", "rows", "boxes", "like", "rois", "counts", "float32"};
  const auto flag = [](bool set) { return set ? "true" : "false"; };
  std::ostringstream json;
  json << "{\"name\": \"" << declared_.name << "\", \"symbol\": \"" << declared_.symbol
       << "\", \"inputs\": [";
  const char* separator = "";
  for (const Input& input : declared_.inputs) {
    json << separator << "{\"name\": \"" << input.name << "\", \"role\": \""
         << roles[static_cast<int>(input.role)] << "\", \"rank\": " << input.rank
         << ", \"optional\": " << flag(input.optional)
         << ", \"has_gradient\": " << flag(input.has_gradient)
         << ", \"several\": " << flag(input.variadic) << "}";
    separator = ", ";
  }
  json << "], \"outputs\": [";
  separator = "\"";
  for (const Output& output : declared_.outputs) {
    json << separator << output.name << "\"";
    separator = ", \"";
  }
  std::vector<uint64_t> params(declared_.params_size / sizeof(uint64_t) + 1);
  const auto visit_params = [&](ParamVisitor* visitor) { visit(visitor, params.data()); };
  json << "], \"coordinates\": " << declared_.coordinates
       << ", \"params_size\": " << declared_.params_size << ", \"params\": ["
       << describe_params(params.data(), visit_params) << "]}";
  return json.str();
}

}  // namespace gluon_roi
