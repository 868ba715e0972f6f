// Visitors over the fields of an operator's Params. Each operator lists its fields once, in
// Op::fields(visitor, params); FieldParser fills them from MXNet's attribute strings, FieldChecker
// judges the values, whichever door they came through.
#pragma once
#include <cerrno>
#include <cstdlib>
#include <limits>
#include <set>
#include <unordered_map>
#include <utility>

#include "common.h"

namespace gluon_roi {

using Attributes = std::unordered_map<std::string, std::string>;
// A choice among named values, such as {"rfcn", GLUON_ROI_RFCN}.
using Choices = std::initializer_list<std::pair<const char*, int32_t>>;

// The most bins or groups along an axis: float32, in which bins are computed, counts no further.
constexpr int64_t kMostAlongAxis = 1 << 24;

class FieldParser {
 public:
  FieldParser(const char* op, const Attributes& attributes) : op_(op), attributes_(attributes) {}

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

  // A required number > 0.
  void positive(const char* name, double* value) {
    static const char* expected = "a finite number > 0";
    const std::string* text = find(name, true, expected);
    char* end = nullptr;
    *value = strtod(text->c_str(), &end);
    if (end == text->c_str() || *end != '\0' || !(*value > 0) || std::isinf(*value)) {
      reject(name, expected, *text);
    }
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
    static const char* expected = "an int";
    const std::string* text = find(name, false, expected);
    *value = fallback;
    if (text == nullptr) return;
    const char* p = text->c_str();
    int64_t wide;
    if (!parse_int(&p, &wide) || *p != '\0' || wide > kMaxInt || wide < -kMaxInt) {
      reject(name, expected, *text);
    }
    *value = static_cast<int32_t>(wide);
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

// Judges a Params struct that a caller of the C interface filled in.
class FieldChecker {
 public:
  explicit FieldChecker(const char* op) : op_(op) {}

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
  void positive(const char* name, const double* value) {
    if (!(*value > 0) || std::isinf(*value)) {
      fail(op_, "argument ", name, ": expected a finite number > 0, got ", *value);
    }
  }
  void optional_positive(const char* name, const int64_t* value) {
    if (*value < 0) {
      fail(op_, "argument ", name, ": expected a positive int, or 0 for the default, got ", *value);
    }
  }
  void integer(const char*, const int32_t*, int32_t) {}
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

}  // namespace gluon_roi
