// Products of many rows with AVX-512-BF16: a vector has a pair of numbers of each of 16 rows, and meets one pair of an
// output's numbers at a time, read from the plain weight. Included only if a compiler has these instructions.
//
// A result is the total of 16 partial sums, in the order of row_product.h: its bits depend on its row alone. Four sums
// are in registers at a time, so numbers of a weight are read four times, and rows are prepared in this order. The
// totals of vectors need no sums across a vector: 32 rows of 768 numbers take 0.94 of the time of tiles.

#ifndef MODELS_CPU_KERNELS_ROW_VECTORS_H_
#define MODELS_CPU_KERNELS_ROW_VECTORS_H_

#include "codes/avx512bf16_codes.h"
#include "shared/avx512_words.h"

namespace {

static_assert(WORDS == ROW_TILE);
// Numbers of a row that meet their weights together: a pair for each partial sum.
constexpr int64_t NUMBERS = 2 * WORDS;
constexpr int64_t NUMBERS_BYTES = NUMBERS * static_cast<int64_t>(sizeof(uint16_t));
// Partial sums in registers at a time, a quarter, and their places within it: two that are added first, then the other
// two. Quarters are added likewise: first and third, second and fourth, and both (avx512_vectors.h).
constexpr int QUARTER = 4, PLACES_OF_SUMS[QUARTER] = {0, 2, 1, 3}, QUARTERS[] = {0, 2, 1, 3};
// Outputs of a tile with one vector of rows and with two, limited by the registers.
constexpr int OUTPUTS_OF_VECTOR = 6, OUTPUTS_OF_TWO = 3;
// Outputs written at a time: whole lines of y.
constexpr int64_t WRITTEN_OUTPUTS = 48;
// Bytes of rows that stay in the second cache of a core while they meet all outputs of a thread.
constexpr int64_t CACHED_BYTES = 192 * 1024;

// Pairs of 32 numbers of a row from place `k` on, rounded to bfloat16, with zeros behind the row.
inline __m512i pairs_of(const float* row, int64_t k, int64_t inputs) {
  const __m512 low = _mm512_maskz_loadu_ps(first_of(inputs - k), row + k);
  const __m512 high = _mm512_maskz_loadu_ps(first_of(inputs - k - WORDS), row + k + WORDS);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// 16 rows at a time: for each quarter of the partial sums, the pairs of all rows for its first sum, then for its
// second, and so on. Tiles compute the remaining rows, which follow one another.
void prepare_vectors(const float* x, const int64_t* order, int64_t rows, int64_t inputs, void* prepared, int64_t x_stride) {
  auto* to = static_cast<uint32_t*>(prepared);
  const int64_t quarter = x_stride / 2 / QUARTER;  // pairs of a row
  const auto row = [&](int64_t place) { return x + (order == nullptr ? place : order[place]) * inputs; };
  const int64_t whole = rows - rows % WORDS;
  for (int64_t first = 0; first < whole; first += WORDS, to += (WORDS / QUARTER - 1) * quarter * WORDS)
    for (int64_t k = 0; k < x_stride; k += NUMBERS, to += QUARTER * WORDS) {
      __m512i pairs[WORDS];
      for (int place = 0; place < WORDS; ++place) pairs[place] = pairs_of(row(first + place), k, inputs);
      transpose(pairs);
      for (int part = 0; part < WORDS / QUARTER; ++part)
        for (int sum = 0; sum < QUARTER; ++sum)
          _mm512_storeu_si512(to + (part * quarter + sum) * WORDS, pairs[QUARTERS[part] * QUARTER + PLACES_OF_SUMS[sum]]);
    }
  for (int64_t place = whole; place < rows; ++place)
    for (int64_t k = 0; k < x_stride; k += NUMBERS, to += WORDS)
      _mm512_storeu_si512(to, pairs_of(row(place), k, inputs));
}

// The rows of a vector, and their results.
struct RowVector {
  const uint16_t* x;
  float* y;
};

// Totals of outputs, a vector of rows each.
using Totals = __m512[WRITTEN_OUTPUTS];

// Totals of OUTPUTS outputs from `out` on, for VECTORS vectors of rows; prefetches as many outputs from `ahead` on.
template <int OUTPUTS, int VECTORS>
__attribute__((noinline)) void vector_tile(const RowVector* vectors, const Product& given, int64_t out, int64_t ahead,
                                           Totals* totals, int64_t place) {
  constexpr int PARTS = WORDS / QUARTER;
  const auto* const weight = static_cast<const uint16_t*>(given.weight);
  const int64_t row_bytes = given.inputs * static_cast<int64_t>(sizeof(uint16_t)), whole = given.inputs / NUMBERS;
  const auto* const numbers = reinterpret_cast<const char*>(weight + out * given.inputs);
  const auto* const asked = reinterpret_cast<const char*>(weight + ahead * given.inputs);
  // Numbers that do not fill a vector, with zeros behind them.
  const int64_t rest = given.inputs % NUMBERS;
  alignas(64) uint16_t last_numbers[OUTPUTS][NUMBERS];
  for (int one = 0; rest > 0 && one < OUTPUTS; ++one)
    _mm512_store_si512(last_numbers[one], reinterpret_cast<__m512i>(Bfloat16::load_first(
                                              weight + (out + one) * given.inputs + whole * NUMBERS, rest)));
  const uint16_t* x[VECTORS];
  for (int vector = 0; vector < VECTORS; ++vector) x[vector] = vectors[vector].x;
  __m512 before[2][VECTORS][OUTPUTS];  // totals of the first quarter of two, and of the first half
  for (int part = 0; part < PARTS; ++part) {
    __m512 sums[QUARTER][VECTORS][OUTPUTS];
    for (int sum = 0; sum < QUARTER; ++sum)
      for (int vector = 0; vector < VECTORS; ++vector)
        for (int one = 0; one < OUTPUTS; ++one) sums[sum][vector][one] = _mm512_setzero_ps();
    const auto add_products = [&](const char* from, int64_t stride) __attribute__((always_inline)) {
      for (int sum = 0; sum < QUARTER; ++sum) {
        __m512bh rows[VECTORS];
        for (int vector = 0; vector < VECTORS; ++vector) rows[vector] = Bfloat16::load(x[vector] + sum * NUMBERS);
        for (int one = 0; one < OUTPUTS; ++one) {
          int32_t pair;
          __builtin_memcpy(&pair, from + one * stride + PLACES_OF_SUMS[sum] * 4, sizeof pair);
          for (int vector = 0; vector < VECTORS; ++vector)
            sums[sum][vector][one] =
                _mm512_dpbf16_ps(sums[sum][vector][one], rows[vector], as_numbers(_mm512_set1_epi32(pair)));
        }
      }
      for (int vector = 0; vector < VECTORS; ++vector) x[vector] += QUARTER * NUMBERS;
    };
    const int64_t own = QUARTERS[part] * QUARTER * 4;
    const char* next = asked + (part < OUTPUTS ? part : 0) * row_bytes;
    const char* next_too = asked + (part + PARTS < OUTPUTS ? part + PARTS : 0) * row_bytes;
    for (int64_t k = 0; k < whole * NUMBERS_BYTES; k += NUMBERS_BYTES) {
      __builtin_prefetch(next + k, 0, SECOND_CACHE);
      if constexpr (OUTPUTS > PARTS) __builtin_prefetch(next_too + k, 0, SECOND_CACHE);
      add_products(numbers + own + k, row_bytes);
    }
    if (rest > 0) add_products(reinterpret_cast<const char*>(last_numbers) + own, NUMBERS_BYTES);
    for (int vector = 0; vector < VECTORS; ++vector)
      for (int one = 0; one < OUTPUTS; ++one) {
        const auto sum = [&](int number) { return sums[number][vector][one]; };
        __m512 total = _mm512_add_ps(_mm512_add_ps(sum(0), sum(1)), _mm512_add_ps(sum(2), sum(3)));
        if (part % 2 == 1) total = _mm512_add_ps(before[0][vector][one], total);
        if (part == PARTS - 1)
          totals[vector][place + one] = _mm512_add_ps(before[1][vector][one], total);
        else
          before[part % 2][vector][one] = total;
      }
  }
}

// Write the totals of `count` outputs to y.
inline void write_totals(const __m512* totals, int64_t count, const RowVector& vector, int64_t out, int64_t outputs) {
  for (int64_t first = 0; first < count; first += WORDS) {
    __m512i columns[WORDS] = {};
    for (int64_t one = 0; one < WORDS && first + one < count; ++one) columns[one] = _mm512_castps_si512(totals[first + one]);
    transpose(columns);
    for (int row = 0; row < WORDS; ++row)
      _mm512_mask_storeu_epi32(vector.y + row * outputs + out + first, first_of(count - first), columns[row]);
  }
}

// Outputs `first` to before `last`, at most as many as are written at a time, of VECTORS vectors. Prefetches the
// outputs `ahead` later, up to `end`, and lines of y before their writes.
template <int VECTORS>
void outputs_of_vectors(const RowVector* vectors, const Product& given, int64_t first, int64_t last, int64_t ahead,
                        int64_t end) {
  constexpr int OUTPUTS = VECTORS == 1 ? OUTPUTS_OF_VECTOR : OUTPUTS_OF_TWO;
  Totals totals[VECTORS];
  for (int64_t out = first, row = 0; out < last;) {
    const int64_t count = last - out < OUTPUTS ? 1 : OUTPUTS;
    for (int64_t more = row + VECTORS * WORDS * count / WRITTEN_OUTPUTS; row < more; ++row)
      for (int64_t line = first; line < last; line += WORDS)
        __builtin_prefetch(vectors[row / WORDS].y + row % WORDS * given.outputs + line, 1, SECOND_CACHE);
    const int64_t asked = out + ahead + count <= end ? out + ahead : out;
    if (count == 1)
      vector_tile<1, VECTORS>(vectors, given, out, asked, totals, out - first);
    else
      vector_tile<OUTPUTS, VECTORS>(vectors, given, out, asked, totals, out - first);
    out += count;
  }
  for (int vector = 0; vector < VECTORS; ++vector)
    write_totals(totals[vector], last - first, vectors[vector], first, given.outputs);
}

// Outputs `first` to before `last` of rows that fill vectors, without vectors of zeros.
void outputs_of_rows(const Product& given, int64_t first, int64_t last) {
  // Rows that meet a weight at once prefetch the next tile; more rows prefetch the outputs that they all meet next.
  const bool at_once = given.rows <= 2 * WORDS;
  for (int64_t out = first; out < last; out += WRITTEN_OUTPUTS) {
    const int64_t end = last - out < WRITTEN_OUTPUTS ? last : out + WRITTEN_OUTPUTS;
    RowVector vectors[2];
    int count = 0;
    for (int64_t row = 0; row < given.rows; row += WORDS) {
      if (only_zeros(given, row, row + WORDS)) continue;
      vectors[count++] = {static_cast<const uint16_t*>(given.x) + row * given.x_stride, given.y + row * given.outputs};
      if (count < 2) continue;
      outputs_of_vectors<2>(vectors, given, out, end, at_once ? OUTPUTS_OF_TWO : WRITTEN_OUTPUTS, last);
      count = 0;
    }
    if (count == 1)
      outputs_of_vectors<1>(vectors, given, out, end, at_once ? OUTPUTS_OF_VECTOR : WRITTEN_OUTPUTS, last);
  }
}

// Outputs `first` to before `last` of every row.
void product_of_vectors(const Product& given, int64_t first, int64_t last) {
  const int64_t row_bytes = given.x_stride * static_cast<int64_t>(sizeof(uint16_t)), two = 2 * WORDS;
  const int64_t cached = row_bytes > 0 ? CACHED_BYTES / row_bytes / two * two : 0, most = cached > two ? cached : two;
  for (int64_t row = 0; row < given.rows;) {
    const int64_t left = given.rows - row, whole = left - left % WORDS;
    Product some = given;
    some.x = static_cast<const uint16_t*>(given.x) + row * given.x_stride;
    some.y += row * given.outputs;
    if (some.zeros != nullptr) some.zeros += row;
    some.rows = whole == 0 ? left : whole < most ? whole : most;
    if (whole == 0)
      product<Bfloat16>(some, first, last);
    else
      outputs_of_rows(some, first, last);
    row += some.rows;
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_ROW_VECTORS_H_
