// The graph pass "gluon_roi": switches MXNet's RoI operators in a symbol to those of this library.
//
// It renames nodes, writes their attributes anew, and puts a guard in front of each input (see
// gluon_roi/bridge/guard.py). Names of nodes, arguments and outputs stay, and so do attributes such
// as __this__. A graph that it cannot switch whole is an error, and stays as it was.
#include <algorithm>
#include <functional>
#include <set>

#include "../core/operator.h"
#include "lib_api.h"

namespace gluon_roi {
namespace {

using mxnet::ext::Graph;
using mxnet::ext::MXReturnValue;
using mxnet::ext::Node;
using mxnet::ext::NodeEntry;

constexpr const char* kGuard = "__gluon_roi_guard__";

bool is_hidden(const std::string& key) { return key.size() > 4 && key.compare(0, 2, "__") == 0; }

// The attributes of a node, to be taken one by one: what is left at the end is unknown.
class Taken {
 public:
  explicit Taken(const Node& node) : node_(node), left_(node.attrs) {}

  std::string required(const char* key) {
    const auto found = left_.find(key);
    if (found == left_.end()) {
      fail("optimize", "node ", node_.name, " (", node_.op, ") lacks the attribute ", key);
    }
    std::string value = found->second;
    left_.erase(found);
    // Files that Python 2 wrote have long numbers: (7L, 7L).
    value.erase(std::remove(value.begin(), value.end(), 'L'), value.end());
    return value;
  }
  std::string optional(const char* key, const char* fallback) {
    return left_.count(key) != 0 ? required(key) : fallback;
  }
  bool flag(const char* key) {
    const std::string value = optional(key, "False");
    return value == "True" || value == "true" || value == "1";
  }
  // What stays on the node whatever its operator is.
  Attributes finish() const {
    Attributes kept;
    for (const auto& item : left_) {
      if (!is_hidden(item.first)) {
        fail("optimize", "node ", node_.name, " (", node_.op, ") has an attribute ", item.first,
             " = '", item.second, "' that gluon_roi does not know");
      }
      kept.insert(item);
    }
    return kept;
  }

 private:
  const Node& node_;
  Attributes left_;
};

struct Switched {
  std::string op;
  Attributes attributes;
  std::vector<const char*> inputs;  // their names
};

// With what all of them have.
Switched switch_to(const char* op, Taken* from) {
  Switched to{op, {}, {"data", "rois"}};
  for (const char* key : {"pooled_size", "spatial_scale"}) to.attributes[key] = from->required(key);
  return to;
}

// MXNet's 0, where ours has no such attribute: the default.
void set_unless_zero(Switched* to, const char* key, const std::string& value) {
  if (value != "0") to->attributes[key] = value;
}

Switched from_roi_pooling(Taken* from) { return switch_to("ROIPool", from); }

Switched from_roi_align(Taken* from) {
  // The maps of a position-sensitive one are laid out as those of PSROIAlign.
  Switched to = switch_to(from->flag("position_sensitive") ? "PSROIAlign" : "ROIAlign", from);
  to.attributes["sampling_ratio"] = from->optional("sample_ratio", "-1");
  // Written always: the defaults are not the same.
  to.attributes["aligned"] = from->flag("aligned") ? "True" : "False";
  return to;
}

Switched from_ps_roi_pooling(Taken* from) {
  Switched to = switch_to("PSROIPool", from);
  to.attributes["output_dim"] = from->required("output_dim");
  set_unless_zero(&to, "group_size", from->optional("group_size", "0"));
  return to;
}

Switched from_rotated_roi_align(Taken* from) {
  Switched to = switch_to("RotatedROIAlign", from);
  to.attributes["sampling_ratio"] = from->optional("sampling_ratio", "-1");
  to.attributes["aligned"] = "False";
  return to;
}

Switched from_deformable_ps_roi_pooling(Taken* from) {
  Switched to = switch_to("DeformablePSROIPool", from);
  to.attributes["output_dim"] = from->required("output_dim");
  to.attributes["group_size"] = from->required("group_size");
  set_unless_zero(&to, "part_size", from->optional("part_size", "0"));
  // Written always: the defaults are not the same.
  to.attributes["sample_per_part"] = from->optional("sample_per_part", "1");
  to.attributes["trans_std"] = from->optional("trans_std", "0");
  if (!from->flag("no_trans")) {
    to.inputs.push_back("trans");
    to.attributes["trans"] = "True";
  }
  return to;
}

const std::map<std::string, std::function<Switched(Taken*)>>& switches() {
  static const std::map<std::string, std::function<Switched(Taken*)>> all = {
      {"ROIPooling", from_roi_pooling},
      {"_contrib_ROIAlign", from_roi_align},
      {"_contrib_PSROIPooling", from_ps_roi_pooling},
      {"_contrib_RROIAlign", from_rotated_roi_align},
      {"_contrib_DeformablePSROIPooling", from_deformable_ps_roi_pooling},
  };
  return all;
}

// Puts guards in front of inputs; numbers tell those of computed maps apart.
class Guards {
 public:
  Guards(Graph* graph, bool body) : graph_(graph), body_(body) {}

  void add(Node* node, size_t input, const char* name) {
    NodeEntry& entry = node->inputs[input];
    const std::string guard_name = node->name + "_" + name;
    Node* guard;
    // The rules are those of gluon_roi/bridge/guard.py.
    const bool is_map = std::string(name) == "data", two_inputs = node->inputs.size() == 2;
    if (is_map && (two_inputs || body_) && variables_of(entry.node).size() == 1) {
      guard = graph_->addNode(guard_name, "Dropout");
      guard->attrs = {{"p", "0"}, {"axes", "(0, 1, 2, 3)"}};
      guard->inputs = {entry};
    } else if ((is_map && two_inputs) || body_) {
      guard = graph_->addNode(guard_name, "_copy");
      number(guard);
      guard->inputs = {entry};
    } else {
      Node* nowhere = graph_->addNode(guard_name + "_shape", "_zeros_without_dtype");
      if (std::string(name) != "rois") nowhere->attrs = {{"shape", "(-1, -1, -1, -1)"}};
      guard = graph_->addNode(guard_name, "_identity_with_attr_like_rhs");
      guard->inputs = {entry, {nowhere, 0}};
      nowhere->outputs = {{guard, 1}};
    }
    // The graph is walked along outputs, too.
    for (NodeEntry& output : entry.node->outputs) {
      if (output.node == node && output.entry == static_cast<int>(input)) output = {guard, 0};
    }
    guard->outputs = {{node, static_cast<int>(input)}};
    entry = {guard, 0};
  }
  // Gives a guard a number that no other has in this graph.
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
  const bool body_;  // of a loop, in which a node without inputs has no shape
  int count_ = 0;
};

void check_inputs(const Node& node, size_t expected) {
  if (node.inputs.size() == expected) return;
  fail("optimize", "node ", node.name, " (", node.op, ") has ", node.inputs.size(),
       " inputs, expected ", expected);
}

// MXNet's operators have hidden outputs, such as the positions of maxima; ours have one output.
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

void switch_graph(Graph* graph, const std::string& bad_index, bool body) {
  Guards guards(graph, body);
  const size_t size = graph->size();
  for (size_t i = 0; i < size; ++i) {
    Node* node = graph->getNode(i);
    for (Graph* subgraph : node->subgraphs) switch_graph(subgraph, bad_index, true);
    if (node->op == "_copy" && node->attrs.count(kGuard) != 0) guards.number(node);
    const auto found = switches().find(node->op);
    if (found == switches().end()) continue;
    Taken from(*node);
    Switched to = found->second(&from);
    check_inputs(*node, to.inputs.size());
    check_outputs(*graph, *node);
    const Attributes kept = from.finish();
    node->attrs.clear();
    node->attrs.insert(to.attributes.begin(), to.attributes.end());
    node->attrs.insert(kept.begin(), kept.end());
    if (bad_index != "error") node->attrs["bad_index"] = bad_index;
    node->op = "_gluon_roi_" + to.op;
    for (size_t input = 0; input < to.inputs.size(); ++input) {
      guards.add(node, input, to.inputs[input]);
    }
  }
}

MXReturnValue optimize(Graph* graph, const Attributes& options) {
  const auto found = options.find("bad_index");
  const std::string bad_index = found == options.end() ? "error" : found->second;
  if (bad_index != "error" && bad_index != "padding") {
    fail("optimize", "argument bad_index: expected 'error' or 'padding', got '", bad_index, "'");
  }
  switch_graph(graph, bad_index, false);
  return mxnet::ext::MX_SUCCESS;
}

}  // namespace
}  // namespace gluon_roi

REGISTER_PASS(gluon_roi).setBody(gluon_roi::optimize);
