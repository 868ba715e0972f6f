// SPDX-License-Identifier: Apache-2.0
#include "c.h"

#include "../cpu/simd.h"

namespace gluon_roi {

static std::string& last_error() {
  static thread_local std::string message;
  return message;
}

int report_errors(void (*run)(const void*), const void* body) {
  try {
    run(body);
    return GLUON_ROI_OK;
  } catch (const Error& error) {
    last_error() = error.what();
    return error.code;
  } catch (const std::bad_alloc&) {
    last_error() = "gluon_roi: there is not enough memory";
    return GLUON_ROI_INVALID;
  } catch (const std::exception& error) {
    last_error() = std::string("gluon_roi: ") + error.what();
    return GLUON_ROI_INVALID;
  }
}

}  // namespace gluon_roi

extern "C" const char* gluon_roi_last_error(void) { return gluon_roi::last_error().c_str(); }

extern "C" const char* gluon_roi_operators(void) {
  static const std::string text = [] {
    std::string json;
    for (const gluon_roi::Operator* op : gluon_roi::operators()) {
      json += (json.empty() ? "[" : ", ") + op->describe();
    }
    return json + "]";
  }();
  return text.c_str();
}

extern "C" const char* gluon_roi_build_info(void) {
  static const std::string text = [] {
#ifdef __clang__
    std::string json = "{\"compiler\": \"" __VERSION__ "\"";
#else
    std::string json = "{\"compiler\": \"g++ " __VERSION__ "\"";
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
    return json + ", \"simd\": \"" + gluon_roi::cpu::simd_name(gluon_roi::cpu::simd_level()) +
           "\"}";
  }();
  return text.c_str();
}
