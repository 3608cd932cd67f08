// Products of a few rows with a weight, y[row, out] = sum over k of x[row, k] * weight[out, k], accumulated in float32.
//
// One file for each instruction set defines `Simd` and includes this one: everything here has internal linkage, and
// nothing of the standard library is used, so that the linker cannot take code of one instruction set for another's.
//
// A result has one vector of partial sums, each of every STEP-th number (with AVX-512-BF16, of every STEP-th pair) in the
// order of the row, and the partial sums are added in one order. So its bits depend on its row and its output alone:
// neither on the number of rows, nor on the tile that computes it, nor on the thread.

#ifndef MODELS_CPU_KERNELS_ROW_PRODUCT_H_
#define MODELS_CPU_KERNELS_ROW_PRODUCT_H_

#include "products.h"

namespace {

// Bytes of weights that stay in the second cache of a core while all rows meet them.
constexpr int64_t CHUNK_BYTES = 128 * 1024;
// Distance at which weights are asked for: those of the next tiles, which follow in memory. Without, a core that computes
// eight rows reads 15 GB/s instead of 40 (Zen 5, 2026-11-26). Behind the end of a weight nothing is read.
constexpr int64_t AHEAD_BYTES = 24 * 1024;
// Bytes of a load that reads a whole line of the cache. One row of such loads leaves the core's own prefetchers enough room:
// two cores read 66 GB/s with AVX-512-BF16, and 56 where the weights are asked for as well. With the shorter loads of AVX2
// one row reads 73, and 42 without asking.
constexpr int64_t LINE_BYTES = 64;
// Outputs of a tile at most: as many streams of memory as a core's prefetchers follow.
constexpr int MAX_OUTPUTS = 8;
// Outputs that fill tiles of three and of eight.
constexpr int64_t TILES_OUTPUTS = 24;

template <typename Simd, int ROWS, int OUTPUTS>
void tile(const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight, int64_t inputs, float* y,
          int64_t outputs) {
  typename Simd::Sums sums[ROWS][OUTPUTS];
  for (int row = 0; row < ROWS; ++row)
    for (int out = 0; out < OUTPUTS; ++out) sums[row][out] = Simd::zero();
  constexpr bool asks = ROWS > 1 || Simd::STEP * sizeof(typename Simd::Weight) < LINE_BYTES;
  const int64_t whole = inputs - inputs % Simd::STEP;
  for (int64_t k = 0; k < whole; k += Simd::STEP) {
    typename Simd::Numbers numbers[OUTPUTS];
    for (int out = 0; out < OUTPUTS; ++out) {
      const auto* const from = weight + out * inputs + k;
      if constexpr (asks) __builtin_prefetch(reinterpret_cast<const char*>(from) + AHEAD_BYTES);
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

// Outputs of a tile with so many rows: as many sums as there are registers for.
template <typename Simd, int ROWS>
constexpr int outputs_of_tile() {
  return Simd::SUMS / ROWS < MAX_OUTPUTS ? Simd::SUMS / ROWS : MAX_OUTPUTS;
}

template <typename Simd, int ROWS, int OUTPUTS>
void last_outputs(const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight, int64_t inputs,
                  float* y, int64_t outputs, int64_t left) {
  if constexpr (OUTPUTS > 0) {
    if (left == OUTPUTS)
      tile<Simd, ROWS, OUTPUTS>(x, x_stride, weight, inputs, y, outputs);
    else
      last_outputs<Simd, ROWS, OUTPUTS - 1>(x, x_stride, weight, inputs, y, outputs, left);
  }
}

template <typename Simd, int ROWS>
void some_rows(const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight, int64_t inputs,
               float* y, int64_t outputs, int64_t count) {
  constexpr int OUTPUTS = outputs_of_tile<Simd, ROWS>();
  int64_t out = 0;
  for (; out + OUTPUTS <= count; out += OUTPUTS)
    tile<Simd, ROWS, OUTPUTS>(x, x_stride, weight + out * inputs, inputs, y + out, outputs);
  last_outputs<Simd, ROWS, OUTPUTS - 1>(x, x_stride, weight + out * inputs, inputs, y + out, outputs, count - out);
}

template <typename Simd, int ROWS>
void rows_at_once(int64_t rows, const typename Simd::Row* x, int64_t x_stride, const typename Simd::Weight* weight,
                  int64_t inputs, float* y, int64_t outputs, int64_t count) {
  if constexpr (ROWS > 0) {
    if (rows == ROWS)
      some_rows<Simd, ROWS>(x, x_stride, weight, inputs, y, outputs, count);
    else
      rows_at_once<Simd, ROWS - 1>(rows, x, x_stride, weight, inputs, y, outputs, count);
  }
}

// Outputs first to last of every row.
template <typename Simd>
void product(const Product& given, int64_t first, int64_t last) {
  const auto* x = static_cast<const typename Simd::Row*>(given.x);
  const auto* weight = static_cast<const typename Simd::Weight*>(given.weight);
  const int64_t bytes = given.inputs * static_cast<int64_t>(sizeof(typename Simd::Weight));
  const int64_t chunk = bytes < CHUNK_BYTES ? CHUNK_BYTES / (bytes ? bytes : 1) : 1;
  const int64_t blocks = (given.rows + Simd::MAX_ROWS - 1) / Simd::MAX_ROWS;
  for (int64_t out = first; out < last; out += chunk) {
    const int64_t count = last - out < chunk ? last - out : chunk;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t row = block * given.rows / blocks, end = (block + 1) * given.rows / blocks;
      if (only_zeros(given, row, end)) continue;
      rows_at_once<Simd, Simd::MAX_ROWS>(end - row, x + row * given.x_stride, given.x_stride,
                                         weight + out * given.inputs, given.inputs,
                                         given.y + row * given.outputs + out, given.outputs, count);
    }
  }
}

// A float32 rounded to the nearest bfloat16, ties to even, as the bits of a float32; a NaN stays one.
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

// Copies rows in the form that `Simd` reads, with zeros behind each.
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
