// Products of a few rows with a weight, y[row, out] = sum over k of x[row, k] * weight[out, k], accumulated in float32.
//
// A file for each instruction set defines `Simd` and includes this header. Everything here has internal linkage and
// uses nothing of the standard library, so the linker cannot mix code of different instruction sets.
//
// A result has one vector of partial sums, each of every STEP-th number (with AVX-512-BF16, of every STEP-th pair) in
// the order of the row; the partial sums are added in one order. So its bits depend only on its row and output, not on
// the number of rows, the tile or the thread.

#ifndef MODELS_CPU_KERNELS_ROW_PRODUCT_H_
#define MODELS_CPU_KERNELS_ROW_PRODUCT_H_

#include "products.h"

namespace {

// Bytes of weights in the second cache of a core while all rows meet them; LARGE if the rows do not stay there: every
// chunk reads them again.
constexpr int64_t CHUNK_BYTES = 128 * 1024, LARGE_CHUNK_BYTES = 256 * 1024;
// Rows whose numbers stay in the second cache, with the smaller chunk.
constexpr int64_t CACHED_ROWS = 64;
// Prefetch distance of tiles and codes (row_product_amx.cc, unpack.h), within the weight.
constexpr int64_t AHEAD_BYTES = 24 * 1024;
// Prefetch distance of a single block of rows, to the second cache: the first cache holds the rows, and early weights
// would evict them. One core of Zen 4 computes 8 rows 2.2 times and 4 rows 1.9 times as fast as with prefetches to the
// first cache, and one row 1.3 times as fast as without prefetches (2026-11-29). Of several blocks of rows, the first
// ones prefetch the next chunk instead: 16 rows are 1.4 times as fast.
constexpr int64_t ROWS_AHEAD_BYTES = 48 * 1024;
constexpr int SECOND_CACHE = 2;
// Maximum outputs of a tile: as many streams of memory as a core's prefetchers follow.
constexpr int MAX_OUTPUTS = 8;
// The same for a single block of `rows` rows. One output is one stream, without prefetches by the tile.
template <typename Simd>
constexpr int max_outputs(int) {
  return MAX_OUTPUTS;
}
// Outputs of a tile of many rows: fewer loads per product than with more rows and fewer outputs, and whole vectors of
// totals.
constexpr int MANY_OUTPUTS = 4;
// Outputs that fill tiles of three, four, six and eight.
constexpr int64_t TILES_OUTPUTS = 24;

// Prefetches of a tile: ROWS_AHEAD_BYTES behind each of its outputs, or rows of the next chunk.
enum class Asks { OWN, NEXT };

// Two rows of a later chunk of weights, perhaps the same row.
template <typename Weight>
struct Next {
  const Weight *row, *other;
  Next after(int64_t numbers) const { return {row + numbers, other + numbers}; }
};

template <typename Simd, int ROWS, int OUTPUTS, Asks ASKS>
void tile(const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight,
          Next<typename Simd::Weight> next, int64_t inputs, float* y, int64_t outputs) {
  typename Simd::Sums sums[ROWS][OUTPUTS];
  for (int row = 0; row < ROWS; ++row)
    for (int out = 0; out < OUTPUTS; ++out) sums[row][out] = Simd::zero();
  const int64_t whole = inputs - inputs % Simd::STEP;
  for (int64_t k = 0; k < whole; k += Simd::STEP) {
    typename Simd::Numbers numbers[OUTPUTS];
    if constexpr (ASKS == Asks::NEXT) {
      __builtin_prefetch(next.row + k, 0, SECOND_CACHE);
      __builtin_prefetch(next.other + k, 0, SECOND_CACHE);
    }
    for (int out = 0; out < OUTPUTS; ++out) {
      const auto* const from = weight + out * inputs + k;
      if constexpr (ASKS == Asks::OWN && OUTPUTS > 1) {
        const auto* const ahead = reinterpret_cast<const char*>(from) + ROWS_AHEAD_BYTES;
        __builtin_prefetch(ahead, 0, SECOND_CACHE);
      }
      numbers[out] = Simd::load(from);
    }
    for (int row = 0; row < ROWS; ++row)
      for (int out = 0; out < OUTPUTS; ++out)
        sums[row][out] = Simd::add_product(sums[row][out], x + row * x_stride + k, numbers[out]);
  }
  if (whole < inputs)
    for (int out = 0; out < OUTPUTS; ++out) {
      const typename Simd::Numbers numbers = Simd::load_first(weight + out * inputs + whole, inputs - whole);
      for (int row = 0; row < ROWS; ++row)
        sums[row][out] = Simd::add_product(sums[row][out], x + row * x_stride + whole, numbers);
    }
  for (int row = 0; row < ROWS; ++row) Simd::template store_totals<OUTPUTS>(sums[row], y + row * outputs);
}

// Outputs of a tile, limited by the registers for its sums.
template <typename Simd, int ROWS, Asks ASKS>
constexpr int outputs_of_tile() {
  constexpr int SUMS = Simd::SUMS / ROWS, MOST = ASKS == Asks::OWN ? max_outputs<Simd>(ROWS) : MAX_OUTPUTS;
  return SUMS < MOST ? SUMS : MOST;
}

template <typename Simd, int ROWS, int OUTPUTS, Asks ASKS>
void last_outputs(const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight,
                  Next<typename Simd::Weight> next, int64_t inputs, float* y, int64_t outputs, int64_t left) {
  if constexpr (OUTPUTS > 0) {
    if (left == OUTPUTS)
      tile<Simd, ROWS, OUTPUTS, ASKS>(x, x_stride, weight, next, inputs, y, outputs);
    else
      last_outputs<Simd, ROWS, OUTPUTS - 1, ASKS>(x, x_stride, weight, next, inputs, y, outputs, left);
  }
}

// With every tile, its prefetched rows advance like its weights.
template <typename Simd, int ROWS, Asks ASKS>
void some_rows(const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight,
               Next<typename Simd::Weight> next, int64_t inputs, float* y, int64_t outputs, int64_t count) {
  constexpr int OUTPUTS = outputs_of_tile<Simd, ROWS, ASKS>();
  int64_t out = 0;
  for (; out + OUTPUTS <= count; out += OUTPUTS)
    tile<Simd, ROWS, OUTPUTS, ASKS>(x, x_stride, weight + out * inputs, next.after(out * inputs), inputs, y + out,
                                        outputs);
  last_outputs<Simd, ROWS, OUTPUTS - 1, ASKS>(x, x_stride, weight + out * inputs, next.after(out * inputs), inputs,
                                              y + out, outputs, count - out);
}

template <typename Simd, int ROWS, Asks ASKS>
void rows_at_once(int64_t rows, const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight,
                  Next<typename Simd::Weight> next, int64_t inputs, float* y, int64_t outputs, int64_t count) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      some_rows<Simd, ROWS, ASKS>(x, x_stride, weight, next, inputs, y, outputs, count);
    else
      rows_at_once<Simd, ROWS - 1, ASKS>(rows, x, x_stride, weight, next, inputs, y, outputs, count);
  }
}

// Outputs first to last of every row.
template <typename Simd>
void product(const Product& given, int64_t first, int64_t last) {
  constexpr int SHARE = Simd::SUMS / MANY_OUTPUTS;
  constexpr int MANY_ROWS = SHARE >= 3 && SHARE < Simd::MAX_ROWS ? SHARE : Simd::MAX_ROWS;
  const auto* x = static_cast<const typename Simd::Row*>(given.x);
  const auto* weight = static_cast<const typename Simd::Weight*>(given.weight);
  const int64_t bytes = given.inputs * static_cast<int64_t>(sizeof(typename Simd::Weight));
  const int64_t chunk_bytes = given.rows <= CACHED_ROWS ? CHUNK_BYTES : LARGE_CHUNK_BYTES;
  int64_t chunk = bytes < chunk_bytes ? chunk_bytes / (bytes ? bytes : 1) : 1;
  if (chunk > TILES_OUTPUTS) chunk -= chunk % TILES_OUTPUTS;
  const int64_t blocks = given.rows <= Simd::MAX_ROWS ? 1 : (given.rows + MANY_ROWS - 1) / MANY_ROWS;
  for (int64_t out = first; out < last; out += chunk) {
    const int64_t count = last - out < chunk ? last - out : chunk;
    const auto* const weights = weight + out * given.inputs;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t row = block * given.rows / blocks, end = (block + 1) * given.rows / blocks;
      if (only_zeros(given, row, end)) continue;
      const auto* const rows = x + row * given.x_stride;
      float* const y = given.y + row * given.outputs + out;
      // The first blocks prefetch the next chunk: two of them half of the rows each, or four a quarter.
      const bool halves = blocks < MANY_OUTPUTS;
      const auto* const ask = weights + (chunk + block % (halves ? 2 : MANY_OUTPUTS)) * given.inputs;
      const Next<typename Simd::Weight> next{ask, halves ? ask + 2 * given.inputs : ask};
      if (blocks == 1)
        rows_at_once<Simd, Simd::MAX_ROWS, Asks::OWN>(end - row, rows, given.x_stride, weights, next, given.inputs, y,
                                                      given.outputs, count);
      else
        rows_at_once<Simd, MANY_ROWS, Asks::NEXT>(end - row, rows, given.x_stride, weights, next, given.inputs, y,
                                                  given.outputs, count);
    }
  }
}

// A float32 rounded to the nearest bfloat16, ties to even, as float32 bits; NaN stays NaN.
inline uint32_t rounded_bits(uint32_t bits) {
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) & 0xFFFF0000u;
  const bool is_nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return is_nan ? (bits | 0x00400000u) & 0xFFFF0000u : rounded;
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// Copy rows in the form of `Simd`, with zeros behind each.
template <typename Simd>
void prepare(const float* x, const int64_t* order, int64_t rows, int64_t inputs, void* prepared, int64_t x_stride) {
  auto* to = static_cast<typename Simd::Row*>(prepared);
  for (int64_t row = 0; row < rows; ++row) {
    const float* const from = x + (order == nullptr ? row : order[row]) * inputs;
    for (int64_t k = 0; k < inputs; ++k) to[row * x_stride + k] = Simd::prepared(from[k]);
    for (int64_t k = inputs; k < x_stride; ++k) to[row * x_stride + k] = 0;
  }
}

template <typename Simd>
constexpr Form form() {
  return {prepare<Simd>, product<Simd>, sizeof(typename Simd::Row), Simd::STEP, TILES_OUTPUTS};
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_ROW_PRODUCT_H_
