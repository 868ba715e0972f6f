// Which of MXNet's operators those of this library replace, and how their attributes translate.
//
// This is the one table: the graph pass reads it here, Python reads it as JSON (gluon_roi/switch),
// and tests/test_switch_table.py compares MXNet's own arguments and docs/switch.md with it.
#pragma once
#include <string>
#include <vector>

#include "../core/params.h"

namespace gluon_roi {

// What becomes of an argument of MXNet's.
enum class Becomes {
  kSame,      // ours of this name, if it is given
  kAlways,    // the same, but written with MXNet's default if it is not: ours differs
  kNotZero,   // the same, but 0 is MXNet's default, for which ours leaves the argument out
  kConstant,  // MXNet has no such argument: ours always has this value
  kOption,    // MXNet has no such argument: ours has what whoever switches chose, if anything
  kOperator,  // a flag: another operator of ours takes its place
  kNoInput    // a flag: the input of this name is left out
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
  std::vector<const char*> inputs;  // in the order of both
  std::vector<SwitchedArgument> arguments;
};

// A node of ours in the place of one of MXNet's.
struct Switched {
  std::string op;
  Attributes attributes;
  std::vector<std::string> inputs;
};

// The switch for an operator of MXNet's, null if there is none.
const Switch* find_switch(const std::string& theirs);

// Translates the attributes of a node. Those of the form __this__ stay; throws on any other that
// the table does not have.
Switched apply_switch(const Switch& to, const std::string& node, const Attributes& theirs,
                      const Attributes& options);

}  // namespace gluon_roi
