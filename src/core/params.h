// SPDX-License-Identifier: Apache-2.0
// An operator lists its parameters once, with names and defaults, in Op::params(visitor, params).
// Several visitors use the list: ParamParser fills a struct from MXNet's attributes, which are
// text; ParamChecker validates a struct from a caller of the C interface; ParamDescriber describes
// the parameters for Python and for tests; and tests/sanitize has two that make random structs.
#pragma once
#include <initializer_list>
#include <set>
#include <string>
#include <type_traits>
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

// A field of a struct, with its name in C, which is also the parameter's unless that has several
// fields. FIELD(topk) is the one of `p`, the struct that an operator's params() gets.
template <class T>
struct Field {
  const char* name;
  T* value;
};
#define FIELD(name) \
  gluon_roi::Field<std::remove_reference_t<decltype(p->name)>> { #name, &p->name }

class ParamVisitor {
 public:
  virtual ~ParamVisitor() = default;

  // An int n, or (height, width).
  virtual void size(const char* name, Field<int32_t> height, Field<int32_t> width,
                    Pair pair = kRequiredSize) = 0;
  // A number > 0. Required unless there is a default.
  virtual void positive(Field<double> field, double fallback = 0) = 0;
  // A number with a default.
  virtual void number(Field<double> field, double fallback) = 0;
  // A list of numbers > 0, (0.25, 0.125). Required unless there is a default.
  virtual void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                             const char* fallback = nullptr) = 0;
  // A positive int; None leaves 0.
  virtual void optional_positive(Field<int64_t> field) = 0;
  virtual void integer(Field<int32_t> field, int32_t fallback) = 0;
  // A positive int, with a default: samples along an axis, groups.
  virtual void samples(Field<int32_t> field, int32_t fallback) = 0;
  // An int from 0 on, with a default.
  virtual void count(Field<int32_t> field, int32_t fallback) = 0;
  virtual void boolean(Field<int32_t> field, bool fallback) = 0;
  // The first choice is the default.
  virtual void choice(Field<int32_t> field, const Choices& choices) = 0;
};

class ParamParser final : public ParamVisitor {
 public:
  ParamParser(const char* op, const Attributes& attributes) : op_(op), attributes_(attributes) {}

  void size(const char* name, Field<int32_t> height, Field<int32_t> width, Pair pair) override;
  void positive(Field<double> field, double fallback) override;
  void number(Field<double> field, double fallback) override;
  void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                     const char* fallback) override;
  void optional_positive(Field<int64_t> field) override;
  void integer(Field<int32_t> field, int32_t fallback) override;
  void samples(Field<int32_t> field, int32_t fallback) override;
  void count(Field<int32_t> field, int32_t fallback) override;
  void boolean(Field<int32_t> field, bool fallback) override;
  void choice(Field<int32_t> field, const Choices& choices) override;

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

class ParamChecker final : public ParamVisitor {
 public:
  explicit ParamChecker(const char* op) : op_(op) {}

  void size(const char* name, Field<int32_t> height, Field<int32_t> width, Pair pair) override;
  void positive(Field<double> field, double fallback) override;
  void number(Field<double> field, double fallback) override;
  void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                     const char* fallback) override;
  void optional_positive(Field<int64_t> field) override;
  void integer(Field<int32_t> field, int32_t fallback) override;
  void samples(Field<int32_t> field, int32_t fallback) override;
  void count(Field<int32_t> field, int32_t fallback) override;
  void boolean(Field<int32_t> field, bool fallback) override;
  void choice(Field<int32_t> field, const Choices& choices) override;

 private:
  const char* op_;
};

// Writes each parameter as a JSON object: its name, its kind (the name of the method here), its
// default as text (null if it is required), its choices, and the C type, offset and name of each
// field of the struct.
class ParamDescriber final : public ParamVisitor {
 public:
  explicit ParamDescriber(const void* params) : start_(static_cast<const char*>(params)) {}
  const std::string& json() const { return json_; }

  void size(const char* name, Field<int32_t> height, Field<int32_t> width, Pair pair) override;
  void positive(Field<double> field, double fallback) override;
  void number(Field<double> field, double fallback) override;
  void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                     const char* fallback) override;
  void optional_positive(Field<int64_t> field) override;
  void integer(Field<int32_t> field, int32_t fallback) override;
  void samples(Field<int32_t> field, int32_t fallback) override;
  void count(Field<int32_t> field, int32_t fallback) override;
  void boolean(Field<int32_t> field, bool fallback) override;
  void choice(Field<int32_t> field, const Choices& choices) override;

 private:
  struct Described {
    const char* type;
    const char* name;
    const void* place;
  };
  void add(const char* name, const char* kind, const char* fallback,
           std::initializer_list<Described> fields, const std::string& more = "");

  const char* start_;
  std::string json_;
};

// Of bad_index, the last parameter of every operator that takes rois.
constexpr Choices kBadIndices = {{"error", GLUON_ROI_BAD_INDEX_ERROR},
                                 {"padding", GLUON_ROI_BAD_INDEX_PADDING}};

}  // namespace gluon_roi
