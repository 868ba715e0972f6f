// SPDX-License-Identifier: Apache-2.0
// An operator lists its parameters once, with names and defaults, in Op::params(visitor, params).
// Three visitors use the list: ParamParser fills a struct from MXNet's attributes, which are text;
// ParamChecker validates a struct from a caller of the C interface; ParamDescriber describes the
// parameters for Python and for tests.
#pragma once
#include <initializer_list>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "types.h"

namespace gluon_roi {

using Attributes = std::unordered_map<std::string, std::string>;
// A choice among named values, such as {"rfcn", GLUON_ROI_RFCN}.
using Choices = std::initializer_list<std::pair<const char*, int32_t>>;

// The maximum length of a list: maps of a pyramid, scales or ratios of anchors.
constexpr int kMaxInList = GLUON_ROI_MOST_MAPS;
// The maximum number of bins, groups or cells of a kernel along an axis: float32, in which bins are
// computed, is exact only up to it.
constexpr int64_t kMaxAlongAxis = 1 << 24;

// Two numbers, for height and width.
struct Pair {
  int32_t least;
  const char* default_text;  // nullptr: required
  int32_t fallback;
};
constexpr Pair kRequiredSize{1, nullptr, 0}, kOptionalSize{1, "None", 0}, kStep{1, "1", 1},
    kMargin{0, "0", 0};

class ParamParser {
 public:
  ParamParser(const char* op, const Attributes& attributes) : op_(op), attributes_(attributes) {}

  // An int n, or (height, width).
  void size(const char* name, int32_t* height, int32_t* width, Pair pair = kRequiredSize);
  // A number > 0. Required unless there is a default.
  void positive(const char* name, double* value, double fallback = 0);
  // A number with a default.
  void number(const char* name, double* value, double fallback);
  // A list of numbers > 0, (0.25, 0.125). Required unless there is a default.
  void positive_list(const char* name, double* values, int32_t* count,
                     const char* fallback = nullptr);
  // A positive int; None leaves 0.
  void optional_positive(const char* name, int64_t* value);
  void integer(const char* name, int32_t* value, int32_t fallback);
  // A positive int, with a default: samples along an axis, groups.
  void samples(const char* name, int32_t* value, int32_t fallback);
  // An int from 0 on, with a default.
  void count(const char* name, int32_t* value, int32_t fallback);
  void boolean(const char* name, int32_t* value, bool fallback);
  // The first choice is the default.
  void choice(const char* name, int32_t* value, const Choices& choices);

  // Call last: any key not asked for is a typing mistake. Keys like __this__ belong to MXNet.
  void reject_unknown() const;

 private:
  const std::string* find(const char* name, bool required, const char* expected);
  [[noreturn]] void reject(const char* name, const char* expected, const std::string& got) const;
  void integer_between(const char* name, const char* expected, int64_t least, int64_t most,
                       int32_t* value, int32_t fallback);

  const char* op_;
  const Attributes& attributes_;
  std::set<std::string> asked_;
};

class ParamChecker {
 public:
  explicit ParamChecker(const char* op) : op_(op) {}

  void size(const char* name, const int32_t* height, const int32_t* width,
            Pair pair = kRequiredSize);
  void positive(const char* name, const double* value, double fallback = 0);
  void number(const char* name, const double* value, double fallback);
  void positive_list(const char* name, const double* values, const int32_t* count,
                     const char* fallback = nullptr);
  void optional_positive(const char* name, const int64_t* value);
  void integer(const char* name, const int32_t* value, int32_t fallback);
  void samples(const char* name, const int32_t* value, int32_t fallback);
  void count(const char* name, const int32_t* value, int32_t fallback);
  void boolean(const char* name, const int32_t* value, bool fallback);
  void choice(const char* name, const int32_t* value, const Choices& choices);

 private:
  const char* op_;
};

// Writes each parameter as a JSON object: its name, its kind (the name of the method here), its
// default as text (null if it is required), its choices, and the C type and offset of each field of
// the struct.
class ParamDescriber {
 public:
  explicit ParamDescriber(const void* params) : start_(static_cast<const char*>(params)) {}
  const std::string& json() const { return json_; }

  void size(const char* name, const int32_t* height, const int32_t* width,
            Pair pair = kRequiredSize);
  void positive(const char* name, const double* value, double fallback = 0);
  void number(const char* name, const double* value, double fallback);
  void positive_list(const char* name, const double* values, const int32_t* count,
                     const char* fallback = nullptr);
  void optional_positive(const char* name, const int64_t* value);
  void integer(const char* name, const int32_t* value, int32_t fallback);
  void samples(const char* name, const int32_t* value, int32_t fallback);
  void count(const char* name, const int32_t* value, int32_t fallback);
  void boolean(const char* name, const int32_t* value, bool fallback);
  void choice(const char* name, const int32_t* value, const Choices& choices);

 private:
  struct Field {
    const char* type;
    const void* place;
  };
  void add(const char* name, const char* kind, const char* fallback,
           std::initializer_list<Field> fields, const std::string& more = "");

  const char* start_;
  std::string json_;
};

// The last parameter of every operator that takes rois.
template <class Visitor>
void visit_bad_index(Visitor* visit, int32_t* value) {
  visit->choice("bad_index", value,
                {{"error", GLUON_ROI_BAD_INDEX_ERROR}, {"padding", GLUON_ROI_BAD_INDEX_PADDING}});
}

}  // namespace gluon_roi
