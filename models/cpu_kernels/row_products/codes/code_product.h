// Products of few rows with packed weights, directly from codes: numbers are made in registers, and meet all rows of a
// tile before the next numbers.
//
// A sum has the order, and so the bits, of the row product with the unpacked weight (row_product.h). A file for each
// instruction set has a `Simd`, as for the row product, and `Codes` for each kind of codes:
//   BITS of a code; STEP, numbers made at a time; GROUPS of a row in a `Group`;
//   takes(weight, columns of a group): whether these are its codes;
//   Group: common data of a group's numbers; start(weight, scales, out of the tile, place of its scale) and
//   numbers(codes, vectors).

#ifndef MODELS_CPU_KERNELS_CODE_PRODUCT_H_
#define MODELS_CPU_KERNELS_CODE_PRODUCT_H_

#include "unpack.h"

namespace {

// As `max_outputs`, of a tile of codes.
template <typename Simd>
constexpr int max_code_outputs(int) {
  return MAX_OUTPUTS;
}

// Outputs of a tile, limited by the registers for sums, numbers and scales.
template <typename Simd>
constexpr int outputs_of_codes(int rows) {
  const int sums = (rows <= 4 ? Simd::SUMS * 5 / 6 : Simd::SUMS) / rows, most = max_code_outputs<Simd>(rows);
  return sums < most ? sums : most;
}

// Maximum groups of a row, 32768 columns in groups of 16: the scales of a tile are on the stack.
constexpr int64_t MAX_GROUPS = 2048;

alignas(64) constexpr float INTEGERS[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// Prefetch distance of a tile's codes. One core of Zen 4 multiplies one row by int8 codes 1.8 times as fast as with 12 KB to
// the first cache, and four rows 1.3 times (2026-11-29).
constexpr int64_t TILE_AHEAD = 24 * 1024;
// Prefetch distance of scales, fewer than codes.
constexpr int64_t SCALES_AHEAD = CODES_AHEAD / 4;

// Scales of a tile's outputs in float32, in the order of `Packed`, and zero points or offsets; null as there.
struct Scales {
  const float *scale, *zero, *whole;
};

// Scales widened one by one.
struct PlainScales {
  static constexpr bool ANY_SIZE = true;  // of scales; otherwise only `are_ordinary` scales

  static void widen_bfloat16(const uint16_t* from, int64_t count, float* to) {
    for (int64_t one = 0; one < count; ++one) to[one] = float_of(static_cast<uint32_t>(from[one]) << 16);
  }
  static void widen_halves(const uint16_t* from, int64_t count, float* to) {
    for (int64_t one = 0; one < count; ++one) to[one] = float_of_half(from[one]);
  }
};

// Scales of `count` groups from place `at` on, widened if stored narrow.
template <typename Simd>
Scales widened(const Packed& given, int64_t out, int64_t at, int64_t count, float* scale, float* zero) {
  const auto ahead = [&](const void* from, int64_t bytes) {
    const auto* const first = static_cast<const char*>(from) + SCALES_AHEAD;
    for (int64_t byte = 0; byte < bytes; byte += 64) __builtin_prefetch(first + byte);
  };
  Scales found{scale, given.zero == nullptr ? nullptr : zero, given.whole == nullptr ? nullptr : given.whole + out};
  if (given.scale_dtype == ScaleDtype::float32) {
    found.scale = static_cast<const float*>(given.scale) + at;
    ahead(found.scale, count * 4);
  } else {
    const auto* const narrow = static_cast<const uint16_t*>(given.scale) + at;
    ahead(narrow, count * 2);
    if (given.scale_dtype == ScaleDtype::bfloat16)
      Simd::widen_bfloat16(narrow, count, scale);
    else
      Simd::widen_halves(narrow, count, scale);
  }
  if (given.zero != nullptr)
    for (int64_t one = 0; one < count; ++one) zero[one] = zero_of(given, at + one);
  if (given.offset != nullptr) ahead(found.zero = given.offset + at, count * 4);
  return found;
}

// Whether all sizes are zero, or from 2^-50 to 2^50: then float32 holds a number with two of them as factors, and every
// intermediate number (wide_codes.h).
inline bool are_ordinary(const float* sizes, int64_t count) {
  constexpr uint32_t LEAST = 77u << 24, MOST = 177u << 24;
  uint32_t least = ~0u, most = 0;
  for (int64_t one = 0; sizes != nullptr && one < count; ++one) {
    const uint32_t size = bits_of(sizes[one]) << 1;  // without the sign
    most = size > most ? size : most;
    least = size - 1 < least ? size - 1 : least;  // zero is the largest
  }
  return most <= MOST && least >= LEAST - 1;
}

inline bool are_ordinary(const Scales& scales, int64_t outputs, int64_t groups) {
  return are_ordinary(scales.scale, outputs * groups) && are_ordinary(scales.zero, outputs * groups) &&
         are_ordinary(scales.whole, outputs);
}

// Not inlined: compilers would keep values common to all tiles in registers that the sums need.
template <typename Simd, typename Codes, int ROWS>
__attribute__((noinline)) void tile_of_codes(const Packed& given, const Scales& scales, const typename Simd::Row* x,
                                             int64_t x_stride, int64_t first, float* y, int64_t outputs) {
  constexpr int OUTPUTS = outputs_of_codes<Simd>(ROWS), VECTORS = Codes::STEP / Simd::STEP;
  constexpr int BYTES = Codes::STEP * Codes::BITS / 8;
  typename Simd::Sums sums[ROWS][OUTPUTS];
  for (int row = 0; row < ROWS; ++row)
    for (int out = 0; out < OUTPUTS; ++out) sums[row][out] = Simd::zero();
  const int64_t width = given.inputs / given.groups * Codes::GROUPS, stored = given.inputs * Codes::BITS / 8;
  const uint8_t* codes = given.codes + first * stored;
  for (int64_t group = 0; group < given.groups; group += Codes::GROUPS) {
    typename Codes::Group own[OUTPUTS];
    for (int out = 0; out < OUTPUTS; ++out) own[out].start(given, scales, out, out * given.groups + group);
    for (int64_t k = 0; k < width; k += Codes::STEP, x += Codes::STEP, codes += BYTES) {
      for (int out = 0; out < OUTPUTS; ++out) {
        typename Simd::Numbers numbers[VECTORS];
        __builtin_prefetch(codes + out * stored + TILE_AHEAD, 0, SECOND_CACHE);
        own[out].numbers(codes + out * stored, numbers);
        for (int one = 0; one < VECTORS; ++one)
          for (int row = 0; row < ROWS; ++row)
            sums[row][out] = Simd::add_product(sums[row][out], x + row * x_stride + one * Simd::STEP, numbers[one]);
      }
    }
  }
  for (int row = 0; row < ROWS; ++row) Simd::template store_totals<OUTPUTS>(sums[row], y + row * outputs);
}

// Outputs `first` to before `last` of ROWS rows; false if `Simd` does not support the size of a scale. A partial last
// tile recomputes outputs of the previous tile.
template <typename Simd, typename Codes, int ROWS>
bool rows_of_codes(const Packed& given, const Product& all, int64_t first, int64_t last) {
  constexpr int OUTPUTS = outputs_of_codes<Simd>(ROWS);
  const auto* const x = static_cast<const typename Simd::Row*>(all.x);
  alignas(64) float scale[OUTPUTS * MAX_GROUPS], zero[OUTPUTS * MAX_GROUPS];
  for (int64_t next = first; next < last; next += OUTPUTS) {
    const int64_t out = next + OUTPUTS <= last ? next : last - OUTPUTS;
    const Scales scales = widened<Simd>(given, out, out * given.groups, OUTPUTS * given.groups, scale, zero);
    if (!Simd::ANY_SIZE && !are_ordinary(scales, OUTPUTS, given.groups)) return false;
    tile_of_codes<Simd, Codes, ROWS>(given, scales, x, all.x_stride, out, all.y + out, all.outputs);
  }
  return true;
}

template <typename Simd, typename Codes, int ROWS = Simd::MAX_ROWS>
bool product_of_codes(const Packed& given, const Product& all, int64_t first, int64_t last) {
  if constexpr (ROWS > 0) {
    if (all.rows < ROWS) return product_of_codes<Simd, Codes, ROWS - 1>(given, all, first, last);
    if (last - first < outputs_of_codes<Simd>(ROWS) || given.groups > MAX_GROUPS) return false;
    if (!Codes::takes(given, given.inputs / given.groups)) return false;
    return rows_of_codes<Simd, Codes, ROWS>(given, all, first, last);
  }
  return false;
}

// Write the numbers of `columns` columns of a group, with `next` numbers from one vector to the next. CACHE is 3 for
// codes prefetched to the first cache, 2 for the second.
template <typename Simd, typename Codes, int CACHE = 3>
inline void write_numbers(const typename Codes::Group& own, const uint8_t* codes, int64_t columns, uint16_t* to, int64_t next) {
  constexpr int VECTORS = Codes::STEP / Simd::STEP, BYTES = Codes::STEP * Codes::BITS / 8;
  for (int64_t k = 0; k < columns; k += Codes::STEP, codes += BYTES) {
    typename Simd::Numbers numbers[VECTORS];
    __builtin_prefetch(codes + CODES_AHEAD, 0, CACHE);
    own.numbers(codes, numbers);
    for (int one = 0; one < VECTORS; ++one, to += next) Simd::keep(to, numbers[one]);
  }
}

// Write the numbers of rows `first` to before `last`, row after row; false without code for a weight, with numbers
// perhaps half written.
template <typename Simd, typename Codes>
bool unpack_codes(const Packed& given, int64_t first, int64_t last, uint16_t* to) {
  if (given.groups > MAX_GROUPS || !Codes::takes(given, given.inputs / given.groups)) return false;
  const int64_t width = given.inputs / given.groups * Codes::GROUPS;
  const uint8_t* codes = given.codes + first * code_bytes(given);
  alignas(64) float scale[MAX_GROUPS], zero[MAX_GROUPS];
  for (int64_t out = first; out < last; ++out) {
    const Scales scales = widened<Simd>(given, out, out * given.groups, given.groups, scale, zero);
    if (!Simd::ANY_SIZE && !are_ordinary(scales, 1, given.groups)) return false;
    for (int64_t group = 0; group < given.groups; group += Codes::GROUPS) {
      typename Codes::Group own;
      own.start(given, scales, 0, group);
      write_numbers<Simd, Codes>(own, codes, width, to, Simd::STEP);
      codes += width * Codes::BITS / 8;
      to += width;
    }
  }
  return true;
}

// By the first of `Codes` that supports a weight.
template <typename Simd, typename... Codes>
struct ByCodes {
  static bool product(const Packed& given, const Product& all, int64_t first, int64_t last) {
    return (product_of_codes<Simd, Codes>(given, all, first, last) || ...);
  }
  static void unpack(const Packed& given, int64_t first, int64_t last, uint16_t* to) {
    if (!(unpack_codes<Simd, Codes>(given, first, last, to) || ...)) unpack_rows(given, first, last, to);
  }
};

}  // namespace

#endif  // MODELS_CPU_KERNELS_CODE_PRODUCT_H_
