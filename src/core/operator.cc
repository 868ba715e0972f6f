#include "operator.h"

#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstdlib>

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
  if (rois.shape[0] < 0 || rois.shape[1] < 0) return -1;
  int64_t rows;
  if (!multiply_up_to(kMost, rois.shape[0], rois.shape[1], &rows)) {
    fail(op, "rois has shape ", shape_text(rois), ", expected at most ", kMost, " boxes");
  }
  return rows;
}

void check_output_size(const char* op, const Tensor& out, bool has_output_dim, int64_t most) {
  const int64_t rows = out.shape[0], channels = out.shape[1];
  int64_t size;
  if (!multiply_up_to(most, out.shape[2], out.shape[3], &size)) {
    fail(op, "argument pooled_size: expected at most ", most, " bins, got ", out.shape[2], " * ",
         out.shape[3]);
  }
  if (channels > 0 && !multiply_up_to(most, size, channels, &size)) {
    fail(op, "argument ", has_output_dim ? "output_dim" : "pooled_size", ": expected at most ",
         most, " elements for a row of the output, got ", channels, " channels of ", out.shape[2],
         " * ", out.shape[3]);
  }
  if (channels > 0 && rows > 0 && !multiply_up_to(most, size, rows, &size)) {
    fail(op, "rois has ", rows, " rows, expected at most ", most / size, ", for which the output ",
         shape_text(out), " has no more than ", most, " elements");
  }
}

void check_tensor(const char* op, const char* name, const Tensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > 4) {
    fail(op, name, ": expected ndim from 0 to 4, got ", tensor.ndim);
  }
  int64_t size = 1;
  for (int i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] < 0) {
      fail(op, name, " has shape ", shape_text(tensor), ", expected no negative size");
    }
    if (!multiply_up_to(kMost, size, tensor.shape[i], &size)) {
      fail(op, name, " has shape ", shape_text(tensor), ", expected at most ", kMost, " elements");
    }
  }
}

void check_memory(const char* op, const char* name, const Tensor& tensor) {
  if (elements(tensor) == 0 || tensor.ndim == 0) return;
  if (tensor.data == nullptr) fail(op, name, ": expected memory, got NULL");
  if (reinterpret_cast<uintptr_t>(tensor.data) % dtype_size(tensor.dtype) != 0) {
    fail(op, name, ": expected memory at a multiple of ", dtype_size(tensor.dtype), " bytes, got ",
         tensor.data);
  }
}

void check_apart(const char* op, const char* name, const Tensor& tensor, const char* other_name,
                 const Tensor& other) {
  const auto begin_of = [](const Tensor& t) { return static_cast<const char*>(t.data); };
  const auto end_of = [&](const Tensor& t) {
    return begin_of(t) +
           (t.ndim == 0 ? 0 : elements(t)) * static_cast<int64_t>(dtype_size(t.dtype));
  };
  if (begin_of(tensor) < end_of(other) && begin_of(other) < end_of(tensor)) {
    fail(op, name, ": expected memory of its own, got some that is shared with ", other_name);
  }
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
  int64_t expected = groups;
  if (output_dim > 0 && !multiply_up_to(kMost, output_dim, groups, &expected)) {
    fail(op, "argument output_dim: expected output_dim * ", layout.group_height, " * ",
         layout.group_width, " to be at most ", kMost, ", got ", output_dim);
  }
  if (channels <= 0) {
    if (output_dim == 0) layout.output_dim = channels;
  } else if (output_dim == 0) {
    if (channels % groups != 0) {
      fail(op, "data has ", channels, " channels, expected a multiple of ", layout.group_height,
           " * ", layout.group_width, " = ", groups);
    }
    layout.output_dim = channels / groups;
  } else if (channels != expected) {
    fail(op, "data has ", channels, " channels, expected output_dim * ", layout.group_height, " * ",
         layout.group_width, " = ", expected);
  }
  return layout;
}

namespace {

enum class HugePages { kNone, kWhileFast, kAll };

HugePages wanted_huge_pages() {
  static const HugePages wanted = [] {
    const char* text = std::getenv("GLUON_ROI_HUGE_PAGES");
    if (text == nullptr || *text == '\0') return HugePages::kWhileFast;
    const std::string value = text;
    if (value != "0" && value != "1") {
      fail("gluon_roi", "environment variable GLUON_ROI_HUGE_PAGES: expected 0 or 1, got '", value,
           "'");
    }
    return value == "1" ? HugePages::kAll : HugePages::kNone;
  }();
  return wanted;
}

// Time that this thread ran, which other threads on a busy machine do not add to.
double thread_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

void use_huge_pages(const Tensor& tensor) {
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHugePage = 2 << 20;
  // The pages handed out first are those freed last: a few fast ones say nothing of the others, so
  // each is timed, and the second slow one is the last.
  constexpr double kSlow = 1e-3;
  constexpr int kMostSlow = 2;
  const uintptr_t address = reinterpret_cast<uintptr_t>(tensor.data);
  const uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end =
      (address + static_cast<size_t>(elements(tensor)) * dtype_size(tensor.dtype)) / kHugePage *
      kHugePage;
  const HugePages wanted = wanted_huge_pages();
  if (wanted == HugePages::kNone || end < begin + 2 * kHugePage) return;
  // A hint: where the system refuses it, all stays right.
  if (madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE) != 0) return;
  if (wanted == HugePages::kAll) return;
  std::atomic<int> slow{0};
  std::atomic<uintptr_t> next{begin};
  parallel_for(max_threads(), static_cast<int64_t>(end - begin), [&](int64_t) {
    while (slow < kMostSlow) {
      const uintptr_t page = next.fetch_add(kHugePage);
      if (page >= end) return;
      const double start = thread_seconds();
      *reinterpret_cast<volatile char*>(page) = 0;
      slow += thread_seconds() - start > kSlow;
    }
  });
  if (next < end) {
    madvise(reinterpret_cast<void*>(next.load()), end - next, MADV_NOHUGEPAGE);
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
