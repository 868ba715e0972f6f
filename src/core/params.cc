// SPDX-License-Identifier: Apache-2.0
#include "params.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <set>

#include "errors.h"

namespace gluon_roi {
namespace {

// The valid range of a number, in words for error messages, and as limits if it is an int.
struct Limits {
  const char* expected;
  int64_t min, max;
};
constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr Limits kAnyInt{"an int", -kMaxInt - 1, kMaxInt};
constexpr Limits kPositiveInt{"an int from 1 to 16777216", 1, kMaxAlongAxis};
constexpr Limits kNonNegativeInt{"an int from 0 on", 0, kMaxInt};
constexpr const char* kFinite = "a finite number";
constexpr const char* kThreshold = "a number, inf or nan";
// Up to this number, scales and what is computed with them stay far below the largest float.
constexpr double kMaxPositive = 1e30;
constexpr const char* kPositive = "a number > 0, at most 1e30";
constexpr const char* kPermutation = "each of the axes 0 to n - 1 once, n from 1 to 8";
constexpr const char* kList = "a list of 1 to 8 numbers > 0, at most 1e30";
bool is_positive(double value) { return value > 0 && value <= kMaxPositive; }
static_assert(kMaxInList == 8 && kMaxAlongAxis == 16777216, "as in the sentences above");

// Merges the kinds that differ only in their limits.
class KindVisitor : public ParamVisitor {
 public:
  void positive(Field<double> field, double fallback) final {
    real_parameter(field, true, fallback);
  }
  void number(Field<double> field, double fallback) final {
    real_parameter(field, false, fallback);
  }
  void integer(Field<int32_t> field, int32_t fallback) final {
    int_parameter(field, "integer", kAnyInt, fallback);
  }
  void positive_int(Field<int32_t> field, int32_t fallback) final {
    int_parameter(field, "samples", kPositiveInt, fallback);
  }
  void non_negative_int(Field<int32_t> field, int32_t fallback) final {
    int_parameter(field, "count", kNonNegativeInt, fallback);
  }

 protected:
  virtual void real_parameter(Field<double> field, bool positive, double fallback) = 0;
  virtual void int_parameter(Field<int32_t> field, const char* kind, const Limits& limits,
                             int32_t fallback) = 0;
};

// ---- Parsing text -------------------------------------------------------------------------------

void skip_spaces(const char** p) {
  while (**p == ' ') ++*p;
}

bool parse(const char** p, double* value) {
  char* end = nullptr;
  *value = strtod(*p, &end);
  const bool ok = end != *p && std::isfinite(*value);
  *p = end;
  skip_spaces(p);
  return ok;
}

bool parse(const char** p, int64_t* value) {
  char* end = nullptr;
  errno = 0;
  *value = strtoll(*p, &end, 10);
  const bool ok = end != *p && errno == 0;
  *p = end;
  skip_spaces(p);
  return ok;
}

// Parses text that contains one number and nothing else.
template <class N>
bool parse_one(const std::string& text, N* value) {
  const char* p = text.c_str();
  return parse(&p, value) && *p == '\0';
}

// Parses (a, b, ...) or [a, b, ...] with up to `max_count` numbers.
template <class N>
bool parse_list(const std::string& text, int32_t max_count, N* numbers, int32_t* count) {
  const auto closes = [](char c) { return c == ')' || c == ']'; };
  const char* p = text.c_str();
  if (*p != '(' && *p != '[') return false;
  ++p;
  skip_spaces(&p);
  for (*count = 0; !closes(*p); ++*count) {
    if (*count == max_count || !parse(&p, &numbers[*count])) return false;
    if (*p != ',' && !closes(*p)) return false;
    if (*p == ',') ++p;
    skip_spaces(&p);
  }
  ++p;
  skip_spaces(&p);
  return *p == '\0';
}

class Parser final : public KindVisitor {
 public:
  Parser(const char* op, const Attributes& attributes) : op_(op), attributes_(attributes) {}

  void size(const char* name, Field<int32_t> height, Field<int32_t> width,
            SizeLimits limits) override {
    *height.value = *width.value = limits.fallback;
    const bool found = find(name, limits.default_text == nullptr,
                            limits.min > 0 ? "a positive int or (height, width)"
                                           : "an int from 0 on, or (height, width)");
    // MXNet writes "()" for its own defaults.
    if (!found || (text_ == "()" && limits.default_text != nullptr)) return;
    int64_t sides[2];
    int32_t count = 1;
    const bool both = parse_one(text_, &sides[0]);
    if (both) sides[1] = sides[0];
    require(both || (parse_list(text_, 2, sides, &count) && count == 2));
    require(sides[0] >= limits.min && sides[1] >= limits.min);
    expected_ = "at most 16777216";
    require(sides[0] <= kMaxAlongAxis && sides[1] <= kMaxAlongAxis);
    *height.value = static_cast<int32_t>(sides[0]);
    *width.value = static_cast<int32_t>(sides[1]);
  }
  void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                     const char* fallback) override {
    if (!find(values.name, fallback == nullptr, kList)) text_ = fallback;
    double* const numbers = *values.value;
    require(parse_list(text_, kMaxInList, numbers, count.value) && *count.value > 0 &&
            std::all_of(numbers, numbers + *count.value, is_positive));
  }
  void permutation(Field<int32_t[kMaxInList]> axes, Field<int32_t> count) override {
    find(axes.name, true, kPermutation);
    int64_t numbers[kMaxInList];
    require(parse_list(text_, kMaxInList, numbers, count.value) && *count.value > 0);
    for (int32_t i = 0; i < *count.value; ++i) {
      require(std::count(numbers, numbers + *count.value, i) == 1);
      (*axes.value)[i] = static_cast<int32_t>(numbers[i]);
    }
  }
  void optional_positive(Field<int64_t> field) override {
    *field.value = 0;
    if (!find(field.name, false, "a positive int or None")) return;
    require(parse_one(text_, field.value) && *field.value > 0);
  }
  void threshold(Field<double> field, double fallback) override {
    *field.value = fallback;
    if (!find(field.name, false, kThreshold)) return;
    char* end = nullptr;
    errno = 0;
    *field.value = strtod(text_.c_str(), &end);
    require(end != text_.c_str() && *end == '\0' && errno == 0);
  }
  void boolean(Field<int32_t> field, bool fallback) override {
    *field.value = fallback;
    if (!find(field.name, false, "True or False")) return;
    *field.value = text_ == "True" || text_ == "true" || text_ == "1";
    require(*field.value || text_ == "False" || text_ == "false" || text_ == "0");
  }
  void choice(Field<int32_t> field, const Choices& choices) override {
    *field.value = choices.begin()->second;
    if (!find(field.name, false, "")) return;
    for (const auto& choice : choices) {
      *field.value = choice.second;
      if (text_ == choice.first) return;
      expected_ += (expected_.empty() ? "'" : " or '") + std::string(choice.first) + "'";
    }
    require(false);
  }

  void reject_unknown() const {
    for (const auto& [key, value] : attributes_) {
      const bool hidden = key.size() > 4 && key.compare(0, 2, "__") == 0 &&
                          key.compare(key.size() - 2, 2, "__") == 0;
      if (hidden || known_.count(key)) continue;
      std::string expected;
      for (const std::string& name : known_) expected += (expected.empty() ? "" : ", ") + name;
      fail(op_, "unknown argument ", key, ", expected one of ", expected, ", got ", key, "='",
           value, "'");
    }
  }

 private:
  void real_parameter(Field<double> field, bool positive, double fallback) override {
    *field.value = fallback;
    if (!find(field.name, positive && fallback == 0, positive ? kPositive : kFinite)) return;
    require(parse_one(text_, field.value) && (!positive || is_positive(*field.value)));
  }
  void int_parameter(Field<int32_t> field, const char*, const Limits& limits,
                     int32_t fallback) override {
    *field.value = fallback;
    if (!find(field.name, false, limits.expected)) return;
    int64_t value;
    require(parse_one(text_, &value) && value >= std::max(limits.min, -kMaxInt) &&
            value <= limits.max);
    *field.value = static_cast<int32_t>(value);
  }

  // Sets text_ to the value of an attribute. Returns false if it is omitted or None.
  bool find(const char* name, bool required, const char* expected) {
    name_ = name;
    expected_ = expected;
    known_.insert(name);
    const auto found = attributes_.find(name);
    const bool absent = found == attributes_.end();
    text_ = absent ? "None" : found->second;
    if (text_ != "None") return true;
    if (required) {
      fail(op_, "argument ", name, ": expected ", expected, ", got ", absent ? "nothing" : "None");
    }
    return false;
  }
  void require(bool valid) const {
    if (!valid) fail(op_, "argument ", name_, ": expected ", expected_, ", got '", text_, "'");
  }

  const char* op_;
  const Attributes& attributes_;
  std::set<std::string> known_;
  // Name, value and expectation of the attribute that find() looked up last.
  const char* name_ = nullptr;
  std::string text_;
  std::string expected_;
};

// ---- Checking a struct --------------------------------------------------------------------------

class Checker final : public KindVisitor {
 public:
  explicit Checker(const char* op) : op_(op) {}

  void size(const char* name, Field<int32_t> height, Field<int32_t> width,
            SizeLimits limits) override {
    const int32_t h = *height.value, w = *width.value;
    const bool may_be_zero = limits.fallback < limits.min && limits.default_text != nullptr;
    const int32_t min = may_be_zero ? 0 : limits.min;
    if (h < min || w < min || (may_be_zero && (h == 0) != (w == 0))) {
      fail(op_, "argument ", name, ": expected ", limits.min > 0 ? "positive " : "",
           "height and width", limits.min > 0 ? "" : " from 0 on", ", got ", h, ", ", w);
    }
    if (h > kMaxAlongAxis || w > kMaxAlongAxis) {
      fail(op_, "argument ", name, ": expected at most ", kMaxAlongAxis, ", got ", h, ", ", w);
    }
  }
  void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count, const char*) override {
    const int32_t length = *count.value;
    require(length >= 1 && length <= kMaxInList, values.name, "1 to 8 numbers", length);
    for (int32_t i = 0; i < length; ++i) positive({values.name, *values.value + i}, 0);
  }
  void threshold(Field<double>, double) override {}
  void optional_positive(Field<int64_t> field) override {
    require(*field.value >= 0, field.name, "a positive int, or 0 for the default", *field.value);
  }
  void boolean(Field<int32_t> field, bool) override {
    require(*field.value == 0 || *field.value == 1, field.name, "0 or 1", *field.value);
  }
  void choice(Field<int32_t> field, const Choices& choices) override {
    const auto is_value = [&](const auto& choice) { return choice.second == *field.value; };
    require(std::any_of(choices.begin(), choices.end(), is_value), field.name,
            "a value of gluon_roi.h", *field.value);
  }

 private:
  void real_parameter(Field<double> field, bool positive, double) override {
    require(positive ? is_positive(*field.value) : std::isfinite(*field.value), field.name,
            positive ? kPositive : kFinite, *field.value);
  }
  void int_parameter(Field<int32_t> field, const char*, const Limits& limits, int32_t) override {
    require(*field.value >= limits.min && *field.value <= limits.max, field.name, limits.expected,
            *field.value);
  }
  template <class N>
  void require(bool valid, const char* name, const char* expected, N got) const {
    if (!valid) fail(op_, "argument ", name, ": expected ", expected, ", got ", got);
  }

  const char* op_;
};

// ---- Describing a struct ------------------------------------------------------------------------

class Describer final : public KindVisitor {
 public:
  explicit Describer(const void* params) : start_(static_cast<const char*>(params)) {}
  const std::string& json() const { return json_; }

  void size(const char* name, Field<int32_t> height, Field<int32_t> width,
            SizeLimits limits) override {
    add(name, "size", limits.default_text,
        {{"int32", height.name, height.value}, {"int32", width.name, width.value}});
  }
  void positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                     const char* fallback) override {
    add(values.name, "positive_list", fallback,
        {{"double[8]", values.name, values.value}, {"int32", count.name, count.value}});
  }
  void optional_positive(Field<int64_t> field) override {
    add(field.name, "optional_positive", "None", {{"int64", field.name, field.value}});
  }
  void boolean(Field<int32_t> field, bool fallback) override {
    add(field.name, "boolean", fallback ? "True" : "False", {{"int32", field.name, field.value}});
  }
  void choice(Field<int32_t> field, const Choices& choices) override {
    std::string names;
    for (const auto& choice : choices) {
      names += (names.empty() ? "\"" : ", \"") + std::string(choice.first) +
               "\": " + std::to_string(choice.second);
    }
    add(field.name, "choice", choices.begin()->first, {{"int32", field.name, field.value}},
        ", \"choices\": {" + names + "}");
  }

 private:
  struct DescribedField {
    const char* type;
    const char* name;
    const void* address;
  };

  void real_parameter(Field<double> field, bool positive, double fallback) override {
    std::ostringstream text;  // as Python writes it: 224.0
    text << fallback << (fallback == std::floor(fallback) ? ".0" : "");
    const std::string written = text.str();
    add(field.name, positive ? "positive" : "number",
        positive && fallback == 0 ? nullptr : written.c_str(),
        {{"double", field.name, field.value}});
  }
  void int_parameter(Field<int32_t> field, const char* kind, const Limits&,
                     int32_t fallback) override {
    add(field.name, kind, std::to_string(fallback).c_str(), {{"int32", field.name, field.value}});
  }
  void add(const char* name, const char* kind, const char* fallback,
           std::initializer_list<DescribedField> fields, const std::string& more = "") {
    json_ += (json_.empty() ? "{\"name\": \"" : ", {\"name\": \"") + std::string(name) +
             "\", \"kind\": \"" + kind + "\", \"default\": " +
             (fallback == nullptr ? "null" : "\"" + std::string(fallback) + "\"") +
             ", \"fields\": [";
    const char* separator = "";
    for (const DescribedField& field : fields) {
      const auto offset = static_cast<const char*>(field.address) - start_;
      json_ += std::string(separator) + "[\"" + field.type + "\", " + std::to_string(offset) +
               ", \"" + field.name + "\"]";
      separator = ", ";
    }
    json_ += "]" + more + "}";
  }

  const char* start_;
  std::string json_;
};

}  // namespace

void parse_params(const char* op, const Attributes& attributes, const VisitParams& visit_params) {
  Parser parser(op, attributes);
  visit_params(&parser);
  parser.reject_unknown();
}

void check_params(const char* op, const VisitParams& visit_params) {
  Checker checker(op);
  visit_params(&checker);
}

std::string describe_params(const void* params, const VisitParams& visit_params) {
  Describer describer(params);
  visit_params(&describer);
  return describer.json();
}

}  // namespace gluon_roi
