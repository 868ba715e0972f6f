#include "operator.h"

namespace gluon_roi {

std::vector<const Operator*>& operators() {
  static std::vector<const Operator*> all;
  return all;
}

Operator::Operator(const char* name, const char* symbol) : name_(name), symbol_(symbol) {
  operators().push_back(this);
}

void fail_without_cuda(const char* op) {
  throw Error(std::string(op) +
                  ": data is on a GPU, but gluon_roi was built without CUDA; run "
                  "'GLUON_ROI_CUDA=1 pip install --force-reinstall --no-deps .' in its source "
                  "folder, with nvcc on PATH or CUDA_HOME set",
              GLUON_ROI_NO_CUDA);
}

}  // namespace gluon_roi
