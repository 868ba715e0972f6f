// An operator lists its parameters once, in Op::params(visitor, params), with names and defaults.
// Three visitors walk over the list: ParamParser fills a struct from MXNet's attributes, which are
// text, ParamChecker judges a struct that a caller of the C interface filled, and ParamDescriber
// writes the list down for Python and for tests.
#pragma once
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "errors.h"
#include "types.h"

namespace gluon_roi {

using Attributes = std::unordered_map<std::string, std::string>;
// A choice among named values, such as {"rfcn", GLUON_ROI_RFCN}.
using Choices = std::initializer_list<std::pair<const char*, int32_t>>;

// The most numbers in a list: maps of a pyramid.
constexpr int kMostInList = GLUON_ROI_MOST_MAPS;
// The most bins or groups along an axis: float32, in which bins are computed, counts no further.
constexpr int64_t kMostAlongAxis = 1 << 24;

class ParamParser {
 public:
  ParamParser(const char* op, const Attributes& attributes) : op_(op), attributes_(attributes) {}

  // An int n, or (height, width). Required unless optional, where None leaves 0, 0.
  void size(const char* name, int32_t* height, int32_t* width, bool optional = false) {
    static const char* expected = "a positive int or (height, width)";
    const std::string* text = find(name, !optional, expected);
    *height = *width = 0;
    if (text == nullptr) return;
    const char* p = text->c_str();
    const bool bracketed = *p == '(' || *p == '[';
    if (bracketed) ++p;
    int64_t parts[2];
    int n = 0;
    for (; n < 2; ++n) {
      if (!parse_int(&p, &parts[n])) reject(name, expected, *text);
      skip_spaces(&p);
      if (*p != ',') {
        ++n;
        break;
      }
      ++p;
    }
    if (bracketed) {
      if (*p != ')' && *p != ']') reject(name, expected, *text);
      ++p;
    }
    skip_spaces(&p);
    if (*p != '\0' || bracketed != (n == 2)) reject(name, expected, *text);
    const int64_t h = parts[0], w = parts[n - 1];
    if (h < 1 || w < 1) reject(name, expected, *text);
    if (h > kMostAlongAxis || w > kMostAlongAxis) reject(name, "at most 16777216", *text);
    *height = static_cast<int32_t>(h);
    *width = static_cast<int32_t>(w);
  }

  // A number > 0. Required unless there is a default.
  void positive(const char* name, double* value, double fallback = 0) {
    static const char* expected = "a finite number > 0";
    const std::string* text = find(name, fallback == 0, expected);
    *value = fallback;
    if (text == nullptr) return;
    const char* p = text->c_str();
    if (!parse_number(&p, value) || *p != '\0' || !(*value > 0)) reject(name, expected, *text);
  }

  // A number with a default.
  void number(const char* name, double* value, double fallback) {
    static const char* expected = "a finite number";
    const std::string* text = find(name, false, expected);
    *value = fallback;
    if (text == nullptr) return;
    const char* p = text->c_str();
    if (!parse_number(&p, value) || *p != '\0') reject(name, expected, *text);
  }

  // Required: a list of numbers > 0, (0.25, 0.125).
  void positive_list(const char* name, double* values, int32_t* count) {
    static const char* expected = "a list of 1 to 8 finite numbers > 0";
    const std::string* text = find(name, true, expected);
    const char* p = text->c_str();
    if (*p != '(' && *p != '[') reject(name, expected, *text);
    ++p;
    *count = 0;
    for (;;) {
      skip_spaces(&p);
      if (*p == ')' || *p == ']') break;
      double value;
      if (*count == kMostInList || !parse_number(&p, &value) || !(value > 0)) {
        reject(name, expected, *text);
      }
      values[(*count)++] = value;
      skip_spaces(&p);
      if (*p == ',') {
        ++p;
      } else if (*p != ')' && *p != ']') {
        reject(name, expected, *text);
      }
    }
    if (p[1] != '\0' || *count == 0) reject(name, expected, *text);
  }

  // A positive int; None leaves 0.
  void optional_positive(const char* name, int64_t* value) {
    static const char* expected = "a positive int or None";
    const std::string* text = find(name, false, expected);
    *value = 0;
    if (text == nullptr) return;
    const char* p = text->c_str();
    if (!parse_int(&p, value) || *p != '\0' || *value < 1) reject(name, expected, *text);
  }

  void integer(const char* name, int32_t* value, int32_t fallback) {
    integer_between(name, "an int", -kMaxInt, kMaxInt, value, fallback);
  }

  // A number of samples along an axis: a positive int, with a default.
  void samples(const char* name, int32_t* value, int32_t fallback) {
    integer_between(name, "an int from 1 to 16777216", 1, kMostAlongAxis, value, fallback);
  }

  void boolean(const char* name, int32_t* value, bool fallback) {
    const std::string* text = find(name, false, "True or False");
    *value = fallback;
    if (text == nullptr) return;
    if (*text == "True" || *text == "true" || *text == "1") {
      *value = 1;
    } else if (*text == "False" || *text == "false" || *text == "0") {
      *value = 0;
    } else {
      reject(name, "True or False", *text);
    }
  }

  void choice(const char* name, int32_t* value, const Choices& choices) {
    const std::string* text = find(name, false, "");
    *value = choices.begin()->second;
    if (text == nullptr) return;
    std::string expected;
    for (const auto& choice : choices) {
      if (*text == choice.first) {
        *value = choice.second;
        return;
      }
      expected += (expected.empty() ? "'" : " or '") + std::string(choice.first) + "'";
    }
    reject(name, expected.c_str(), *text);
  }

  // Call last: whatever was not asked for is a typing mistake. Keys like __this__ belong to MXNet.
  void reject_unknown() const {
    for (const auto& item : attributes_) {
      const std::string& key = item.first;
      const bool hidden = key.size() > 4 && key.compare(0, 2, "__") == 0 &&
                          key.compare(key.size() - 2, 2, "__") == 0;
      if (hidden || asked_.count(key)) continue;
      std::string expected;
      for (const std::string& name : asked_) expected += (expected.empty() ? "" : ", ") + name;
      fail(op_, "unknown argument ", key, ", expected one of ", expected, ", got ", key, "='",
           item.second, "'");
    }
  }

 private:
  static constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

  const std::string* find(const char* name, bool required, const char* expected) {
    asked_.insert(name);
    const auto found = attributes_.find(name);
    const bool absent = found == attributes_.end();
    if (!absent && found->second != "None") return &found->second;
    if (required) {
      fail(op_, "argument ", name, ": expected ", expected, ", got ", absent ? "nothing" : "None");
    }
    return nullptr;
  }
  [[noreturn]] void reject(const char* name, const char* expected, const std::string& got) const {
    fail(op_, "argument ", name, ": expected ", expected, ", got '", got, "'");
  }
  static void skip_spaces(const char** p) {
    while (**p == ' ') ++*p;
  }
  void integer_between(const char* name, const char* expected, int64_t least, int64_t most,
                       int32_t* value, int32_t fallback) {
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
  static bool parse_number(const char** p, double* value) {
    char* end = nullptr;
    *value = strtod(*p, &end);
    const bool ok = end != *p && std::isfinite(*value);
    *p = end;
    return ok;
  }
  static bool parse_int(const char** p, int64_t* value) {
    char* end = nullptr;
    errno = 0;
    *value = strtoll(*p, &end, 10);
    const bool ok = end != *p && errno == 0;
    *p = end;
    return ok;
  }

  const char* op_;
  const Attributes& attributes_;
  std::set<std::string> asked_;
};

// Judges a struct that a caller of the C interface filled.
class ParamChecker {
 public:
  explicit ParamChecker(const char* op) : op_(op) {}

  void size(const char* name, const int32_t* height, const int32_t* width, bool optional = false) {
    const int32_t least = optional ? 0 : 1;
    if (*height < least || *width < least || (*height == 0) != (*width == 0)) {
      fail(op_, "argument ", name, ": expected positive height and width, got ", *height, ", ",
           *width);
    }
    if (*height > kMostAlongAxis || *width > kMostAlongAxis) {
      fail(op_, "argument ", name, ": expected at most ", kMostAlongAxis, ", got ", *height, ", ",
           *width);
    }
  }
  void positive(const char* name, const double* value, double = 0) {
    if (!(*value > 0) || std::isinf(*value)) {
      fail(op_, "argument ", name, ": expected a finite number > 0, got ", *value);
    }
  }
  void number(const char* name, const double* value, double) {
    if (!std::isfinite(*value)) {
      fail(op_, "argument ", name, ": expected a finite number, got ", *value);
    }
  }
  void positive_list(const char* name, const double* values, const int32_t* count) {
    if (*count < 1 || *count > kMostInList) {
      fail(op_, "argument ", name, ": expected 1 to ", kMostInList, " numbers, got ", *count);
    }
    for (int32_t i = 0; i < *count; ++i) positive(name, values + i);
  }
  void optional_positive(const char* name, const int64_t* value) {
    if (*value < 0) {
      fail(op_, "argument ", name, ": expected a positive int, or 0 for the default, got ", *value);
    }
  }
  void integer(const char*, const int32_t*, int32_t) {}
  void samples(const char* name, const int32_t* value, int32_t) {
    if (*value < 1 || *value > kMostAlongAxis) {
      fail(op_, "argument ", name, ": expected an int from 1 to ", kMostAlongAxis, ", got ",
           *value);
    }
  }
  void boolean(const char* name, const int32_t* value, bool) {
    if (*value != 0 && *value != 1) fail(op_, "argument ", name, ": expected 0 or 1, got ", *value);
  }
  void choice(const char* name, const int32_t* value, const Choices& choices) {
    for (const auto& choice : choices) {
      if (*value == choice.second) return;
    }
    fail(op_, "argument ", name, ": expected a value of gluon_roi.h, got ", *value);
  }

 private:
  const char* op_;
};

// Writes each parameter as a JSON object: its name, its kind (the name of the method here), its
// default as text (null if it is required), the choices there are, and for each field of the struct
// its C type and its offset.
class ParamDescriber {
 public:
  explicit ParamDescriber(const void* params) : start_(static_cast<const char*>(params)) {}
  const std::string& json() const { return json_; }

  void size(const char* name, const int32_t* height, const int32_t* width, bool optional = false) {
    add(name, "size", optional ? "None" : nullptr, {{"int32", height}, {"int32", width}});
  }
  void positive(const char* name, const double* value, double fallback = 0) {
    const std::string text = text_of(fallback);
    add(name, "positive", fallback == 0 ? nullptr : text.c_str(), {{"double", value}});
  }
  void number(const char* name, const double* value, double fallback) {
    add(name, "number", text_of(fallback).c_str(), {{"double", value}});
  }
  void positive_list(const char* name, const double* values, const int32_t* count) {
    add(name, "positive_list", nullptr, {{"double[8]", values}, {"int32", count}});
  }
  void optional_positive(const char* name, const int64_t* value) {
    add(name, "optional_positive", "None", {{"int64", value}});
  }
  void integer(const char* name, const int32_t* value, int32_t fallback) {
    add(name, "integer", std::to_string(fallback).c_str(), {{"int32", value}});
  }
  void samples(const char* name, const int32_t* value, int32_t fallback) {
    add(name, "samples", std::to_string(fallback).c_str(), {{"int32", value}});
  }
  void boolean(const char* name, const int32_t* value, bool fallback) {
    add(name, "boolean", fallback ? "True" : "False", {{"int32", value}});
  }
  void choice(const char* name, const int32_t* value, const Choices& choices) {
    std::string names;
    for (const auto& choice : choices) {
      names += (names.empty() ? "\"" : ", \"") + std::string(choice.first) +
               "\": " + std::to_string(choice.second);
    }
    add(name, "choice", choices.begin()->first, {{"int32", value}},
        ", \"choices\": {" + names + "}");
  }

 private:
  struct Field {
    const char* type;
    const void* place;
  };

  // As Python writes it: 224.0
  static std::string text_of(double value) {
    std::ostringstream text;
    text << value;
    if (value == std::floor(value)) text << ".0";
    return text.str();
  }
  void add(const char* name, const char* kind, const char* fallback,
           std::initializer_list<Field> fields, const std::string& more = "") {
    json_ += (json_.empty() ? "{\"name\": \"" : ", {\"name\": \"") + std::string(name) +
             "\", \"kind\": \"" + kind + "\", \"default\": " +
             (fallback == nullptr ? "null" : "\"" + std::string(fallback) + "\"") +
             ", \"fields\": [";
    const char* separator = "";
    for (const Field& field : fields) {
      const auto offset = static_cast<const char*>(field.place) - start_;
      json_ += std::string(separator) + "[\"" + field.type + "\", " + std::to_string(offset) + "]";
      separator = ", ";
    }
    json_ += "]" + more + "}";
  }

  const char* start_;
  std::string json_;
};

// Every operator's last parameter.
template <class Visitor>
void visit_bad_index(Visitor* visit, int32_t* value) {
  visit->choice("bad_index", value,
                {{"error", GLUON_ROI_BAD_INDEX_ERROR}, {"padding", GLUON_ROI_BAD_INDEX_PADDING}});
}

}  // namespace gluon_roi
