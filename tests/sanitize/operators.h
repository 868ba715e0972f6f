// SPDX-License-Identifier: Apache-2.0
// The operators, as gluon_roi.h and the library list them, with valid and invalid parameters of
// each. A new operator is called without a change here, unless one of its parameters must keep to
// values other than those of its kind.
#pragma once
#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "../../src/core/registry.h"
#include "arrays.h"
#include "gluon_roi.h"
#include "random.h"

namespace sanitize {

using gluon_roi::Choices;
using gluon_roi::Field;
using gluon_roi::SizeLimits;
using Doubles = double[gluon_roi::kMaxInList];

#define MEMBER(op) gluon_roi_##op##_params op;
union Params {
  GLUON_ROI_OPERATORS(MEMBER)
};
#undef MEMBER

// Whether both sizes may be 0, which stands for a default.
inline bool is_optional(SizeLimits limits) {
  return limits.default_text != nullptr && limits.fallback < limits.min;
}

// Properties that follow from the parameters.
struct Consequences {
  int64_t pooled_height = 0, pooled_width = 0;
  std::vector<double> scales;     // of each map
  int64_t lists = 1;              // of boxes in rois
  int64_t groups = 1;             // channels of the map for each channel of the output
  int64_t* output_dim = nullptr;  // to be set to the channels of the output, or left 0
  bool rois_grad = false;
  bool pad_beyond = false;
  int64_t part_height = 0, part_width = 0;  // of trans; 0 if the operator reads none
  bool bin_offsets = false;                 // whether it reads an offset and a mask for each bin
};

// The maximum number of samples along an axis. RotatedROIAlign stores each one, so that a bin needs
// memory for the square of this; a maximum of samples takes time for the square.
constexpr int32_t kFewSamples = 16;
inline int32_t max_samples(const std::string& op) {
  return op == "RotatedROIAlign" ? kFewSamples : 1000;
}

// Sets valid parameters. The range is that of the name, if it has one, or else that of the kind.
class Randomizer final : public gluon_roi::ParamVisitor {
 public:
  Randomizer(const char* op, Random* random)
      : random_(random), max_samples_(max_samples(op)), is_large_(random->chance(0.1)) {}
  const Consequences& consequences() const { return so_; }

  void size(const char* text, Field<int32_t> height, Field<int32_t> width,
            SizeLimits limits) override {
    const std::string name = text;
    if (name == "pooled_size") {
      set_both(height, width, 1, is_large_ ? 14 : 4);
      if (random_->chance(0.03)) *height.value = 1, *width.value = 70;
      so_.pooled_height = *height.value;
      so_.pooled_width = *width.value;
    } else if (is_optional(limits)) {
      if (random_->chance(0.4)) set_both(height, width, 1, name == "part_size" ? 9 : 5);
      const int64_t rows = *height.value ? *height.value : so_.pooled_height;
      const int64_t columns = *width.value ? *width.value : so_.pooled_width;
      if (name == "group_size") so_.groups = rows * columns;
      if (name == "part_size") so_.part_height = rows, so_.part_width = columns;
    } else {
      set_both(height, width, limits.min, is_large_ ? 7 : 3);
    }
  }

  void positive(Field<double> field, double) override {
    const std::string name = field.name;
    if (name == "spatial_scale") {
      *field.value = random_->chance(0.93)
                         ? random_->pick({1.0 / 16, 0.25, 1.0, 0.3, 1.0 / 7})
                         : random_->pick({1e-30, 1e30, 1e20, 1e-300, 5e-324, 1e9, 1e-9});
      so_.scales = {*field.value};
    } else {
      *field.value = random_->pick({224.0, 224.0, 16.0, 1.0, 1e-300, 1e30});
    }
  }

  void number(Field<double> field, double) override {
    const std::string name = field.name;
    if (name == "gamma") so_.bin_offsets = true;
    if (name == "trans_std" || name == "gamma") {
      *field.value = random_->pick({0.1, 0.1, 1.0, -0.5, 0.0, 1e-30, 1e9});
    } else if (name == "sigma") {
      *field.value = random_->pick({0.5, 0.1, 1e-300, 1e300});
    } else if (name == "min_score") {
      *field.value = random_->pick({0.001, 0.0, 0.3, 1e30});
    } else if (name == "valid_thresh") {
      *field.value = random_->pick({0.0, 0.0, 0.05, 0.5, -3e38, 3e38});
    } else {
      *field.value = random_->pick({0.5, 0.3, 0.7, 0.0, 1.0, -1.0, 3e38});
    }
  }

  void positive_list(Field<Doubles> values, Field<int32_t> count, const char*) override {
    const std::string name = values.name;
    double* const numbers = *values.value;
    if (name == "spatial_scale") {  // each at most half of the one before
      *count.value = integer(1, random_->chance(0.1) ? gluon_roi::kMaxInList : 4);
      double scale = random_->pick({1.0, 0.25, 0.25, 0.3, 1e9, 1e-9, 1e30, 1e-300});
      for (int32_t i = 0; i < *count.value; ++i) {
        so_.scales.push_back(numbers[i] = scale);
        scale *= random_->pick({0.5, 0.5, 0.5, 0.25, 0.3});
      }
    } else {
      *count.value = integer(1, 3);
      for (int i = 0; i < 3; ++i) {
        numbers[i] = random_->pick({1.0, 2.0, 4.0, 8.0, 0.5, 0.1, 1e-300, 1e30});
      }
    }
  }

  // The channels of the map follow from it, or it from them.
  void optional_positive(Field<int64_t> field) override {
    so_.groups = so_.pooled_height * so_.pooled_width;
    so_.output_dim = field.value;
  }

  void integer(Field<int32_t> field, int32_t) override {
    const std::string name = field.name;
    if (name == "sampling_ratio") {
      *field.value =
          std::min(random_->pick({-1, -1, 0, 1, 2, 3, 5, 64, 1000, INT32_MIN}), max_samples_);
      sampling_ratio_ = field.value;
    } else if (name == "id_index") {  // apart from the box and the score
      *field.value = box_first_ ? 6 : random_->pick({-1, 0, 0, INT32_MIN});
    } else if (name == "background_id") {
      *field.value = random_->pick({-1, 0, 1, INT32_MIN, INT32_MAX});
    } else if (name == "canonical_level") {
      *field.value = random_->pick({4, 4, 2, 0, -3, INT32_MIN, INT32_MAX});
    } else {
      *field.value =
          random_->pick({-1, -1, 0, 1, -5, 5, 16, 20, 100, 400, 6000, INT32_MIN, INT32_MAX});
    }
  }

  void positive_int(Field<int32_t> field, int32_t) override {
    const std::string name = field.name;
    if (name == "feature_stride") {
      *field.value = random_->pick({16, 16, 1, 7, 64, 1 << 24});
    } else if (name == "sample_per_part") {
      *field.value = std::min(random_->pick({1, 2, 3, 4, 64, 1000}), max_samples_);
    } else if (name == "rpn_post_nms_top_n") {
      *field.value = integer(1, 40);
    } else {
      *field.value = integer(1, 3);
    }
  }

  // Columns: a class, a score and a box of at most five, or such a box, a score and a class.
  void non_negative_int(Field<int32_t> field, int32_t) override {
    const std::string name = field.name;
    if (name == "coord_start") {
      box_first_ = random_->chance(0.3);
      *field.value = box_first_ ? 0 : 2;
    } else if (name == "score_index") {
      *field.value = box_first_ ? 5 : 1;
    } else {
      *field.value = integer(0, 3);
    }
  }

  void boolean(Field<int32_t> field, bool) override {
    *field.value = random_->chance(0.5);
    if (std::string("rois_grad") == field.name) so_.rois_grad = *field.value != 0;
  }

  void choice(Field<int32_t> field, const Choices& choices) override {
    *field.value = choices.begin()[integer(0, static_cast<int64_t>(choices.size()) - 1)].second;
    const std::string name = field.name;
    if (name == "mode" && sampling_ratio_ && *field.value == GLUON_ROI_MAX) {
      *sampling_ratio_ = std::min(*sampling_ratio_, kFewSamples);
    }
    if (name == "in_format") is_rotated_ = *field.value == GLUON_ROI_ROTATED;
    if (name == "out_format") {
      *field.value = is_rotated_ ? GLUON_ROI_ROTATED : integer(0, GLUON_ROI_CENTER);
    }
    if (name == "bad_index") so_.pad_beyond = *field.value == GLUON_ROI_BAD_INDEX_PADDING;
    if (name == "assignment" && *field.value == GLUON_ROI_GIVEN) {
      so_.lists = static_cast<int64_t>(so_.scales.size());
    }
  }

 private:
  int32_t integer(int64_t low, int64_t high) {
    return static_cast<int32_t>(random_->integer(low, high));
  }
  void set_both(Field<int32_t> height, Field<int32_t> width, int32_t low, int32_t high) {
    *height.value = integer(low, high);
    *width.value = integer(low, high);
  }

  Random* const random_;
  const int32_t max_samples_;
  const bool is_large_;
  bool box_first_ = false, is_rotated_ = false;
  int32_t* sampling_ratio_ = nullptr;
  Consequences so_;
};

// Chooses a value that has to be rejected for one of the parameters; apply() sets it.
class Spoiler final : public gluon_roi::ParamVisitor {
 public:
  explicit Spoiler(Random* random) : random_(random) {}
  void apply() const { chosen_(); }

  void size(const char*, Field<int32_t> height, Field<int32_t> width, SizeLimits limits) override {
    const Field<int32_t> either = random_->chance(0.5) ? height : width;
    offer([=] {
      const int32_t below = is_optional(limits) ? -1 : limits.min - 1;
      *either.value = random_->pick({below, -1, INT32_MIN, INT32_MAX, (1 << 24) + 1});
    });
  }
  void positive(Field<double> field, double) override {
    offer([=] { *field.value = out_of_range(); });
  }
  void number(Field<double> field, double) override {
    offer([=] { *field.value = random_->pick({NAN * 1.0, INFINITY * 1.0, -INFINITY * 1.0}); });
  }
  // Compared in float32. NaN and infinity are valid.
  void threshold(Field<double> field, double) override {
    offer([=] { *field.value = random_->pick({1e39, -DBL_MAX}); });
  }
  void positive_list(Field<Doubles> values, Field<int32_t> count, const char*) override {
    offer([=] { (*values.value)[random_->integer(0, *count.value - 1)] = out_of_range(); });
    offer([=] {
      constexpr int32_t kMost = gluon_roi::kMaxInList;
      *count.value = random_->pick({0, -1, *count.value + 1, kMost + 1, INT32_MIN, INT32_MAX});
    });
  }
  void optional_positive(Field<int64_t> field) override {
    offer([=] {
      *field.value = random_->pick(
          {int64_t{-1}, INT64_MIN, INT64_MAX, int64_t{1} << 62, (int64_t{1} << 62) + 1});
    });
  }
  // Any other int is valid.
  void integer(Field<int32_t> field, int32_t) override {
    if (std::string("id_index") != field.name) return;
    offer([=] { *field.value = random_->pick({score_index_, coord_start_, 10, INT32_MAX}); });
  }
  void positive_int(Field<int32_t> field, int32_t) override {
    offer([=] { *field.value = random_->pick({0, -1, INT32_MIN, INT32_MAX, (1 << 24) + 1}); });
  }
  void non_negative_int(Field<int32_t> field, int32_t) override {
    const std::string name = field.name;
    if (name == "coord_start") coord_start_ = *field.value;
    if (name == "score_index") score_index_ = *field.value;
    // Data has at most 9 columns.
    offer([=] { *field.value = random_->pick({-1, INT32_MIN, INT32_MAX, 10}); });
    if (name == "score_index") offer([=] { *field.value = coord_start_ + 3; });
  }
  void boolean(Field<int32_t> field, bool) override { spoil_flag(field, 2); }
  void choice(Field<int32_t> field, const Choices& choices) override {
    spoil_flag(field, static_cast<int32_t>(choices.size()));
  }

 private:
  // Of all that are offered, each is chosen with the same probability.
  void offer(std::function<void()> spoil) {
    if (random_->integer(1, ++offered_) == 1) chosen_ = std::move(spoil);
  }
  void spoil_flag(Field<int32_t> field, int32_t values) {
    offer([=] { *field.value = random_->pick({-1, values, INT32_MIN, INT32_MAX}); });
  }
  double out_of_range() {
    return random_->pick({0.0, -0.0, -1.0, -DBL_MAX, 1.1e30, DBL_MAX, NAN * 1.0, INFINITY * 1.0});
  }

  Random* const random_;
  int64_t offered_ = 0;
  int32_t coord_start_ = 0, score_index_ = 0;
  std::function<void()> chosen_;
};

using Tensor = gluon_roi_tensor;
using Device = gluon_roi_device;

struct Operator {
  const char* symbol;  // as in C
  int (*forward)(const Params*, const Tensor*, int32_t, const Tensor*, const Device*);
  int (*backward)(const Params*, const Tensor*, int32_t, const Tensor*, const Tensor*,
                  const Device*);
  int (*workspace)(const Params*, const Tensor*, int32_t, int, int32_t, size_t*);

  const gluon_roi::Operator& library() const {
    const auto& all = gluon_roi::operators();
    return **std::find_if(all.begin(), all.end(), [&](const gluon_roi::Operator* op) {
      return std::string(symbol) == op->declared().symbol;
    });
  }
  const char* name() const { return library().name(); }  // in sentences
  int64_t coordinates() const { return library().declared().coordinates; }
  Consequences randomize(Random* random, Params* params) const {
    Randomizer randomizer(name(), random);
    library().visit(&randomizer, params);
    return randomizer.consequences();
  }
  void spoil(Random* random, Params* params) const {
    Spoiler spoiler(random);
    library().visit(&spoiler, params);
    spoiler.apply();
  }
};

#define OPERATOR(op)                                                                          \
  {#op,                                                                                       \
   [](const Params* p, const Tensor* inputs, int32_t count, const Tensor* out,                \
      const Device* device) {                                                                 \
     return gluon_roi_##op##_forward(p ? &p->op : nullptr, inputs, count, out, device);       \
   },                                                                                         \
   [](const Params* p, const Tensor* inputs, int32_t count, const Tensor* d_out,              \
      const Tensor* d_inputs, const Device* device) {                                         \
     return gluon_roi_##op##_backward(p ? &p->op : nullptr, inputs, count, d_out, d_inputs,   \
                                      device);                                                \
   },                                                                                         \
   [](const Params* p, const Tensor* inputs, int32_t count, int backward, int32_t device,     \
      size_t* bytes) {                                                                        \
     return gluon_roi_##op##_workspace(p ? &p->op : nullptr, inputs, count, backward, device, \
                                       bytes);                                                \
   }},

const Operator kOperators[] = {GLUON_ROI_OPERATORS(OPERATOR)};
#undef OPERATOR

}  // namespace sanitize
