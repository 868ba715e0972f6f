// SPDX-License-Identifier: Apache-2.0
#include "params.h"

#include <cerrno>
#include <cstdlib>
#include <limits>

#include "errors.h"

namespace gluon_roi {
namespace {

constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();
constexpr const char* kFinite = "a finite number";
constexpr const char* kPositive = "a finite number > 0";
constexpr const char* kList = "a list of 1 to 8 finite numbers > 0";
constexpr const char* kSamples = "an int from 1 to 16777216";
static_assert(kMaxInList == 8 && kMaxAlongAxis == 16777216, "as the sentences say");

void skip_spaces(const char** p) {
  while (**p == ' ') ++*p;
}

bool parse_number(const char** p, double* value) {
  char* end = nullptr;
  *value = strtod(*p, &end);
  const bool ok = end != *p && std::isfinite(*value);
  *p = end;
  return ok;
}

bool parse_int(const char** p, int64_t* value) {
  char* end = nullptr;
  errno = 0;
  *value = strtoll(*p, &end, 10);
  const bool ok = end != *p && errno == 0;
  *p = end;
  return ok;
}

// One int for both, or (a, b) or [a, b].
bool parse_pair(const char* p, int64_t* first, int64_t* second) {
  const bool bracketed = *p == '(' || *p == '[';
  if (bracketed) ++p;
  int64_t parts[2];
  int n = 0;
  for (; n < 2; ++n) {
    if (!parse_int(&p, &parts[n])) return false;
    skip_spaces(&p);
    if (*p != ',') {
      ++n;
      break;
    }
    ++p;
  }
  if (bracketed) {
    if (*p != ')' && *p != ']') return false;
    ++p;
  }
  skip_spaces(&p);
  *first = parts[0];
  *second = parts[n - 1];
  return *p == '\0' && bracketed == (n == 2);
}

// (a, b, ...) or [a, b, ...], with numbers > 0.
bool parse_list(const char* p, double* values, int32_t* count) {
  if (*p != '(' && *p != '[') return false;
  ++p;
  *count = 0;
  for (;;) {
    skip_spaces(&p);
    if (*p == ')' || *p == ']') break;
    double value;
    if (*count == kMaxInList || !parse_number(&p, &value) || !(value > 0)) return false;
    values[(*count)++] = value;
    skip_spaces(&p);
    if (*p == ',') {
      ++p;
    } else if (*p != ')' && *p != ']') {
      return false;
    }
  }
  return p[1] == '\0' && *count > 0;
}

const char* expected_size(Pair pair) {
  return pair.least > 0 ? "a positive int or (height, width)"
                        : "an int from 0 on, or (height, width)";
}

// As Python writes it: 224.0
std::string text_of(double value) {
  std::ostringstream text;
  text << value;
  if (value == std::floor(value)) text << ".0";
  return text.str();
}

}  // namespace

// ---- From text ----------------------------------------------------------------------------------

void ParamParser::size(const char* name, Field<int32_t> height, Field<int32_t> width, Pair pair) {
  const char* const expected = expected_size(pair);
  const std::string* text = find(name, pair.default_text == nullptr, expected);
  *height.value = *width.value = pair.fallback;
  // MXNet writes "()" for its own defaults.
  if (text == nullptr || (*text == "()" && pair.default_text != nullptr)) return;
  int64_t h, w;
  if (!parse_pair(text->c_str(), &h, &w)) reject(name, expected, *text);
  if (h < pair.least || w < pair.least) reject(name, expected, *text);
  if (h > kMaxAlongAxis || w > kMaxAlongAxis) reject(name, "at most 16777216", *text);
  *height.value = static_cast<int32_t>(h);
  *width.value = static_cast<int32_t>(w);
}

void ParamParser::positive(Field<double> field, double fallback) {
  const std::string* text = find(field.name, fallback == 0, kPositive);
  *field.value = fallback;
  if (text == nullptr) return;
  const char* p = text->c_str();
  if (!parse_number(&p, field.value) || *p != '\0' || !(*field.value > 0))
    reject(field.name, kPositive, *text);
}

void ParamParser::number(Field<double> field, double fallback) {
  const std::string* text = find(field.name, false, kFinite);
  *field.value = fallback;
  if (text == nullptr) return;
  const char* p = text->c_str();
  if (!parse_number(&p, field.value) || *p != '\0') reject(field.name, kFinite, *text);
}

void ParamParser::positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                                const char* fallback) {
  const std::string* text = find(values.name, fallback == nullptr, kList);
  const std::string given = text != nullptr ? *text : fallback;
  if (!parse_list(given.c_str(), *values.value, count.value)) reject(values.name, kList, given);
}

void ParamParser::optional_positive(Field<int64_t> field) {
  static const char* expected = "a positive int or None";
  const std::string* text = find(field.name, false, expected);
  *field.value = 0;
  if (text == nullptr) return;
  const char* p = text->c_str();
  if (!parse_int(&p, field.value) || *p != '\0' || *field.value < 1)
    reject(field.name, expected, *text);
}

void ParamParser::integer(Field<int32_t> field, int32_t fallback) {
  integer_between(field.name, "an int", -kMaxInt, kMaxInt, field.value, fallback);
}

void ParamParser::samples(Field<int32_t> field, int32_t fallback) {
  integer_between(field.name, kSamples, 1, kMaxAlongAxis, field.value, fallback);
}

void ParamParser::count(Field<int32_t> field, int32_t fallback) {
  integer_between(field.name, "an int from 0 on", 0, kMaxInt, field.value, fallback);
}

void ParamParser::boolean(Field<int32_t> field, bool fallback) {
  const std::string* text = find(field.name, false, "True or False");
  *field.value = fallback;
  if (text == nullptr) return;
  if (*text == "True" || *text == "true" || *text == "1") {
    *field.value = 1;
  } else if (*text == "False" || *text == "false" || *text == "0") {
    *field.value = 0;
  } else {
    reject(field.name, "True or False", *text);
  }
}

void ParamParser::choice(Field<int32_t> field, const Choices& choices) {
  const std::string* text = find(field.name, false, "");
  *field.value = choices.begin()->second;
  if (text == nullptr) return;
  std::string expected;
  for (const auto& choice : choices) {
    if (*text == choice.first) {
      *field.value = choice.second;
      return;
    }
    expected += (expected.empty() ? "'" : " or '") + std::string(choice.first) + "'";
  }
  reject(field.name, expected.c_str(), *text);
}

void ParamParser::reject_unknown() const {
  for (const auto& item : attributes_) {
    const std::string& key = item.first;
    const bool hidden =
        key.size() > 4 && key.compare(0, 2, "__") == 0 && key.compare(key.size() - 2, 2, "__") == 0;
    if (hidden || asked_.count(key)) continue;
    std::string expected;
    for (const std::string& name : asked_) expected += (expected.empty() ? "" : ", ") + name;
    fail(op_, "unknown argument ", key, ", expected one of ", expected, ", got ", key, "='",
         item.second, "'");
  }
}

const std::string* ParamParser::find(const char* name, bool required, const char* expected) {
  asked_.insert(name);
  const auto found = attributes_.find(name);
  const bool absent = found == attributes_.end();
  if (!absent && found->second != "None") return &found->second;
  if (required) {
    fail(op_, "argument ", name, ": expected ", expected, ", got ", absent ? "nothing" : "None");
  }
  return nullptr;
}

void ParamParser::reject(const char* name, const char* expected, const std::string& got) const {
  fail(op_, "argument ", name, ": expected ", expected, ", got '", got, "'");
}

void ParamParser::integer_between(const char* name, const char* expected, int64_t least,
                                  int64_t most, int32_t* value, int32_t fallback) {
  const std::string* text = find(name, false, expected);
  *value = fallback;
  if (text == nullptr) return;
  const char* p = text->c_str();
  int64_t wide;
  if (!parse_int(&p, &wide) || *p != '\0' || wide > most || wide < least) {
    reject(name, expected, *text);
  }
  *value = static_cast<int32_t>(wide);
}

// ---- In a struct --------------------------------------------------------------------------------

void ParamChecker::size(const char* name, Field<int32_t> height, Field<int32_t> width, Pair pair) {
  const bool may_be_zero = pair.fallback < pair.least && pair.default_text != nullptr;
  const int32_t least = may_be_zero ? 0 : pair.least;
  if (*height.value < least || *width.value < least ||
      (may_be_zero && (*height.value == 0) != (*width.value == 0))) {
    fail(op_, "argument ", name, ": expected ", pair.least > 0 ? "positive " : "",
         "height and width", pair.least > 0 ? "" : " from 0 on", ", got ", *height.value, ", ",
         *width.value);
  }
  if (*height.value > kMaxAlongAxis || *width.value > kMaxAlongAxis) {
    fail(op_, "argument ", name, ": expected at most ", kMaxAlongAxis, ", got ", *height.value,
         ", ", *width.value);
  }
}

void ParamChecker::positive(Field<double> field, double) {
  if (!(*field.value > 0) || std::isinf(*field.value)) {
    fail(op_, "argument ", field.name, ": expected ", kPositive, ", got ", *field.value);
  }
}

void ParamChecker::number(Field<double> field, double) {
  if (!std::isfinite(*field.value)) {
    fail(op_, "argument ", field.name, ": expected ", kFinite, ", got ", *field.value);
  }
}

void ParamChecker::positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                                 const char*) {
  if (*count.value < 1 || *count.value > kMaxInList) {
    fail(op_, "argument ", values.name, ": expected 1 to ", kMaxInList, " numbers, got ",
         *count.value);
  }
  for (int32_t i = 0; i < *count.value; ++i) positive({values.name, *values.value + i}, 0);
}

void ParamChecker::optional_positive(Field<int64_t> field) {
  if (*field.value < 0) {
    fail(op_, "argument ", field.name, ": expected a positive int, or 0 for the default, got ",
         *field.value);
  }
}

void ParamChecker::integer(Field<int32_t>, int32_t) {}

void ParamChecker::samples(Field<int32_t> field, int32_t) {
  if (*field.value < 1 || *field.value > kMaxAlongAxis) {
    fail(op_, "argument ", field.name, ": expected ", kSamples, ", got ", *field.value);
  }
}

void ParamChecker::count(Field<int32_t> field, int32_t) {
  if (*field.value < 0)
    fail(op_, "argument ", field.name, ": expected an int from 0 on, got ", *field.value);
}

void ParamChecker::boolean(Field<int32_t> field, bool) {
  if (*field.value != 0 && *field.value != 1)
    fail(op_, "argument ", field.name, ": expected 0 or 1, got ", *field.value);
}

void ParamChecker::choice(Field<int32_t> field, const Choices& choices) {
  for (const auto& choice : choices) {
    if (*field.value == choice.second) return;
  }
  fail(op_, "argument ", field.name, ": expected a value of gluon_roi.h, got ", *field.value);
}

// ---- Written down -------------------------------------------------------------------------------

void ParamDescriber::size(const char* name, Field<int32_t> height, Field<int32_t> width,
                          Pair pair) {
  add(name, "size", pair.default_text,
      {{"int32", height.name, height.value}, {"int32", width.name, width.value}});
}

void ParamDescriber::positive(Field<double> field, double fallback) {
  const std::string text = text_of(fallback);
  add(field.name, "positive", fallback == 0 ? nullptr : text.c_str(),
      {{"double", field.name, field.value}});
}

void ParamDescriber::number(Field<double> field, double fallback) {
  add(field.name, "number", text_of(fallback).c_str(), {{"double", field.name, field.value}});
}

void ParamDescriber::positive_list(Field<double[kMaxInList]> values, Field<int32_t> count,
                                   const char* fallback) {
  add(values.name, "positive_list", fallback,
      {{"double[8]", values.name, values.value}, {"int32", count.name, count.value}});
}

void ParamDescriber::optional_positive(Field<int64_t> field) {
  add(field.name, "optional_positive", "None", {{"int64", field.name, field.value}});
}

void ParamDescriber::integer(Field<int32_t> field, int32_t fallback) {
  add(field.name, "integer", std::to_string(fallback).c_str(),
      {{"int32", field.name, field.value}});
}

void ParamDescriber::samples(Field<int32_t> field, int32_t fallback) {
  add(field.name, "samples", std::to_string(fallback).c_str(),
      {{"int32", field.name, field.value}});
}

void ParamDescriber::count(Field<int32_t> field, int32_t fallback) {
  add(field.name, "count", std::to_string(fallback).c_str(), {{"int32", field.name, field.value}});
}

void ParamDescriber::boolean(Field<int32_t> field, bool fallback) {
  add(field.name, "boolean", fallback ? "True" : "False", {{"int32", field.name, field.value}});
}

void ParamDescriber::choice(Field<int32_t> field, const Choices& choices) {
  std::string names;
  for (const auto& choice : choices) {
    names += (names.empty() ? "\"" : ", \"") + std::string(choice.first) +
             "\": " + std::to_string(choice.second);
  }
  add(field.name, "choice", choices.begin()->first, {{"int32", field.name, field.value}},
      ", \"choices\": {" + names + "}");
}

void ParamDescriber::add(const char* name, const char* kind, const char* fallback,
                         std::initializer_list<Described> fields, const std::string& more) {
  json_ += (json_.empty() ? "{\"name\": \"" : ", {\"name\": \"") + std::string(name) +
           "\", \"kind\": \"" + kind + "\", \"default\": " +
           (fallback == nullptr ? "null" : "\"" + std::string(fallback) + "\"") + ", \"fields\": [";
  const char* separator = "";
  for (const Described& field : fields) {
    const auto offset = static_cast<const char*>(field.place) - start_;
    json_ += std::string(separator) + "[\"" + field.type + "\", " + std::to_string(offset) +
             ", \"" + field.name + "\"]";
    separator = ", ";
  }
  json_ += "]" + more + "}";
}

}  // namespace gluon_roi
