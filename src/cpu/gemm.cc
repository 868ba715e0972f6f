// SPDX-License-Identifier: Apache-2.0
#include "gemm.h"

#include <algorithm>

#include "fused.h"
#include "lanes.h"

namespace gluon_roi::cpu {

namespace {

// GCC warns that passing these types depends on the instruction set; all functions are inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

// The tile of sums that registers hold during the innermost loop.
template <class Simd>
struct RegisterTile {
#ifdef __aarch64__
  static constexpr int kRows = 4, kBlocks = 1;  // 16 of 32 registers; of 6 rows GCC spills two sums
#else
  static constexpr int kRows = Simd::kRegisterBytes == 64   ? 12  // 24 of 32
                               : Simd::kRegisterBytes == 32 ? 6   // 12 of 16
                                                            : 3;  // 12 of 16
  static constexpr int kBlocks = Simd::kRegisterBytes == 64 ? 2 : 1;
#endif
  static_assert(kPanelRows % kRows == 0, "a panel is a multiple");
};

// Sums of `rows` rows and `blocks` * 16 lanes, which start with 0.
template <class Simd, int rows, int blocks>
class Tile {
 public:
  ALWAYS_INLINE void load(const float* from, int64_t row_step, int64_t block_step) {
    for_each_row(from, row_step, [&](int row, const float* place) INLINE_LAMBDA {
      for_each([&](int i)
                   INLINE_LAMBDA { load_register(place + lane(i, block_step), &sums_[row][i]); });
    });
  }
  ALWAYS_INLINE void store(float* to, int64_t row_step, int64_t block_step) const {
    for_each_row(to, row_step, [&](int row, float* place) INLINE_LAMBDA {
      for_each([&](int i)
                   INLINE_LAMBDA { store_register(place + lane(i, block_step), sums_[row][i]); });
    });
  }

  // Adds `depth` products to each sum.
  ALWAYS_INLINE void multiply(const float* a, const float* b, int64_t b_step, int64_t depth) {
    // (Without unrolling, AVX2 takes 1.0 or 1.27 times as long, depending on where the loop lies in
    // memory.)
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k, a += kPanelRows, b += kBlockLanes) {
      Register lanes[kRegisters];
      for_each([&](int i) INLINE_LAMBDA { load_register(b + lane(i, b_step), &lanes[i]); });
#pragma GCC unroll 12
      for (int row = 0; row < rows; ++row) {
        Register factor;
        broadcast(a[row], &factor);
        for_each([&](int i)
                     INLINE_LAMBDA { multiply_add<Simd>(factor, lanes[i], &sums_[row][i]); });
      }
    }
  }

  // Pointers are those of the tile's first row and lane.
  ALWAYS_INLINE void add_row_bias(const float* bias) {
    for_each_sum([&](int row, int, Register* sum) INLINE_LAMBDA {
      Register value;
      broadcast(bias[row], &value);
      *sum += value;
    });
  }
  ALWAYS_INLINE void add(const float* residual, int64_t row_step, int64_t block_step) {
    for_each_row(residual, row_step, [&](int row, const float* place) INLINE_LAMBDA {
      for_each([&](int i) INLINE_LAMBDA {
        Register values;
        load_register(place + lane(i, block_step), &values);
        sums_[row][i] += values;
      });
    });
  }
  ALWAYS_INLINE void add(const Tile& other) {
    for_each_sum([&](int row, int i, Register* sum) INLINE_LAMBDA { *sum += other.sums_[row][i]; });
  }
  ALWAYS_INLINE void activate(int32_t activation, float slope) {
    if (activation == kRelu) {
      for_each_sum([](int, int, Register* sum) INLINE_LAMBDA { relu(sum); });
    } else if (activation == kRelu6) {
      Register six;
      broadcast(6.f, &six);
      for_each_sum([&](int, int, Register* sum) INLINE_LAMBDA { relu6(six, sum); });
    } else if (activation == kLeaky) {
      Register factor;
      broadcast(slope, &factor);
      for_each_sum([&](int, int, Register* sum) INLINE_LAMBDA { leaky_relu(factor, sum); });
    }
  }

 private:
  using Values = Lanes<float, Simd>;
  using Register = typename Values::Register;
  static constexpr int kInBlock = Values::kRegisters;
  static constexpr int kRegisters = blocks * kInBlock;

  // Where the lanes of register i begin.
  ALWAYS_INLINE static int64_t lane(int i, int64_t block_step) {
    return i / kInBlock * block_step + i % kInBlock * Values::kPerRegister;
  }

  template <class Body>
  ALWAYS_INLINE static void for_each(const Body& body) {
#pragma GCC unroll 8
    for (int i = 0; i < kRegisters; ++i) body(i);
  }
  template <class Body>
  ALWAYS_INLINE void for_each_sum(const Body& body) {
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row) {
      for_each([&](int i) INLINE_LAMBDA { body(row, i, &sums_[row][i]); });
    }
  }
  // Calls body(row, place) for rows that are `row_step` apart. The empty assembly hides where a row
  // lies. (Without it GCC computes all places before the innermost loop, and spills them: 32
  // products take 1.05 times as long.)
  template <class Place, class Body>
  ALWAYS_INLINE static void for_each_row(Place place, int64_t row_step, const Body& body) {
#pragma GCC unroll 12
    for (int row = 0; row < rows; ++row, place += row_step) {
      asm("" : "+r"(place));
      body(row, place);
    }
  }

  Register sums_[rows][kRegisters] = {};
};

// Copies rows of `lanes` numbers, in blocks of 16, between places with different steps.
template <class From, class To>
ALWAYS_INLINE void copy_lanes(int rows, int64_t lanes, From from, int64_t row_step,
                              int64_t block_step, To to, int64_t to_row_step,
                              int64_t to_block_step) {
  for (int row = 0; row < rows; ++row, from += row_step, to += to_row_step) {
    for (int64_t lane = 0; lane < lanes; ++lane) {
      const int64_t block = lane / kBlockLanes, i = lane % kBlockLanes;
      to[block * to_block_step + i] = from[block * block_step + i];
    }
  }
}

template <class Simd, int rows, int blocks>
ALWAYS_INLINE void run_tile(const Gemm& gemm, int64_t row, int64_t block) {
  const float* const a = gemm.a + row / kPanelRows * gemm.a_step + row % kPanelRows;
  const float* const b = gemm.b + block * gemm.b_step;
  const Epilogue* const last = gemm.epilogue;
  const int64_t offset = row * gemm.row_step + block * gemm.block_step;
  int64_t row_step = gemm.row_step, block_step = gemm.block_step;
  float* out = gemm.out + offset;
  const float* residual = nullptr;
  if (last != nullptr && last->residual != nullptr) residual = last->residual + offset;

  // What lies behind the last lane is neither read nor written: the tile is in a copy.
  constexpr int kTileLanes = blocks * kBlockLanes;
  const int64_t lanes = std::min<int64_t>(gemm.lanes - block * kBlockLanes, kTileLanes);
  const bool is_copied = lanes < kTileLanes;
  float out_copy[rows * kTileLanes], residual_copy[rows * kTileLanes];
  if (is_copied) {
    if (gemm.continues) {
      copy_lanes(rows, lanes, out, row_step, block_step, out_copy, kTileLanes, kBlockLanes);
    }
    if (residual != nullptr) {
      copy_lanes(rows, lanes, residual, row_step, block_step, residual_copy, kTileLanes,
                 kBlockLanes);
      residual = residual_copy;
    }
    out = out_copy;
    row_step = kTileLanes, block_step = kBlockLanes;
  } else if (last != nullptr || gemm.continues) {
    for (int i = 0; i < rows; ++i) {
      for (int n = 0; n < blocks; ++n) {
        __builtin_prefetch(out + i * row_step + n * block_step, 1);
        if (residual != nullptr) __builtin_prefetch(residual + i * row_step + n * block_step);
      }
    }
  }

  Tile<Simd, rows, blocks> tile;
  if (gemm.continues) tile.load(out, row_step, block_step);
  const int64_t chain = gemm.chain > 0 ? gemm.chain : gemm.depth;
  tile.multiply(a, b, gemm.b_step, std::min(gemm.depth, chain));
  for (int64_t k = chain; k < gemm.depth; k += chain) {
    // The sum of the earlier chains waits in memory: registers hold one tile.
    Tile<Simd, rows, blocks> next;
    next.multiply(a + k * kPanelRows, b + k * kBlockLanes, gemm.b_step,
                  std::min(gemm.depth - k, chain));
    tile.add(next);
  }
  if (last != nullptr) {
    tile.add_row_bias(last->row_bias + row);
    if (residual != nullptr && !last->adds_last) tile.add(residual, row_step, block_step);
    tile.activate(last->activation, last->slope);
    if (residual != nullptr && last->adds_last) tile.add(residual, row_step, block_step);
  }
  tile.store(out, row_step, block_step);
  if (is_copied) {
    copy_lanes(rows, lanes, out, row_step, block_step, gemm.out + offset, gemm.row_step,
               gemm.block_step);
  }
}

// Prefetches gemm.ahead, a few lines for each tile of registers: many at once stall the product.
class Prefetch {
 public:
  ALWAYS_INLINE Prefetch(const Ahead& ahead, int64_t tiles)
      : ahead_(ahead),
        lines_(ahead_.count > 0 ? div_up(ahead_.count, kLine) + 1 : 0),  // one more if not aligned
        lines_of_tile_(div_up(ahead_.rows * lines_, std::max<int64_t>(tiles, 1))) {}

  ALWAYS_INLINE void step() {
    for (int64_t left = lines_of_tile_; left > 0 && ahead_.rows > 0; --left) {
      __builtin_prefetch(ahead_.from + line_ * kLine, 0, 2);
      if (++line_ < lines_) continue;
      line_ = 0;
      --ahead_.rows;
      ahead_.from += ahead_.row_step;
    }
  }

 private:
  static constexpr int64_t kLine = 16;
  Ahead ahead_;  // what is left
  const int64_t lines_, lines_of_tile_;
  int64_t line_ = 0;
};

// All lanes of a few rows.
template <class Simd, int rows>
ALWAYS_INLINE void run_rows(const Gemm& gemm, int64_t row, Prefetch* prefetch) {
  constexpr int kBlocks = RegisterTile<Simd>::kBlocks;
  const int64_t blocks = div_up(gemm.lanes, kBlockLanes);
  int64_t block = 0;
  for (; block + kBlocks <= blocks; block += kBlocks) {
    prefetch->step();
    run_tile<Simd, rows, kBlocks>(gemm, row, block);
  }
  if constexpr (kBlocks > 1) {
    if (block < blocks) {
      prefetch->step();
      run_tile<Simd, rows, 1>(gemm, row, block);
    }
  }
}

// The same for at most `rows` rows, whose number is a variable.
template <class Simd, int rows>
ALWAYS_INLINE void run_last_rows(const Gemm& gemm, int64_t row, Prefetch* prefetch) {
  if constexpr (rows > 0) {
    if (gemm.rows - row == rows) return run_rows<Simd, rows>(gemm, row, prefetch);
    run_last_rows<Simd, rows - 1>(gemm, row, prefetch);
  }
}

#pragma GCC diagnostic pop

}  // namespace

void multiply(const Gemm& gemm) {
  run_simd([&](auto simd) INLINE_LAMBDA {
    using Simd = decltype(simd);
    constexpr int64_t kRows = RegisterTile<Simd>::kRows;
    constexpr int64_t kTileLanes = RegisterTile<Simd>::kBlocks * kBlockLanes;
    const int64_t tiles = div_up(gemm.rows, kRows) * div_up(gemm.lanes, kTileLanes);
    Prefetch prefetch(gemm.ahead, tiles);
    int64_t row = 0;
    for (; row + kRows <= gemm.rows; row += kRows) run_rows<Simd, kRows>(gemm, row, &prefetch);
    run_last_rows<Simd, kRows - 1>(gemm, row, &prefetch);
  });
}

}  // namespace gluon_roi::cpu
