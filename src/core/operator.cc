#include "operator.h"

#include <sys/mman.h>

#include "cpu.h"

namespace gluon_roi {

std::vector<const Operator*>& operators() {
  static std::vector<const Operator*> all;
  return all;
}

Operator::Operator(const char* name) : name_(name) { operators().push_back(this); }

std::string shape_text(const Tensor& tensor) {
  std::string text = "(";
  for (int i = 0; i < tensor.ndim && i < 4; ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(tensor.shape[i]);
  }
  if (tensor.ndim > 4) text += ", ...";
  return text + ")";
}

int64_t check_shapes(const char* op, const Tensor& data, const Tensor& rois,
                     const Tensor* rois_num) {
  if (data.ndim >= 0 && data.ndim != 4) {
    fail(op, "data has shape ", shape_text(data), ", expected 4 dimensions (N, C, H, W)");
  }
  const int64_t images = data.ndim == 4 ? data.shape[0] : 0;
  if (rois_num != nullptr && rois_num->ndim >= 0) {
    if (rois_num->ndim != 1) {
      fail(op, "rois_num has shape ", shape_text(*rois_num), ", expected 1 dimension (N,)");
    }
    if (images > 0 && rois_num->shape[0] > 0 && rois_num->shape[0] != images) {
      fail(op, "rois_num has shape ", shape_text(*rois_num), ", expected (", images,
           ",), the batch size of data");
    }
  }
  if (rois.ndim < 0) return -1;
  const int64_t columns = rois.ndim >= 1 && rois.ndim <= 4 ? rois.shape[rois.ndim - 1] : 0;
  if (rois_num != nullptr) {
    if (rois.ndim != 2 || (columns > 0 && columns != 4)) {
      fail(op, "rois has shape ", shape_text(rois),
           ", expected (K, 4) rows together with rois_num");
    }
    return rois.shape[0];
  }
  if (rois.ndim == 2 && (columns <= 0 || columns == 5)) return rois.shape[0];
  if (rois.ndim != 3 || (columns > 0 && columns != 4)) {
    fail(op, "rois has shape ", shape_text(rois),
         ", expected (K, 5) rows [batch_index, x1, y1, x2, y2], (N, R, 4) boxes per image, or "
         "(K, 4) together with rois_num");
  }
  if (images > 0 && rois.shape[0] > 0 && rois.shape[0] != images) {
    fail(op, "rois has shape ", shape_text(rois), ", expected (", images,
         ", R, 4) for the batch size of data");
  }
  // An unknown factor leaves the product unknown.
  return rois.shape[0] < 0 || rois.shape[1] < 0 ? -1 : rois.shape[0] * rois.shape[1];
}

void check_dtypes(const char* op, int data, int rois, const int* rois_num) {
  if (data != GLUON_ROI_FLOAT32 && data != GLUON_ROI_FLOAT64 && data != GLUON_ROI_FLOAT16) {
    fail(op, "data has dtype ", dtype_name(data), ", expected float16, float32 or float64");
  }
  if (rois != GLUON_ROI_FLOAT32 && rois != GLUON_ROI_FLOAT64 && rois != GLUON_ROI_FLOAT16) {
    fail(op, "rois has dtype ", dtype_name(rois), ", expected float32 or float64");
  }
  if (rois_num != nullptr && *rois_num != GLUON_ROI_INT32 && *rois_num != GLUON_ROI_INT64 &&
      *rois_num != GLUON_ROI_FLOAT32 && *rois_num != GLUON_ROI_FLOAT64) {
    fail(op, "rois_num has dtype ", dtype_name(*rois_num), ", expected int32 or int64");
  }
}

PositionSensitive position_sensitive(const char* op, int64_t output_dim, int32_t group_height,
                                     int32_t group_width, int32_t pooled_height,
                                     int32_t pooled_width, int64_t channels) {
  PositionSensitive layout{output_dim, group_height > 0 ? group_height : pooled_height,
                           group_width > 0 ? group_width : pooled_width, pooled_height,
                           pooled_width};
  const int64_t groups = static_cast<int64_t>(layout.group_height) * layout.group_width;
  if (channels <= 0) {
    if (output_dim == 0) layout.output_dim = channels;
  } else if (output_dim == 0) {
    if (channels % groups != 0) {
      fail(op, "data has ", channels, " channels, expected a multiple of ", layout.group_height,
           " * ", layout.group_width, " = ", groups);
    }
    layout.output_dim = channels / groups;
  } else if (channels != output_dim * groups) {
    fail(op, "data has ", channels, " channels, expected output_dim * ", layout.group_height, " * ",
         layout.group_width, " = ", output_dim * groups);
  }
  return layout;
}

void use_huge_pages(const Tensor& tensor) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kSmallPage = 4096, kHugePage = 2 << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data);
  const uintptr_t begin = (address + kSmallPage - 1) / kSmallPage * kSmallPage;
  const uintptr_t end =
      (address + static_cast<size_t>(elements(tensor)) * dtype_size(tensor.dtype)) / kSmallPage *
      kSmallPage;
  // A hint: where the system refuses it, all stays right.
  if (end >= begin + 2 * kHugePage) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
  }
#endif
}

void zero_fill(Cpu, const Tensor& tensor) {
  const size_t bytes = static_cast<size_t>(elements(tensor)) * dtype_size(tensor.dtype);
  if (bytes > 0) memset(tensor.data, 0, bytes);
}

static std::string& last_error() {
  static thread_local std::string message;
  return message;
}

int guarded_impl(void (*run)(const void*), const void* body) {
  try {
    run(body);
    return GLUON_ROI_OK;
  } catch (const Error& error) {
    last_error() = error.what();
    return error.code;
  } catch (const std::exception& error) {
    last_error() = std::string("gluon_roi: ") + error.what();
    return GLUON_ROI_INVALID;
  }
}

}  // namespace gluon_roi

extern "C" const char* gluon_roi_last_error(void) { return gluon_roi::last_error().c_str(); }

extern "C" const char* gluon_roi_build_info(void) {
  static const std::string text = [] {
    std::string json = "{\"compiler\": \"g++ " __VERSION__ "\"";
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
    return json + ", \"simd\": \"" + gluon_roi::simd_name(gluon_roi::simd_level()) + "\"}";
  }();
  return text.c_str();
}
