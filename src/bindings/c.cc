// SPDX-License-Identifier: Apache-2.0
#include "c.h"

#include <cstdio>

#include "../cpu/simd.h"
#include "../include/gluon_roi.h"

namespace gluon_roi {

// Longer messages are truncated.
constexpr size_t kMaxMessage = 4095;

// The message of this thread's last error, in a static buffer, so that setting it cannot fail.
static char* last_error() {
  static thread_local char message[kMaxMessage + 1];
  return message;
}
static int set_error(const char* prefix, const char* message, int code) {
  std::snprintf(last_error(), kMaxMessage + 1, "%s%s", prefix, message);
  return code;
}

int report_errors(void (*run)(const void*), const void* body) {
  try {
    run(body);
    return GLUON_ROI_OK;
  } catch (const Error& error) {
    return set_error("", error.what(), error.code);
  } catch (const std::bad_alloc&) {
    return set_error("gluon_roi: ", "there is not enough memory", GLUON_ROI_NO_MEMORY);
  } catch (const std::exception& error) {
    return set_error("gluon_roi: ", error.what(), GLUON_ROI_INVALID);
  }
}

// The version of the header that the library was compiled with.
#define GLUON_ROI_TEXT(number) #number
#define GLUON_ROI_VERSION_TEXT(major, minor, patch) \
  GLUON_ROI_TEXT(major) "." GLUON_ROI_TEXT(minor) "." GLUON_ROI_TEXT(patch)
constexpr char kVersion[] = GLUON_ROI_VERSION_TEXT(GLUON_ROI_VERSION_MAJOR, GLUON_ROI_VERSION_MINOR,
                                                   GLUON_ROI_VERSION_PATCH);

// Returns the text of make(), which a static variable owns, or NULL on an error.
template <class Make>
static const char* text_of(const Make& make) {
  const char* text = nullptr;
  report_errors([&] { text = make().c_str(); });
  return text;
}

static const std::string& operators_text() {
  static const std::string text = [] {
    std::string json;
    for (const Operator* op : operators()) {
      json += (json.empty() ? "[" : ", ") + op->describe();
    }
    return json + "]";
  }();
  return text;
}

static const std::string& build_info_text() {
  static const std::string text = [] {
    std::string json = std::string("{\"version\": \"") + kVersion + '"';
#ifdef __clang__
    json += ", \"compiler\": \"" __VERSION__ "\"";
#else
    json += ", \"compiler\": \"g++ " __VERSION__ "\"";
#endif
#ifdef GLUON_ROI_WITH_CUDA
    json +=
        ", \"cuda\": \"" GLUON_ROI_CUDA_VERSION "\", \"cuda_archs\": \"" GLUON_ROI_CUDA_ARCHS "\"";
#else
    json += ", \"cuda\": null, \"cuda_archs\": \"\"";
#endif
#ifdef _OPENMP
    json += ", \"openmp\": " + std::to_string(_OPENMP);
#else
    json += ", \"openmp\": null";
#endif
    return json + ", \"simd\": \"" + cpu::simd_name(cpu::simd_level()) + "\"}";
  }();
  return text;
}

}  // namespace gluon_roi

extern "C" const char* gluon_roi_last_error(void) { return gluon_roi::last_error(); }
extern "C" const char* gluon_roi_operators(void) {
  return gluon_roi::text_of(gluon_roi::operators_text);
}
extern "C" const char* gluon_roi_build_info(void) {
  return gluon_roi::text_of(gluon_roi::build_info_text);
}
