// Products of few rows with packed weights, straight from the codes: numbers are made in registers, and all rows of a tile
// meet them before the next ones are made.
//
// A sum is that of the row product with the unpacked weight (row_product.h), in the same order, and so are its bits. One
// file for each instruction set has a `Simd`, as for the row product, and `Codes` for each kind of codes:
//   BITS of a code; STEP, the numbers that are made at a time; GROUPS of a row that make one `Group`;
//   takes(weight, columns of a group);
//   Group: what the numbers of a group have in common; start(weight, out, place of its scale), numbers(codes, vectors).

#ifndef MODELS_CPU_KERNELS_CODE_PRODUCT_H_
#define MODELS_CPU_KERNELS_CODE_PRODUCT_H_

#include "unpack.h"

namespace {

// Outputs of a tile with so many rows: their sums, numbers and scales have to fit into the registers.
template <typename Simd>
constexpr int outputs_of_codes(int rows) {
  const int sums = (rows <= 4 ? Simd::SUMS * 5 / 6 : Simd::SUMS) / rows;
  return sums < MAX_OUTPUTS ? sums : MAX_OUTPUTS;
}

// With KEPT, the numbers are written to `kept` as well, one row of the weight behind the other.
template <typename Simd, typename Codes, int ROWS, bool KEPT>
void tile_of_codes(const Packed& given, const typename Simd::Row* x, int64_t x_stride, int64_t first, float* y,
                   int64_t outputs, uint16_t* kept) {
  constexpr int OUTPUTS = outputs_of_codes<Simd>(ROWS), VECTORS = Codes::STEP / Simd::STEP;
  constexpr int BYTES = Codes::STEP * Codes::BITS / 8;
  typename Simd::Sums sums[ROWS][OUTPUTS];
  for (int row = 0; row < ROWS; ++row)
    for (int out = 0; out < OUTPUTS; ++out) sums[row][out] = Simd::zero();
  const int64_t width = given.inputs / given.groups * Codes::GROUPS, stored = given.inputs * Codes::BITS / 8;
  const uint8_t* codes = given.codes + first * stored;
  for (int64_t group = 0; group < given.groups; group += Codes::GROUPS) {
    typename Codes::Group own[OUTPUTS];
    for (int out = 0; out < OUTPUTS; ++out) own[out].start(given, first + out, (first + out) * given.groups + group);
    for (int64_t k = 0; k < width; k += Codes::STEP, x += Codes::STEP, codes += BYTES) {
      typename Simd::Numbers numbers[OUTPUTS][VECTORS];
      for (int out = 0; out < OUTPUTS; ++out) {
        __builtin_prefetch(codes + out * stored + CODES_AHEAD);
        own[out].numbers(codes + out * stored, numbers[out]);
        for (int one = 0; KEPT && one < VECTORS; ++one)
          Simd::keep(kept + out * given.inputs + one * Simd::STEP, numbers[out][one]);
      }
      for (int one = 0; one < VECTORS; ++one)
        for (int row = 0; row < ROWS; ++row)
          for (int out = 0; out < OUTPUTS; ++out)
            sums[row][out] = Simd::add_product(sums[row][out], x + row * x_stride + one * Simd::STEP, numbers[out][one]);
      kept += KEPT ? Codes::STEP : 0;
    }
  }
  for (int row = 0; row < ROWS; ++row) Simd::template store_totals<OUTPUTS>(sums[row], y + row * outputs);
}

// The outputs first to last of ROWS rows; a last tile that is not full computes outputs of the one before again.
template <typename Simd, typename Codes, int ROWS, bool KEPT>
void rows_of_codes(const Packed& given, const Product& all, int64_t first, int64_t last, uint16_t* kept) {
  constexpr int OUTPUTS = outputs_of_codes<Simd>(ROWS);
  const auto* const x = static_cast<const typename Simd::Row*>(all.x);
  for (int64_t next = first; next < last; next += OUTPUTS) {
    const int64_t out = next + OUTPUTS <= last ? next : last - OUTPUTS;
    uint16_t* const to = KEPT ? kept + (out - first) * given.inputs : nullptr;
    tile_of_codes<Simd, Codes, ROWS, KEPT>(given, x, all.x_stride, out, all.y + out, all.outputs, to);
  }
}

template <typename Simd, typename Codes, int ROWS = Simd::MAX_ROWS>
bool product_of_codes(const Packed& given, const Product& all, int64_t first, int64_t last, uint16_t* kept) {
  if constexpr (ROWS > 0) {
    if (all.rows < ROWS) return product_of_codes<Simd, Codes, ROWS - 1>(given, all, first, last, kept);
    if (last - first < outputs_of_codes<Simd>(ROWS) || !Codes::takes(given, given.inputs / given.groups)) return false;
    if (ROWS == Simd::MAX_ROWS && kept != nullptr)
      rows_of_codes<Simd, Codes, ROWS, ROWS == Simd::MAX_ROWS>(given, all, first, last, kept);
    else
      rows_of_codes<Simd, Codes, ROWS, false>(given, all, first, last, kept);
    return true;
  }
  return false;
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_CODE_PRODUCT_H_
