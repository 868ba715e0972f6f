// SPDX-License-Identifier: Apache-2.0
// An operator lists its parameters once, with names and defaults, in Op::params(visitor, params).
// Visitors use the list to parse MXNet's attributes, which are text; to check a struct from a
// caller of the C interface; to describe it for Python and for tests; and tests/sanitize to make
// random structs.
#pragma once
#include <functional>
#include <initializer_list>
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
  // A number to compare with, which may be infinite or NaN.
  virtual void threshold(Field<double> field, double fallback) { number(field, fallback); }
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

// Shows a visitor the parameters of a struct: [&](ParamVisitor* visit) { Op::params(visit, &p); }
using ShowParams = std::function<void(ParamVisitor*)>;

// Fills a struct from MXNet's attributes. Throws on an invalid value, and on a key that no
// parameter has, which is a typing mistake; keys like __this__ belong to MXNet.
void parse_params(const char* op, const Attributes& attributes, const ShowParams& show);
// Throws unless a struct is valid.
void check_params(const char* op, const ShowParams& show);
// The parameters of a struct as JSON objects, each with its name, its kind (the name of the method
// above), its default as text (null if it is required), its choices, and the C type, offset and
// name of each field.
std::string describe_params(const void* params, const ShowParams& show);

// Of bad_index, the last parameter of every operator that takes rois.
constexpr Choices kBadIndices = {{"error", GLUON_ROI_BAD_INDEX_ERROR},
                                 {"padding", GLUON_ROI_BAD_INDEX_PADDING}};

}  // namespace gluon_roi
