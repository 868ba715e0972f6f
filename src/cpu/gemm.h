// SPDX-License-Identifier: Apache-2.0
// The product of matrices that the operators for inference share: each brings its numbers into the
// packing below, and says what becomes of the sums.
#pragma once
#include "epilogue.h"

namespace gluon_roi::cpu {

// Both factors are read in the order of memory, panel by panel. 12 and 16 are multiples of what
// fits into the registers at all levels, so packed weights do not depend on the processor.
constexpr int kPanelRows = 12;
constexpr int kBlockLanes = 16;

// Numbers that the caller reads after the product, which are prefetched little by little: `count`
// from each of `rows` places.
struct Ahead {
  const float* from;
  int64_t rows, row_step, count;
};

// out[row, lane] = sum of a[row, k] * b[k, lane] over k = 0 ... depth - 1, all float32:
//
//   a: [panel of 12 rows][k][12]     element row / 12 * a_step + k * 12 + row % 12
//   b: [block of 16 lanes][k][16]    element lane / 16 * b_step + k * 16 + lane % 16
//   out:                             element row * row_step + lane / 16 * block_step + lane % 16
//
// The last panel and the last block are complete in memory, with any numbers behind the last row
// and the last lane, whose sums are not written. Each sum has a chain for each `chain` values of k,
// in the order of k, and the chains are added in order. So it does not depend on how rows or lanes
// are divided among calls. A single chain does not depend on how k is divided, either: with
// `continues`, the chain of `out` goes on.
struct Gemm {
  int64_t rows, lanes, depth;
  int64_t chain;  // 0: a single one
  const float* a;
  int64_t a_step;
  const float* b;
  int64_t b_step;
  float* out;
  int64_t row_step, block_step;
  bool continues;
  const Epilogue* epilogue;  // null: `out` gets the sums themselves
  Ahead ahead;
};

// Runs on the calling thread. The operators divide their products into tasks.
void multiply(const Gemm& gemm);

}  // namespace gluon_roi::cpu
