// SPDX-License-Identifier: Apache-2.0
// The table of MXNet's operators that this library replaces, and the translation of their
// attributes.
//
// It is the only one: the graph pass uses it here, Python reads it as JSON (gluon_roi/switch), and
// tests/test_switch_table.py compares it with MXNet's own arguments and with docs/switch.md.
#pragma once
#include <string>
#include <vector>

#include "../core/params.h"

namespace gluon_roi {

// How an argument of MXNet's operator is translated.
enum class Becomes {
  kSame,      // to our argument, if it is given
  kAlways,    // the same; if it is not given, MXNet's default is written, because ours differs
  kNotZero,   // the same, but 0, MXNet's default, leaves our argument out
  kConstant,  // MXNet has no such argument; ours always gets this value
  kOption,    // MXNet has no such argument; ours gets the value of an option of the switch, if any
  kOperator,  // a flag: it selects another of our operators
  kNoInput    // a flag: it leaves out the input of this name
};

struct SwitchedArgument {
  const char* theirs;  // "" if there is none
  const char* ours;    // "" if there is none
  Becomes becomes;
  const char* value;  // MXNet's default, the constant, the other operator, or the input
};

struct Switch {
  const char* theirs;                  // in graphs
  std::vector<const char*> functions;  // in mx.nd, mx.sym, their contrib, and mx.npx
  const char* ours;
  std::vector<const char*> inputs;  // in the order that both share
  std::vector<SwitchedArgument> arguments;

  bool pools_boxes() const;
};

// Our node that replaces one of MXNet's.
struct Switched {
  std::string op;
  Attributes attributes;
  std::vector<std::string> inputs;
};

// Whether an attribute has the form __this__, and so is not an operator's own.
bool is_hidden(const std::string& key);

// Whether the text of an attribute says so.
bool is_true(const std::string& flag);

// The switch for an operator of MXNet's, null if there is none.
const Switch* find_switch(const std::string& theirs);

// Translates the attributes of a node. Attributes of the form __this__ stay; any other that is not
// in the table throws.
Switched apply_switch(const Switch& to, const std::string& node, const Attributes& theirs,
                      const Attributes& options);

}  // namespace gluon_roi
