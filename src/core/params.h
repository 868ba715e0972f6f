// SPDX-License-Identifier: Apache-2.0
// Each operator lists its parameters once, with names and defaults, in Op::params(visitor, params).
// Different visitors parse MXNet's text attributes, check a struct passed through the C interface,
// and describe the struct for Python and the tests. tests/sanitize has visitors that make random
// structs.
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
// Names and values of an enumeration, such as {"rfcn", GLUON_ROI_RFCN}.
using Choices = std::initializer_list<std::pair<const char*, int32_t>>;

// The maximum length of a list: the maps of a pyramid, the scales or the ratios of anchors.
constexpr int kMaxInList = GLUON_ROI_MAX_MAPS;
// The maximum number of bins, groups or kernel cells along an axis. Bins are computed in float32,
// which represents integers exactly only up to this number.
constexpr int64_t kMaxAlongAxis = 1 << 24;

// Minimum and default of a (height, width) pair.
struct SizeLimits {
  int32_t min;
  const char* default_text;  // nullptr: required
  int32_t fallback;
};
constexpr SizeLimits kRequiredSize{1, nullptr, 0}, kOptionalSize{1, "None", 0}, kStep{1, "1", 1},
    kMargin{0, "0", 0};

// A field of a struct with its C name, which is also the parameter's name unless a parameter has
// two fields. FIELD(topk) makes the Field of p->topk, where `p` is the argument of an operator's
// params().
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

  // An int for both axes, or (height, width).
  virtual void size(const char* name, Field<int32_t> height, Field<int32_t> width,
                    SizeLimits limits = kRequiredSize) = 0;
  // A number > 0, at most 1e30. It is required if the default is 0.
  virtual void positive(Field<double> field, double fallback = 0) = 0;
  // A number with a default.
  virtual void number(Field<double> field, double fallback) = 0;
  // A threshold, which may be infinite or NaN.
  virtual void threshold(Field<double> field, double fallback) { number(field, fallback); }
  // A list of such numbers, for example (0.25, 0.125). It is required if there is no default.
  virtual void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                             const char* fallback = nullptr) = 0;
  // The order of 1 to 8 axes, for operators that only MXNet calls.
  virtual void permutation(Field<int32_t[kMaxInList]>, Field<int32_t>) {}
  // A positive int, or None, which is stored as 0.
  virtual void optional_positive(Field<int64_t> field) = 0;
  virtual void integer(Field<int32_t> field, int32_t fallback) = 0;
  // A positive int with a default, such as a number of samples or groups.
  virtual void positive_int(Field<int32_t> field, int32_t fallback) = 0;
  // An int >= 0 with a default, such as a column index.
  virtual void non_negative_int(Field<int32_t> field, int32_t fallback) = 0;
  virtual void boolean(Field<int32_t> field, bool fallback) = 0;
  // The first choice is the default.
  virtual void choice(Field<int32_t> field, const Choices& choices) = 0;
};

// Applies a visitor to the parameters of a struct: [&](ParamVisitor* visit) { Op::params(visit,
// &p); }
using VisitParams = std::function<void(ParamVisitor*)>;

// Fills a struct from MXNet's attributes. Throws on an invalid value or an unknown key. Keys like
// __this__ belong to MXNet and are ignored.
void parse_params(const char* op, const Attributes& attributes, const VisitParams& visit_params);
// Throws unless every field of a struct is valid.
void check_params(const char* op, const VisitParams& visit_params);
// Describes the parameters of a struct as JSON objects: name, kind (the name of the method above,
// or "samples" for positive_int and "count" for non_negative_int, as in version 1.0.0), default as
// text (null if required), choices, and the C type, offset and name of each field.
std::string describe_params(const void* params, const VisitParams& visit_params);

// Values of bad_index.
constexpr Choices kBadIndices = {{"error", GLUON_ROI_BAD_INDEX_ERROR},
                                 {"padding", GLUON_ROI_BAD_INDEX_PADDING}};

}  // namespace gluon_roi
