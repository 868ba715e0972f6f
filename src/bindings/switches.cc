// SPDX-License-Identifier: Apache-2.0
#include "switches.h"

#include <algorithm>
#include <cctype>
#include <set>

#include "../core/errors.h"

namespace gluon_roi {
namespace {

SwitchedArgument same(const char* name) { return {name, name, Becomes::kSame, ""}; }
SwitchedArgument renamed(const char* theirs, const char* ours) {
  return {theirs, ours, Becomes::kSame, ""};
}
SwitchedArgument always(const char* name, const char* fallback) {
  return {name, name, Becomes::kAlways, fallback};
}
SwitchedArgument not_zero(const char* name) { return {name, name, Becomes::kNotZero, ""}; }
SwitchedArgument constant(const char* ours, const char* value) {
  return {"", ours, Becomes::kConstant, value};
}
SwitchedArgument option(const char* ours) { return {"", ours, Becomes::kOption, ""}; }
SwitchedArgument chooses(const char* flag, const char* op) {
  return {flag, "", Becomes::kOperator, op};
}
SwitchedArgument removes(const char* flag, const char* input) {
  return {flag, "", Becomes::kNoInput, input};
}

// `ours` is a function of gluon_roi.nd, and in a graph the operator of this name. An operator that
// becomes several nodes would need a function of its own in graph_pass.cc.
const std::vector<Switch>& switches() {
  static const std::vector<SwitchedArgument> proposal = {same("rpn_pre_nms_top_n"),
                                                         same("rpn_post_nms_top_n"),
                                                         same("threshold"),
                                                         same("rpn_min_size"),
                                                         same("scales"),
                                                         same("ratios"),
                                                         same("feature_stride"),
                                                         same("output_score"),
                                                         same("iou_loss")};
  static const std::vector<Switch> all = {
      {"ROIPooling",
       {"ROIPooling", "roi_pooling"},
       "ROIPool",
       {"data", "rois"},
       {same("pooled_size"), same("spatial_scale"), option("bad_index")}},
      {"_contrib_ROIAlign",
       {"ROIAlign"},
       "ROIAlign",
       {"data", "rois"},
       {same("pooled_size"), same("spatial_scale"), renamed("sample_ratio", "sampling_ratio"),
        always("aligned", "False"), chooses("position_sensitive", "PSROIAlign"),
        option("bad_index")}},
      {"_contrib_PSROIPooling",
       {"PSROIPooling"},
       "PSROIPool",
       {"data", "rois"},
       {same("spatial_scale"), same("output_dim"), same("pooled_size"), not_zero("group_size"),
        option("bad_index")}},
      {"_contrib_DeformablePSROIPooling",
       {"DeformablePSROIPooling"},
       "DeformablePSROIPool",
       {"data", "rois", "trans"},
       {same("spatial_scale"), same("output_dim"), same("group_size"), same("pooled_size"),
        not_zero("part_size"), always("sample_per_part", "1"), same("trans_std"),
        removes("no_trans", "trans"), option("bad_index")}},
      {"_contrib_RROIAlign",
       {"RROIAlign"},
       "RotatedROIAlign",
       {"data", "rois"},
       {same("pooled_size"), same("spatial_scale"), same("sampling_ratio"),
        constant("aligned", "False"), option("bad_index")}},
      {"_contrib_DeformableConvolution",
       {"DeformableConvolution"},
       "DeformableConvolution",
       {"data", "offset", "weight", "bias"},
       {same("kernel"), same("stride"), same("dilate"), same("pad"), same("num_filter"),
        same("num_group"), same("num_deformable_group"), same("workspace"), same("no_bias"),
        same("layout")}},
      {"_contrib_ModulatedDeformableConvolution",
       {"ModulatedDeformableConvolution"},
       "ModulatedDeformableConvolution",
       {"data", "offset", "mask", "weight", "bias"},
       {same("kernel"), same("stride"), same("dilate"), same("pad"), same("num_filter"),
        same("num_group"), same("num_deformable_group"), same("workspace"), same("no_bias"),
        same("im2col_step"), same("layout")}},
      {"_contrib_box_nms",
       {"box_nms", "box_non_maximum_suppression"},
       "BoxNMS",
       {"data"},
       {same("overlap_thresh"), same("valid_thresh"), same("topk"), same("coord_start"),
        same("score_index"), same("id_index"), same("background_id"), same("force_suppress"),
        same("in_format"), same("out_format")}},
      {"_contrib_Proposal",
       {"Proposal"},
       "Proposal",
       {"cls_prob", "bbox_pred", "im_info"},
       proposal},
      {"_contrib_MultiProposal",
       {"MultiProposal"},
       "Proposal",
       {"cls_prob", "bbox_pred", "im_info"},
       proposal},
  };
  return all;
}

// Files written by Python 2 have long integers: (7L, 7L).
std::string without_long(const std::string& value) {
  std::string result;
  for (const char c : value) {
    const bool after_digit = !result.empty() && std::isdigit(result.back()) != 0;
    if (c != 'L' || !after_digit) result += c;
  }
  return result;
}

std::string json_of(const char* text) { return "\"" + std::string(text) + "\""; }

std::string json_of(const std::vector<const char*>& texts) {
  std::string json;
  for (const char* text : texts) json += (json.empty() ? "[" : ", ") + json_of(text);
  return json + "]";
}

std::string json_of(const Switch& to) {
  static const char* const names[] = {"same",   "always",   "not zero", "constant",
                                      "option", "operator", "no input"};
  std::string arguments;
  for (const SwitchedArgument& argument : to.arguments) {
    arguments += (arguments.empty() ? "[" : ", ") + ("{\"theirs\": " + json_of(argument.theirs)) +
                 ", \"ours\": " + json_of(argument.ours) +
                 ", \"becomes\": " + json_of(names[static_cast<int>(argument.becomes)]) +
                 ", \"value\": " + json_of(argument.value) + "}";
  }
  return "{\"theirs\": " + json_of(to.theirs) + ", \"functions\": " + json_of(to.functions) +
         ", \"ours\": " + json_of(to.ours) + ", \"inputs\": " + json_of(to.inputs) +
         ", \"arguments\": " + arguments + "]}";
}

}  // namespace

bool Switch::pools_boxes() const {
  return std::any_of(inputs.begin(), inputs.end(),
                     [](const char* name) { return std::string(name) == "rois"; });
}

bool is_hidden(const std::string& key) { return key.size() > 4 && key.compare(0, 2, "__") == 0; }

bool is_true(const std::string& flag) { return flag == "True" || flag == "true" || flag == "1"; }

const Switch* find_switch(const std::string& theirs) {
  const auto found = std::find_if(switches().begin(), switches().end(),
                                  [&](const Switch& one) { return theirs == one.theirs; });
  return found == switches().end() ? nullptr : &*found;
}

Switched apply_switch(const Switch& to, const std::string& node, const Attributes& theirs,
                      const Attributes& options) {
  Switched switched{to.ours, {}, {to.inputs.begin(), to.inputs.end()}};
  std::set<std::string> known;
  for (const SwitchedArgument& argument : to.arguments) {
    const auto given = theirs.find(argument.theirs);
    const std::string value = given == theirs.end() ? "" : without_long(given->second);
    if (given != theirs.end()) known.insert(given->first);
    switch (argument.becomes) {
      case Becomes::kSame:
        if (given != theirs.end()) switched.attributes[argument.ours] = value;
        break;
      case Becomes::kNotZero:
        if (given != theirs.end() && value != "0") switched.attributes[argument.ours] = value;
        break;
      case Becomes::kAlways:
        switched.attributes[argument.ours] = given == theirs.end() ? argument.value : value;
        break;
      case Becomes::kOption:
        if (options.count(argument.ours) != 0) {
          switched.attributes[argument.ours] = options.at(argument.ours);
        }
        break;
      case Becomes::kConstant: switched.attributes[argument.ours] = argument.value; break;
      case Becomes::kOperator:
        if (is_true(value)) switched.op = argument.value;
        break;
      case Becomes::kNoInput:
        if (is_true(value)) {
          auto& inputs = switched.inputs;
          inputs.erase(std::find(inputs.begin(), inputs.end(), argument.value));
        } else {
          switched.attributes[argument.value] = "True";  // an optional input is given
        }
        break;
    }
  }
  for (const auto& item : theirs) {
    if (is_hidden(item.first)) {
      switched.attributes.insert(item);
    } else if (known.count(item.first) == 0) {
      fail("optimize", "node ", node, " (", to.theirs, ") has an attribute ", item.first, " = '",
           item.second, "' that gluon_roi does not know");
    }
  }
  return switched;
}

}  // namespace gluon_roi

extern "C" const char* gluon_roi_switches(void) {
  static const std::string text = [] {
    std::string json;
    for (const gluon_roi::Switch& one : gluon_roi::switches()) {
      json += (json.empty() ? "[" : ", ") + gluon_roi::json_of(one);
    }
    return json + "]";
  }();
  return text.c_str();
}
