// SPDX-License-Identifier: Apache-2.0
#include "winograd_convolution.h"

#include "../bindings/inference.h"
#include "../cpu/blocks.h"
#include "../cpu/fused.h"
#include "../cpu/gemm.h"
#include "../cpu/threads.h"

namespace gluon_roi {

using namespace cpu;

// ---- Parameters and shapes ----------------------------------------------------------------------

void WinogradConvolution::params(ParamVisitor* visit, Params* p) {
  visit->optional_positive(FIELD(num_filter));
  visit->positive_int(FIELD(dilate), 1);
  visit_epilogue(visit, &p->activation);
}

namespace {

// The products of a tile: 6 points along each axis for 4 x 4 outputs, 8 for 6 x 6.
constexpr int64_t kProductsOf4 = 6 * 6, kProductsOf6 = 8 * 8;
constexpr const char* kWeightShape = "(36 or 64, ceil(num_filter / 16), channels, 16)";

}  // namespace

void WinogradConvolution::infer(const Params& p, const View& in, Tensor* outputs,
                                int64_t max_elements) {
  check_num_filter(kName, p.num_filter);
  check_rank(kName, "data", in.data, 4, "4 dimensions (N, C, H, W)");
  check_rank(kName, "weight", in.weight, 4,
             "4 dimensions (36 or 64, ceil(num_filter / 16), C, 16)");
  const int64_t channels = in.data.ndim >= 0 ? in.data.shape[1] : -1;
  const bool is_of_6 = in.weight.ndim >= 0 && in.weight.shape[0] == kProductsOf6;
  const int64_t sizes[] = {is_of_6 ? kProductsOf6 : kProductsOf4, div_up(p.num_filter, kBlockLanes),
                           channels, kBlockLanes};
  for (int axis = 0; axis < 4; ++axis) {
    check_dimension(kName, "weight", in.weight, axis, sizes[axis], kWeightShape);
  }
  outputs[0] = infer_output(kName, p.num_filter, in.data, in.bias, in.residual, max_elements);
}

// ---- Tiles --------------------------------------------------------------------------------------

namespace {

// Tiles per panel. For each point and channel, the numbers of a panel's tiles are contiguous.
constexpr int kPanel = kPanelRows;

// How the maps are divided into tiles. A dilated convolution consists of undilated ones on dilate *
// dilate phases of the map, each of every dilate-th cell; an undilated one has a single phase.
struct Tiling {
  int64_t outputs;  // of a tile along an axis
  int64_t height, width, dilate;
  int64_t rows, columns;  // of tiles in a phase; the last ones may have no cell
  int64_t tiles;          // in all images and phases

  Tiling(int64_t outputs_of_tile, const Tensor& data, int64_t dilation)
      : outputs(outputs_of_tile),
        height(data.shape[2]),
        width(data.shape[3]),
        dilate(dilation),
        rows(div_up(div_up(height, dilate), outputs)),
        columns(div_up(div_up(width, dilate), outputs)),
        tiles(data.shape[0] * dilate * dilate * rows * columns) {}
};

// A tile. Tiles are numbered by images, then phases, rows and columns.
struct Tile {
  int64_t image, y, x;       // the first output, in cells of the phase
  int64_t phase_y, phase_x;  // the first cell of the phase
  int64_t height, width;     // of the phase

  Tile() = default;
  ALWAYS_INLINE Tile(const Tiling& tiling, int64_t number) {
    x = number % tiling.columns * tiling.outputs;
    number /= tiling.columns;
    y = number % tiling.rows * tiling.outputs;
    number /= tiling.rows;
    phase_x = number % tiling.dilate;
    number /= tiling.dilate;
    phase_y = number % tiling.dilate;
    image = number / tiling.dilate;
    height = div_up(std::max<int64_t>(tiling.height - phase_y, 0), tiling.dilate);
    width = div_up(std::max<int64_t>(tiling.width - phase_x, 0), tiling.dilate);
  }
};

// A panel of tiles, divided into runs: adjacent tiles in one row of a phase.
struct Panel {
  struct Run {
    Tile tile;  // the first
    int lane;   // its index in the panel
    int count;
  };
  Run runs[kPanel];
  int count = 0;

  // Tiles [first, first + tiles), at most a panel.
  ALWAYS_INLINE Panel(const Tiling& tiling, int64_t first, int tiles) {
    for (int lane = 0; lane < tiles; lane += runs[count++].count) {
      const Tile tile(tiling, first + lane);
      const int64_t left = tiling.columns - tile.x / tiling.outputs;
      runs[count] = {tile, lane, static_cast<int>(std::min<int64_t>(tiles - lane, left))};
    }
  }
};

// ---- Transforms ---------------------------------------------------------------------------------

// GCC warns that passing these types depends on the instruction set; all functions are inlined.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

template <int bytes>
struct Floats {
  typedef float Register __attribute__((vector_size(bytes)));
  static constexpr int kCount = bytes / sizeof(float);
};

// sum + factor * values
template <class Simd, class Register>
ALWAYS_INLINE Register plus(const Register& sum, float factor, const Register& values) {
  Register result = sum, factors;
  broadcast(factor, &factors);
  multiply_add<Simd>(values, factors, &result);
  return result;
}

// A tile of 4 x 4 outputs. The interpolation points are 0, a, -a, b, -b and infinity. All constants
// are exact in float32.
struct F4 {
  static constexpr int kTile = 4;    // outputs along an axis
  static constexpr int kPoints = 6;  // and cells of the map that it reads

  // Numbers of a map to points: v = B' d.
  template <class Simd, class Register>
  ALWAYS_INLINE static void transform_input(const Register (&d)[6], Register (&v)[6]) {
    const Register even_a = plus<Simd>(d[4], -kB2, d[2]), odd_a = plus<Simd>(d[3], -kB2, d[1]);
    const Register even_b = plus<Simd>(d[4], -kA2, d[2]), odd_b = plus<Simd>(d[3], -kA2, d[1]);
    v[0] = plus<Simd>(plus<Simd>(d[4], -(kA2 + kB2), d[2]), kA2 * kB2, d[0]);
    v[1] = plus<Simd>(even_a, kA, odd_a);
    v[2] = plus<Simd>(even_a, -kA, odd_a);
    v[3] = plus<Simd>(even_b, kB, odd_b);
    v[4] = plus<Simd>(even_b, -kB, odd_b);
    v[5] = plus<Simd>(plus<Simd>(d[5], -(kA2 + kB2), d[3]), kA2 * kB2, d[1]);
  }
  // Points to outputs: y = A' m.
  template <class Simd, class Register>
  ALWAYS_INLINE static void transform_output(const Register (&m)[6], Register (&y)[4]) {
    const Register sum_a = m[1] + m[2], sum_b = m[3] + m[4];
    const Register difference_a = m[1] - m[2], difference_b = m[3] - m[4];
    y[0] = m[0] + sum_a + sum_b;
    y[1] = plus<Simd>(difference_a * kA, kB, difference_b);
    y[2] = plus<Simd>(sum_a * kA2, kB2, sum_b);
    y[3] = plus<Simd>(plus<Simd>(m[5], kA3, difference_a), kB3, difference_b);
  }

 private:
  static constexpr float kA = 5.f / 8, kB = 3.f / 2;
  static constexpr float kA2 = kA * kA, kB2 = kB * kB, kA3 = kA2 * kA, kB3 = kB2 * kB;
};

// A tile of 6 x 6 outputs, with the points 0, 1, -1, 2, -2, 1/2, -1/2 and infinity. The numbers of
// a pair of points p and -p are a polynomial's even terms plus and minus p times its odd ones.
struct F6 {
  static constexpr int kTile = 6, kPoints = 8;

  template <class Simd, class Register>
  ALWAYS_INLINE static void transform_input(const Register (&d)[8], Register (&v)[8]) {
    v[0] = plus<Simd>(plus<Simd>(d[6] - d[0], -5.25f, d[4]), 5.25f, d[2]);
    add_and_subtract<Simd>(plus<Simd>(d[6] + d[2], -4.25f, d[4]),
                           plus<Simd>(d[5] + d[1], -4.25f, d[3]), 1.f, &v[1], &v[2]);
    add_and_subtract<Simd>(plus<Simd>(plus<Simd>(d[6], -1.25f, d[4]), .25f, d[2]),
                           plus<Simd>(plus<Simd>(d[5], -1.25f, d[3]), .25f, d[1]), 2.f, &v[3],
                           &v[4]);
    add_and_subtract<Simd>(plus<Simd>(plus<Simd>(d[6], -5.f, d[4]), 4.f, d[2]),
                           plus<Simd>(plus<Simd>(d[5], -5.f, d[3]), 4.f, d[1]), .5f, &v[5], &v[6]);
    v[7] = plus<Simd>(plus<Simd>(d[7] - d[1], -5.25f, d[5]), 5.25f, d[3]);
  }
  template <class Simd, class Register>
  ALWAYS_INLINE static void transform_output(const Register (&m)[8], Register (&y)[6]) {
    const Register sum_1 = m[1] + m[2], difference_1 = m[1] - m[2];
    const Register sum_2 = m[3] + m[4], difference_2 = m[3] - m[4];
    const Register sum_half = m[5] + m[6], difference_half = m[5] - m[6];
    y[0] = m[0] + sum_1 + (sum_2 + sum_half);
    y[1] = plus<Simd>(plus<Simd>(difference_1, 2.f, difference_2), .5f, difference_half);
    y[2] = plus<Simd>(plus<Simd>(sum_1, 4.f, sum_2), .25f, sum_half);
    y[3] = plus<Simd>(plus<Simd>(difference_1, 8.f, difference_2), .125f, difference_half);
    y[4] = plus<Simd>(plus<Simd>(sum_1, 16.f, sum_2), .0625f, sum_half);
    y[5] =
        plus<Simd>(m[7], 32.f, difference_2) + plus<Simd>(difference_1, .03125f, difference_half);
  }

 private:
  template <class Simd, class Register>
  ALWAYS_INLINE static void add_and_subtract(const Register& even, const Register& odd, float point,
                                             Register* plus_point, Register* minus_point) {
    *plus_point = plus<Simd>(even, point, odd);
    *minus_point = plus<Simd>(even, -point, odd);
  }
};

// to[j][i] = from[i][j] for i, j < 4, in each 16 bytes of the registers.
template <int bytes, class Register>
ALWAYS_INLINE void transpose(const Register (&from)[4], Register (&to)[4]) {
  using Low = typename Exchange<float, bytes>::Low;
  using High = typename Exchange<float, bytes>::High;
  Register even[2], odd[2];
  pick(from[0], from[2], &even[0], Low{});
  pick(from[0], from[2], &even[1], High{});
  pick(from[1], from[3], &odd[0], Low{});
  pick(from[1], from[3], &odd[1], High{});
  for (int i = 0; i < 2; ++i) {
    pick(even[i], odd[i], &to[2 * i], Low{});
    pick(even[i], odd[i], &to[2 * i + 1], High{});
  }
}

// ---- Maps to points -----------------------------------------------------------------------------

// Transforms the cells that a panel of tiles reads in one channel to points.
template <class F, class Simd>
class PanelTransform {
 public:
  ALWAYS_INLINE PanelTransform(const Tiling& tiling, int64_t first, int tiles)
      : tiling_(tiling), panel_(tiling, first, tiles) {}

  // maps: the channel of the first image; image_step: to that of the next. Point k of the panel's
  // tile t goes to v[k * step + t].
  ALWAYS_INLINE void run(const float* maps, int64_t image_step, float* v, int64_t step) {
    for (int i = 0; i < panel_.count; ++i) {
      const Panel::Run& run = panel_.runs[i];
      transform_rows(run, maps + run.tile.image * image_step);
      deinterleave(run);
    }
    for (int row = 0; row < kPoints; ++row) {
      transform_columns<32>(row, 0, v + row * kPoints * step, step);
      transform_columns<16>(row, 8, v + row * kPoints * step, step);
    }
  }

 private:
  static_assert(kPanel == 8 + 4, "a register of 32 bytes and one of 16");
  static constexpr int kWide = std::min(Simd::kRegisterBytes, 32);
  // Tiles of a run in a plane; de-interleaving writes up to three more.
  static constexpr int kPlane = kPanel + 4;
  static constexpr int kAhead = 2;  // channels
  static constexpr int kTile = F::kTile, kPoints = F::kPoints;
  // The cells in a row of a run, and more, because registers are whole.
  static constexpr int kStrip = (kPanel + 4) * kTile + 4;
  static_assert(kStrip > round_up(kPanel * kTile + 2, kWide / 4), "the last register");

  // strip_[row] = B' d along y, for the cells from one before the first tile to one after the last.
  ALWAYS_INLINE void transform_rows(const Panel::Run& run, const float* map) {
    const Tile& tile = run.tile;
    const int64_t begin = std::max<int64_t>(tile.x - 1, 0);
    const int64_t end = std::min<int64_t>(tile.x + run.count * kTile + 1, tile.width);
    const int before = tile.x == 0 ? 1 : 0;
    const int count = static_cast<int>(std::max<int64_t>(end - begin, 0));
    const int64_t row_step = tiling_.dilate * tiling_.width;
    const float* rows[kPoints];
    const bool is_copied = tiling_.dilate > 1 || count < kWide / 4;
    for (int i = 0; i < kPoints; ++i) {
      const int64_t y = tile.y - 1 + i;
      if (y < 0 || y >= tile.height) {
        rows[i] = zeros_;
        continue;
      }
      const float* from = map + (tile.phase_y * tiling_.width + tile.phase_x) + y * row_step +
                          begin * tiling_.dilate;
      rows[i] = from;
      // The same cells of a later channel. (Without this the transform of 64 channels took 1.5
      // times as long.)
      for (int x = 0; x < count; x += 16) {
        __builtin_prefetch(from + kAhead * tiling_.height * tiling_.width + x);
      }
      if (is_copied) {
        for (int x = 0; x < count; ++x) copy_[i][x] = from[x * tiling_.dilate];
        rows[i] = copy_[i];
      }
    }
    using Register = typename Floats<kWide>::Register;
    constexpr int kCount = Floats<kWide>::kCount;
    for (int next = 0; next < count; next += kCount) {
      // The last register overlaps the previous one. In a copy it reads beyond the cells instead.
      const int x = is_copied ? next : std::min(next, count - kCount);
      Register d[kPoints], points[kPoints];
      for (int i = 0; i < kPoints; ++i) load_register(rows[i] + x, &d[i]);
      F::template transform_input<Simd>(d, points);
      for (int i = 0; i < kPoints; ++i) store_register(strip_[i] + before + x, points[i]);
    }
    for (int i = 0; i < kPoints; ++i) {
      if (before) strip_[i][0] = 0;
      for (int x = before + count; x < run.count * kTile + 2; ++x) strip_[i][x] = 0;
    }
  }

  // planes_[row][j][lane] = column j of the tile's columns.
  ALWAYS_INLINE void deinterleave(const Panel::Run& run) {
    for (int row = 0; row < kPoints; ++row) {
      for (int i = 0; i < run.count; i += 4) {
        // Four columns of four tiles; the last columns of a tile are the first of the next one.
#pragma GCC unroll 2
        for (int j = 0; j < kPoints; j += 4) {
          typename Narrow<float>::Values tiles[4], columns[4];
          for (int t = 0; t < 4; ++t) {
            load_register(strip_[row] + (i + t) * kTile + j, &tiles[t]);
          }
          transpose<16>(tiles, columns);
          for (int k = 0; k < std::min(4, kPoints - j); ++k) {
            store_register(planes_[row][j + k] + run.lane + i, columns[k]);
          }
        }
      }
    }
  }

  // B' d along x, for `bytes` of tiles from `lane` on.
  template <int bytes>
  ALWAYS_INLINE void transform_columns(int row, int lane, float* v, int64_t step) {
    constexpr int kBytes = std::min(bytes, kWide);
    using Register = typename Floats<kBytes>::Register;
    for (int n = 0; n < bytes / kBytes; ++n, lane += Floats<kBytes>::kCount) {
      Register d[kPoints], points[kPoints];
      for (int i = 0; i < kPoints; ++i) load_register(planes_[row][i] + lane, &d[i]);
      F::template transform_input<Simd>(d, points);
      for (int i = 0; i < kPoints; ++i) store_register(v + i * step + lane, points[i]);
    }
  }

  const Tiling& tiling_;
  const Panel panel_;
  // Zeros, because lanes without a tile, and cells behind the last one, are computed as well.
  float zeros_[kStrip] = {}, copy_[kPoints][kStrip] = {};
  float strip_[kPoints][kStrip] = {};
  float planes_[kPoints][kPoints][kPlane] = {};
};

// ---- Points to maps -----------------------------------------------------------------------------

// Where a block of 16 outputs is written, and what is added.
struct Target {
  const float* bias;
  float* out;  // the first output of the first image
  int64_t cells, image_step;
  int lanes;
  const Epilogue& last;  // but for the bias
};

// Transforms the products of a panel of tiles and a block of outputs, and writes the outputs.
template <class F, class Simd>
class PanelOutput {
 public:
  ALWAYS_INLINE PanelOutput(const Tiling& tiling, int64_t first, int tiles)
      : tiling_(tiling), panel_(tiling, first, tiles) {}

  // m[k * step + t * 16 + o]: point k of output o of the panel's tile t.
  ALWAYS_INLINE void run(const float* m, int64_t step, const Target& target) {
    for (int i = 0; i < panel_.count; ++i) {
      const Panel::Run& run = panel_.runs[i];
      const int rows = static_cast<int>(std::min<int64_t>(kTile, run.tile.height - run.tile.y));
      const int columns =
          static_cast<int>(std::min<int64_t>(run.count * kTile, run.tile.width - run.tile.x));
      if (rows <= 0 || columns <= 0) continue;
      const Tile& tile = run.tile;
      const int64_t row_step = tiling_.dilate * tiling_.width;
      const int64_t in_image =
          tile.phase_y * tiling_.width + tile.phase_x + tile.y * row_step + tile.x * tiling_.dilate;
      for (int o = 0; o < target.lanes; o += kCount) {
        const int lanes = std::min(kCount, target.lanes - o);
        const int64_t offset = tile.image * target.image_step + in_image + o * target.cells;
        constexpr int kLine = 16;
        const int lines = rows * static_cast<int>(div_up(columns * tiling_.dilate, kLine));
        int line = 0;  // of those that these outputs go to, a few for each tile
        for (int t = 0; t < run.count; ++t) {
          for (; line < lines * (t + 1) / run.count; ++line) {
            prefetch_lanes(lanes,
                           target.out + offset + line % rows * row_step + line / rows * kLine,
                           target.cells);
          }
          transform_tile(m + (run.lane + t) * kBlockLanes + o, step, target.bias + o, t);
        }
        for (int lane = 0; lane < lanes; ++lane) {
          for (int row = 0; row < rows; ++row) {
            write_row(strip_[lane][row], columns, offset + lane * target.cells + row * row_step,
                      target);
          }
        }
      }
    }
  }

 private:
  static constexpr int kBytes = std::min(Simd::kRegisterBytes, 32);
  using Register = typename Floats<kBytes>::Register;
  static constexpr int kCount = Floats<kBytes>::kCount;
  static constexpr int kTile = F::kTile, kPoints = F::kPoints;
  // A row of a run. Columns are written four at a time, so that the last tile may write two more.
  static constexpr int kStrip = kPanel * kTile + 4;

  // strip_[o][row]: the columns of a run's tile t.
  ALWAYS_INLINE void transform_tile(const float* m, int64_t step, const float* biases, int t) {
    Register points[kTile][kPoints], bias;
    for (int j = 0; j < kPoints; ++j) {
      Register column[kPoints], y[kTile];
      for (int i = 0; i < kPoints; ++i) load_register(m + (i * kPoints + j) * step, &column[i]);
      F::template transform_output<Simd>(column, y);
      for (int i = 0; i < kTile; ++i) points[i][j] = y[i];
    }
    load_register(biases, &bias);
    for (int i = 0; i < kTile; ++i) {
      Register values[kTile];
      F::template transform_output<Simd>(points[i], values);
      for (Register& value : values) value += bias;
      // What lies behind the tile's last column is written again with the next tile.
      for (int j = 0; j < kTile; j += 4) {
        Register four[4];
        for (int k = 0; k < 4; ++k) four[k] = values[std::min(j + k, kTile - 1)];
        store_columns(four, &strip_[0][i][t * kTile + j]);
      }
    }
  }

  // Writes four columns of all outputs of a register.
  ALWAYS_INLINE static void store_columns(const Register (&columns)[4], float* to) {
    // outputs[i]: the columns of output i in the first 16 bytes, those of output i + 4 in the next.
    Register outputs[4];
    transpose<kBytes>(columns, outputs);
    constexpr int64_t kStep = kTile * kStrip;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      typename Narrow<float>::Values quads[kBytes / 16];
      memcpy(quads, &outputs[i], kBytes);
#pragma GCC unroll 2
      for (int n = 0; n < kBytes / 16; ++n) store_register(to + (4 * n + i) * kStep, quads[n]);
    }
  }

  // Writes a row of a run's outputs at an offset.
  ALWAYS_INLINE void write_row(const float* from, int columns, int64_t offset,
                               const Target& target) {
    if (tiling_.dilate > 1 || columns < kCount) {
      for (int x = 0; x < columns; ++x) {
        const int64_t place = offset + x * tiling_.dilate;
        float value = from[x];
        finish(target.last, place, target.last.slope, &value);
        target.out[place] = value;
      }
      return;
    }
    Register slope;
    broadcast(target.last.slope, &slope);
    for (int next = 0; next < columns; next += kCount) {
      const int x = std::min(next, columns - kCount);  // the last one overlaps the previous one
      Register values;
      load_register(from + x, &values);
      finish(target.last, offset + x, slope, &values);
      store_register(target.out + offset + x, values);
    }
  }

  const Tiling& tiling_;
  const Panel panel_;
  float strip_[kCount][kTile][kStrip];
};

#pragma GCC diagnostic pop

// ---- A call -------------------------------------------------------------------------------------

// The channels of a task of the input transform.
constexpr int64_t kTaskChannels = 16;
// The products of a chain. The rounding of long chains is most of the error: with this, a layer of
// 256 channels has half of it, in the same time.
constexpr int64_t kMaxChain = 64;
// The blocks of outputs of a product, a tile of registers with AVX-512.
constexpr int64_t kTileBlocks = 2;

// The distance of the arrays of consecutive points, in elements: an odd number of cache lines,
// because so many arrays a power of two apart would evict each other.
int64_t point_step(int64_t elements) {
  constexpr int64_t kLine = 16;
  return (div_up(elements, kLine) | 1) * kLine;
}

// The division of a call. Tiles are processed in chunks: all channels of a chunk are transformed,
// then each task computes the products of some outputs and transforms them.
struct Plan {
  int64_t chunk;   // tiles, a multiple of the panel
  int64_t blocks;  // of outputs of a task
  int64_t parts;   // into which the panels of a chunk are divided, if there are many threads

  Plan(int64_t points, const Tiling& tiling, int64_t channels, int64_t all_blocks) {
    // The transformed maps of a chunk stay in the third-level cache, of which other programs use a
    // part, and the products of two blocks in the second-level cache. (When each step was completed
    // for all outputs, maps of 256 channels took 1.05 to 1.1 times as long.)
    constexpr int64_t kMapFloats = 5 << 17;
    // Chunks of fewer tiles would read the weights too often. Then the maps are read from memory,
    // and a task computes all outputs, as far as the products do not need more than kMaxProducts.
    constexpr int64_t kMinTiles = 64, kTilesFromMemory = 264, kMaxProducts = 1 << 22;
    const int64_t fitting = kMapFloats / (points * std::max<int64_t>(channels, 1));
    const bool fits = fitting >= std::min(kMinTiles, tiling.tiles);
    const int64_t chunks = div_up(tiling.tiles, fits ? fitting : kTilesFromMemory);
    chunk = round_up(div_up(tiling.tiles, chunks), kPanel);
    const int64_t most = fits ? kTileBlocks : kMaxProducts / (points * chunk * kBlockLanes);
    const int64_t groups = div_up(all_blocks, std::max(most, kTileBlocks));
    blocks = round_up(div_up(all_blocks, groups), kTileBlocks);
    const int64_t threads = max_threads();
    parts = std::min(fits ? div_up(2 * threads, groups) : threads, chunk / kPanel);
    if (threads == 1) parts = 1;
  }
};

template <class F>
void convolve(const WinogradConvolution::Params& p, const WinogradConvolution::View& in,
              const Tensor& out_tensor) {
  constexpr int64_t kProducts = F::kPoints * F::kPoints;
  const Tiling tiling(F::kTile, in.data, p.dilate);
  const int64_t channels = in.data.shape[1], filters = p.num_filter;
  const int64_t blocks = div_up(filters, kBlockLanes), cells = tiling.height * tiling.width;
  const float* const data = data_of<const float>(in.data);
  const float* const weight = data_of<const float>(in.weight);
  const float* const bias = data_of<const float>(in.bias);
  const float* const residual = data_of<const float>(in.residual);  // null if it is absent
  float* const out = data_of<float>(out_tensor);

  const Plan plan(kProducts, tiling, channels, blocks);
  const int64_t v_step = point_step(plan.chunk * channels);
  float* const v = scratch<float>(kProducts * v_step);

  for (int64_t first = 0; first < tiling.tiles; first += plan.chunk) {
    const int64_t tiles = std::min(plan.chunk, tiling.tiles - first);
    const int64_t panels = div_up(tiles, kPanel), channel_groups = div_up(channels, kTaskChannels);
    parallel_for(panels * channel_groups, kProducts * tiles * channels, [&](int64_t task) {
      const int64_t panel = task / channel_groups, c_begin = task % channel_groups * kTaskChannels;
      const int64_t c_end = std::min(c_begin + kTaskChannels, channels);
      const int count = static_cast<int>(std::min<int64_t>(kPanel, tiles - panel * kPanel));
      run_simd([&](auto simd) INLINE_LAMBDA {
        PanelTransform<F, decltype(simd)> transform(tiling, first + panel * kPanel, count);
        for (int64_t c = c_begin; c < c_end; ++c) {
          transform.run(data + c * cells, channels * cells, v + (panel * channels + c) * kPanel,
                        v_step);
        }
      });
    });

    const int64_t part = div_up(panels, plan.parts), parts = div_up(panels, part);
    const int64_t work = kProducts * (tiles + channels) * blocks * kBlockLanes;
    parallel_for(div_up(blocks, plan.blocks) * parts, work, [&](int64_t task) {
      const int64_t begin = task / parts * plan.blocks, panel = task % parts * part;
      const int64_t end = std::min(begin + plan.blocks, blocks);
      const int64_t first_tile = panel * kPanel;  // of the chunk
      const int64_t count = std::min(part * kPanel, tiles - first_tile);
      const int64_t m_block = part * kPanel * kBlockLanes;
      const int64_t m_step = point_step(plan.blocks * m_block);
      float* const m = scratch<float>(kProducts * m_step, Scratch::kSecond);
      for (int64_t point = 0; point < kProducts; ++point) {
        for (int64_t block = begin; block < end; block += kTileBlocks) {
          const int64_t tile_blocks = std::min(kTileBlocks, end - block);
          Gemm gemm{};
          gemm.rows = count;
          gemm.lanes = tile_blocks * kBlockLanes;
          gemm.depth = channels;
          gemm.chain = kMaxChain;
          gemm.a = v + point * v_step + panel * channels * kPanel;
          gemm.a_step = channels * kPanel;
          gemm.b = weight + (point * blocks + block) * channels * kBlockLanes;
          gemm.b_step = channels * kBlockLanes;
          gemm.out = m + point * m_step + (block - begin) * m_block;
          gemm.row_step = kBlockLanes;
          gemm.block_step = m_block;
          // The weights of the next product.
          const int64_t next = block + kTileBlocks < end ? kTileBlocks : blocks + begin - block;
          gemm.ahead = {gemm.b + next * gemm.b_step, 1, 0, tile_blocks * gemm.b_step};
          multiply(gemm);
        }
      }
      for (int64_t block = begin; block < end; ++block) {
        const int lanes =
            static_cast<int>(std::min<int64_t>(kBlockLanes, filters - block * kBlockLanes));
        float biases[kBlockLanes] = {};
        std::copy_n(bias + block * kBlockLanes, lanes, biases);
        const int64_t offset = block * kBlockLanes * cells;
        Epilogue last(p.activation);
        last.residual = residual == nullptr ? nullptr : residual + offset;
        const Target target{biases, out + offset, cells, filters * cells, lanes, last};
        run_simd([&](auto simd) INLINE_LAMBDA {
          for (int64_t tile = 0; tile < count; tile += kPanel) {
            const int panel_tiles = static_cast<int>(std::min<int64_t>(kPanel, count - tile));
            PanelOutput<F, decltype(simd)>(tiling, first + first_tile + tile, panel_tiles)
                .run(m + (block - begin) * m_block + tile * kBlockLanes, m_step, target);
          }
        });
      }
    });
  }
}

}  // namespace

void WinogradConvolution::forward(const Params& p, const View& in, const Tensor& out) {
  if (in.weight.shape[0] == kProductsOf6) return convolve<F6>(p, in, out);
  convolve<F4>(p, in, out);
}

}  // namespace gluon_roi

static const gluon_roi::InferenceOperator<gluon_roi::WinogradConvolution> winograd_convolution;
