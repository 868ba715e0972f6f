// SPDX-License-Identifier: Apache-2.0
// The graph pass "gluon_roi": switches MXNet's operators in a symbol to those of this library. With
// the option rois_only it switches only those that pool boxes.
//
// It renames nodes, translates their attributes (switches.h), and puts a guard in front of each
// input (see gluon_roi/bridge/guard.py). Names of nodes, arguments and outputs stay, and so do
// attributes such as __this__. If a node cannot be switched, the pass fails and leaves the graph
// unchanged.
//
// The graph pass "gluon_roi_pyramid", which "gluon_roi" ends with, makes one PyramidROIAlign of
// added ROIAligns.
#include <algorithm>
#include <set>

#include "../core/errors.h"
#include "../core/registry.h"
#include "lib_api.h"
#include "switches.h"

namespace gluon_roi {
namespace {

using mxnet::ext::Graph;
using mxnet::ext::MXReturnValue;
using mxnet::ext::Node;
using mxnet::ext::NodeEntry;

constexpr const char* kGuard = "__gluon_roi_guard__";

// What our operator that a node calls declares of one of its inputs.
Input declared_input(const Node& node, size_t input) {
  const auto found = std::find_if(operators().begin(), operators().end(), [&](const Operator* op) {
    return node.op == std::string("_gluon_roi_") + op->name();
  });
  try {
    return (*found)->inputs(node.attrs)[input];
  } catch (const Error& error) {
    fail("optimize", "node ", node.name, ": ", error.what());
  }
}

// Puts a new node in front of an input.
Node* insert(Graph* graph, Node* node, size_t input, const std::string& name,
             const std::string& op) {
  NodeEntry& entry = node->inputs[input];
  Node* added = graph->addNode(name, op);
  added->inputs = {entry};
  added->outputs = {{node, static_cast<int>(input)}};
  // MXNet also walks the graph along outputs.
  for (NodeEntry& output : entry.node->outputs) {
    if (output.node == node && output.entry == static_cast<int>(input)) output = {added, 0};
  }
  entry = {added, 0};
  return added;
}

// Puts a node in front of an input that tells MXNet its shape, such as "(-1, 5)"; "" for none.
void insert_shape(Graph* graph, Node* node, size_t input, const std::string& name,
                  const std::string& shape) {
  Node* nowhere = graph->addNode(name + "_shape", "_zeros_without_dtype");
  if (!shape.empty()) nowhere->attrs = {{"shape", shape}};
  Node* added = insert(graph, node, input, name, "_identity_with_attr_like_rhs");
  added->inputs.push_back({nowhere, 0});
  nowhere->outputs = {{added, 1}};
}

// Puts guards in front of inputs; numbers distinguish the guards of computed maps.
class Guards {
 public:
  Guards(Graph* graph, bool body, bool ranks_known = false)
      : graph_(graph), body_(body), ranks_known_(ranks_known) {}

  void add(Node* node, size_t input, const char* name) {
    Node* const source = node->inputs[input].node;
    const std::string guard_name = node->name + "_" + name;
    // The rules are those of gluon_roi/bridge/guard.py.
    const Input declared = declared_input(*node, input);
    const bool is_map = declared.role == Role::kMaps;
    const bool no_rank = ranks_known_ || node->inputs.size() == 2;
    if (is_map && (no_rank || body_) && variables_of(source).size() == 1) {
      insert(graph_, node, input, guard_name, "Dropout")->attrs = {{"p", "0"},
                                                                   {"axes", "(0, 1, 2, 3)"}};
    } else if ((is_map && no_rank) || body_) {
      number(insert(graph_, node, input, guard_name, "_copy"));
    } else {
      std::string sizes;
      for (int i = 0; i < declared.rank; ++i) sizes += i > 0 ? ", -1" : "-1";
      insert_shape(graph_, node, input, guard_name, sizes.empty() ? "" : "(" + sizes + ")");
    }
  }
  // Gives a guard a number that is unique in this graph.
  void number(Node* guard) {
    guard->attrs[kGuard] = guard->name + ".optimized." + std::to_string(count_++);
  }

 private:
  static std::set<Node*> variables_of(Node* node) {
    std::set<Node*> seen, variables;
    std::vector<Node*> open = {node};
    while (!open.empty()) {
      Node* next = open.back();
      open.pop_back();
      if (!seen.insert(next).second) continue;
      if (next->op == "null") variables.insert(next);
      for (const NodeEntry& entry : next->inputs) open.push_back(entry.node);
    }
    return variables;
  }

  Graph* graph_;
  const bool body_;  // the graph is a loop's body, in which a node without inputs has no shape
  const bool ranks_known_;  // MXNet knows the shapes of maps before it infers others
  int count_ = 0;
};

void check_inputs(const Node& node, size_t expected) {
  if (node.inputs.size() == expected) return;
  fail("optimize", "node ", node.name, " (", node.op, ") has ", node.inputs.size(),
       " inputs, expected ", expected);
}

// MXNet's operators have hidden outputs, such as the positions of maxima; ours have none, or one of
// another type.
void check_outputs(const Graph& graph, const Node& node) {
  bool only_first = true;
  for (const NodeEntry& use : node.outputs) {
    only_first = only_first && use.node->inputs[use.entry].entry == 0;
  }
  for (const NodeEntry& output : graph.outputs) {
    only_first = only_first && (output.node != &node || output.entry == 0);
  }
  if (only_first) return;
  fail("optimize", "an output of node ", node.name, " (", node.op,
       ") other than the first is used, which gluon_roi does not have");
}

// An input of one node becomes one of another.
void move_input(Node* from, size_t input, Node* to, const NodeEntry& entry) {
  const int place = static_cast<int>(to->inputs.size());
  for (NodeEntry& output : entry.node->outputs) {
    if (output.node == from && output.entry == static_cast<int>(input)) output = {to, place};
  }
  to->inputs.push_back(entry);
}

// A deformable convolution is one of samples, with a kernel of 1: as in
// gluon_roi/ops/deformable_convolution.py. Returns the node of the samples.
Node* split_convolution(Graph* graph, Node* node, const Switched& to, bool body) {
  Node* samples = graph->addNode(node->name + "_sampling", "_gluon_roi_DeformableSampling");
  const bool modulated = to.inputs[2] == "mask";
  if (modulated) samples->attrs = {{"mask", "True"}, {"convention", "torchvision"}};
  node->op = "Convolution";
  node->attrs = to.attributes;
  node->attrs.erase("im2col_step");
  samples->attrs["layout"] = "columns";
  for (const char* name : {"kernel", "stride", "dilate", "pad", "num_deformable_group"}) {
    const auto given = to.attributes.find(name);
    if (given == to.attributes.end()) continue;
    samples->attrs.insert(*given);
  }
  for (const char* name : {"stride", "dilate", "pad", "num_deformable_group"}) {
    node->attrs.erase(name);
  }
  node->attrs["kernel"] = "(1, 1)";
  const std::vector<NodeEntry> inputs = node->inputs;
  const size_t moves = modulated ? 3 : 2;
  for (size_t i = 0; i < moves; ++i) move_input(node, i, samples, inputs[i]);
  node->inputs = {{samples, 0}};
  samples->outputs = {{node, 0}};
  for (size_t i = moves; i < inputs.size(); ++i) move_input(node, i, node, inputs[i]);

  const Attributes& known = inputs[moves].node->attrs;
  insert(graph, node, 1, node->name + "_weight_matrix", "Reshape")->attrs = {
      {"shape", "(0, -1, 1, 1)"}};
  if (!body && known.count("__shape__") == 0) {
    insert_shape(
        graph, node->inputs[1].node, 0, node->name + "_weight_guard",
        "(" + to.attributes.at("num_filter") + ", -1, " + to.attributes.at("kernel").substr(1));
  }
  return samples;
}

// A node of ours with two outputs, behind a copy for each that is used: the first one keeps the
// name that it has in MXNet's operator. As in gluon_roi/ops/proposal.py. Returns the node.
Node* put_behind_copies(Graph* graph, Node* node, const Switched& to) {
  Node* boxes = graph->addNode(node->name + "_boxes", "_gluon_roi_" + to.op);
  boxes->attrs = to.attributes;
  const std::vector<NodeEntry> inputs = node->inputs;
  for (size_t i = 0; i < inputs.size(); ++i) move_input(node, i, boxes, inputs[i]);
  const auto copy = [&](Node* target, int entry) {
    target->op = "_copy";
    for (const auto& item : to.attributes) {
      if (is_hidden(item.first)) target->attrs.insert(item);
    }
    target->inputs = {{boxes, entry}};
    boxes->outputs.push_back({target, 0});
  };
  node->attrs.clear();
  const std::vector<NodeEntry> uses = node->outputs;
  node->outputs.clear();
  Node* score = nullptr;
  const auto score_node = [&] {
    if (score == nullptr) copy(score = graph->addNode(node->name + "_score", "_copy"), 1);
    return score;
  };
  for (const NodeEntry& use : uses) {
    NodeEntry& entry = use.node->inputs[use.entry];
    if (entry.entry == 1) entry = {score_node(), 0};
    entry.node->outputs.push_back(use);
  }
  for (NodeEntry& output : graph->outputs) {
    if (output.node == node && output.entry == 1) output = {score_node(), 0};
  }
  copy(node, 0);
  return boxes;
}

void switch_graph(Graph* graph, const Attributes& options, bool rois_only, bool body) {
  Guards guards(graph, body);
  const size_t size = graph->size();
  for (size_t i = 0; i < size; ++i) {
    Node* node = graph->getNode(i);
    for (Graph* subgraph : node->subgraphs) switch_graph(subgraph, options, rois_only, true);
    if (node->op == "_copy" && node->attrs.count(kGuard) != 0) guards.number(node);
    const Switch* const found = find_switch(node->op);
    if (found == nullptr || (rois_only && !found->pools_boxes())) continue;
    Switched to = apply_switch(*found, node->name, node->attrs, options);
    const auto no_bias = to.attributes.find("no_bias");
    if (no_bias != to.attributes.end() && is_true(no_bias->second)) to.inputs.pop_back();
    check_inputs(*node, to.inputs.size());
    const bool has_both_outputs = to.op == "Proposal";
    if (!has_both_outputs) check_outputs(*graph, *node);
    const auto weight = std::find(to.inputs.begin(), to.inputs.end(), "weight");
    if (weight != to.inputs.end()) {
      node = split_convolution(graph, node, to, body);
      to.inputs.erase(weight, to.inputs.end());
    } else if (has_both_outputs) {
      node = put_behind_copies(graph, node, to);
    } else {
      node->attrs = to.attributes;
      node->op = "_gluon_roi_" + to.op;
    }
    for (size_t input = 0; input < to.inputs.size(); ++input) {
      guards.add(node, input, to.inputs[input].c_str());
    }
  }
}

bool is_sum(const Node& node) { return node.op == "add_n" || node.op == "elemwise_add"; }

// Lists the nodes that a sum adds, in their order, through sums in it, and these sums. Returns
// whether all are ROIAligns, and whether nothing else uses them.
bool list_aligns(const Graph& graph, const Node& sum, std::vector<Node*>* aligns,
                 std::set<const Node*>* sums) {
  sums->insert(&sum);
  return std::all_of(sum.inputs.begin(), sum.inputs.end(), [&](const NodeEntry& entry) {
    Node* const node = entry.node;
    const bool is_output =
        std::any_of(graph.outputs.begin(), graph.outputs.end(),
                    [&](const NodeEntry& output) { return output.node == node; });
    if (is_output || node->outputs.size() != 1) return false;
    if (is_sum(*node)) return list_aligns(graph, *node, aligns, sums);
    aligns->push_back(node);
    return node->op == "_gluon_roi_ROIAlign" && node->inputs.size() == 2;
  });
}

// Takes an attribute from a node's, and returns it; "" if there is none.
std::string take(Attributes* attributes, const char* name) {
  const auto found = attributes->find(name);
  if (found == attributes->end()) return "";
  const std::string value = found->second;
  attributes->erase(found);
  return value;
}

// The input of a ROIAlign, without the guard.
NodeEntry input_of(const Node& align, size_t input) {
  const NodeEntry& entry = align.inputs[input];
  const std::string name = align.name + (input == 0 ? "_data" : "_rois");
  const bool is_guard = entry.node->name == name && !entry.node->inputs.empty();
  return is_guard ? entry.node->inputs[0] : entry;
}

// Makes one PyramidROIAlign of a sum of ROIAligns, as in GluonCV's detectors, where each map pools
// the boxes of its own level and has padding rows for all others. (A map or rois that several share
// would be pooled in turns, without gain.) The nodes that it replaces stay in the graph without
// users; MXNet drops them.
void fuse_sum(Graph* graph, Node* sum, Guards* guards, std::set<const Node*>* fused) {
  std::vector<Node*> aligns;
  std::set<const Node*> sums;
  if (!list_aligns(*graph, *sum, &aligns, &sums)) return;
  if (aligns.size() < 2 || aligns.size() > GLUON_ROI_MOST_MAPS) return;
  Attributes common;
  std::string scales;
  std::set<std::pair<Node*, int>> own;  // maps and rois
  for (const Node* align : aligns) {
    Attributes attributes = align->attrs;
    scales += (scales.empty() ? "(" : ", ") + take(&attributes, "spatial_scale");
    if (align != aligns[0] && attributes != common) return;
    common = std::move(attributes);
    for (size_t input = 0; input < 2; ++input) {
      const NodeEntry entry = input_of(*align, input);
      if (!own.insert({entry.node, entry.entry}).second) return;
    }
  }
  const auto group = sum->attrs.find("__ctx_group__");
  if (take(&common, "__ctx_group__") != (group == sum->attrs.end() ? "" : group->second)) return;
  fused->insert(sums.begin(), sums.end());

  Node* const rois = graph->addNode(sum->name + "_lists", "Concat");
  rois->attrs = {{"dim", "0"}, {"num_args", std::to_string(aligns.size())}};
  take(&sum->attrs, "num_args");
  sum->op = "_gluon_roi_PyramidROIAlign";
  sum->attrs.insert(common.begin(), common.end());
  sum->attrs["spatial_scale"] = scales + ")";
  sum->attrs["assignment"] = "given";
  sum->inputs.clear();
  const auto connect = [](const NodeEntry& from, Node* to) {
    from.node->outputs.push_back({to, static_cast<int>(to->inputs.size())});
    to->inputs.push_back(from);
  };
  for (const Node* align : aligns) {
    connect(input_of(*align, 0), sum);
    connect(input_of(*align, 1), rois);
  }
  connect({rois, 0}, sum);
  for (size_t i = 0; i < aligns.size(); ++i) {
    guards->add(sum, i, ("data" + std::to_string(i)).c_str());
  }
  guards->add(sum, aligns.size(), "rois");
}

void fuse_pyramids(Graph* graph, bool ranks_known) {
  Guards guards(graph, false, ranks_known);
  std::set<const Node*> fused;
  for (size_t i = graph->size(); i-- > 0;) {  // a sum of sums before those
    Node* const node = graph->getNode(i);
    if (is_sum(*node) && fused.count(node) == 0) fuse_sum(graph, node, &guards, &fused);
  }
}

MXReturnValue optimize(Graph* graph, const Attributes& options) {
  const auto found = options.find("bad_index");
  Attributes chosen;
  if (found != options.end() && found->second != "error") {
    if (found->second != "padding") {
      fail("optimize", "argument bad_index: expected 'error' or 'padding', got '", found->second,
           "'");
    }
    chosen.insert(*found);
  }
  const auto rois_only = options.find("rois_only");
  switch_graph(graph, chosen, rois_only != options.end() && is_true(rois_only->second), false);
  fuse_pyramids(graph, options.count("ranks_known") != 0);
  return mxnet::ext::MX_SUCCESS;
}

// For the graph of a hybridized network.
MXReturnValue optimize_pyramids(Graph* graph, const Attributes&) {
  fuse_pyramids(graph, true);
  return mxnet::ext::MX_SUCCESS;
}

}  // namespace
}  // namespace gluon_roi

REGISTER_PASS(gluon_roi).setBody(gluon_roi::optimize);
REGISTER_PASS(gluon_roi_pyramid).setBody(gluon_roi::optimize_pyramids);
