// Products of many rows with AVX-512-BF16: a vector has a pair of numbers of each of 16 rows, and meets one pair of an
// output's numbers at a time, which is read from the weight as it is stored. Included where a compiler has these
// instructions, and there alone.
//
// A result is the total of 16 partial sums, in the order of row_product.h: its bits are those of its row alone. Four of the
// sums are in registers at a time, so that numbers of a weight are read four times, and rows are prepared in this order. The
// totals of vectors need no sums across a vector: of 768 inputs 32 rows take 0.93 of the time of tiles.

#ifndef MODELS_CPU_KERNELS_ROW_VECTORS_H_
#define MODELS_CPU_KERNELS_ROW_VECTORS_H_

#include "codes/avx512bf16_codes.h"
#include "shared/avx512_words.h"

namespace {

static_assert(WORDS == ROW_TILE);
// Numbers of a row that meet their weights together: a pair for each partial sum.
constexpr int64_t NUMBERS = 2 * WORDS;
constexpr int64_t NUMBERS_BYTES = NUMBERS * static_cast<int64_t>(sizeof(uint16_t));
// Partial sums in registers at a time, a quarter of all, and their places within a quarter: two that are added first, and
// the other two. Then the quarters are added: the first and the third, the second and the fourth, and both (avx512_vectors.h).
constexpr int QUARTER = 4, PLACES_OF_SUMS[QUARTER] = {0, 2, 1, 3}, QUARTERS[] = {0, 2, 1, 3};
// Outputs of a tile with one vector of rows and with two, as many as there are registers for.
constexpr int OUTPUTS_OF_VECTOR = 6, OUTPUTS_OF_TWO = 3;
// Outputs whose results are written at a time: whole lines of y.
constexpr int64_t WRITTEN_OUTPUTS = 48;

// The pairs of 32 numbers of a row from place `k` on, rounded to bfloat16, with zeros behind the row.
inline __m512i pairs_of(const float* row, int64_t k, int64_t inputs) {
  const __m512 low = _mm512_maskz_loadu_ps(first_of(inputs - k), row + k);
  const __m512 high = _mm512_maskz_loadu_ps(first_of(inputs - k - WORDS), row + k + WORDS);
  return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
}

// 16 rows at a time: of each quarter of the partial sums, the pairs of all rows for the first of its sums, then for the
// second, and so on. Rows that do not fill a vector are computed by tiles, and lie one behind the other.
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

// Totals of OUTPUTS outputs from `out` on, for VECTORS vectors of rows. The same number of outputs from `ahead` on is asked
// for.
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

// Write the totals of `count` outputs to their places in y.
inline void write_totals(const __m512* totals, int64_t count, const RowVector& vector, int64_t out, int64_t outputs) {
  for (int64_t first = 0; first < count; first += WORDS) {
    __m512i columns[WORDS] = {};
    for (int64_t one = 0; one < WORDS && first + one < count; ++one) columns[one] = _mm512_castps_si512(totals[first + one]);
    transpose(columns);
    for (int row = 0; row < WORDS; ++row)
      _mm512_mask_storeu_epi32(vector.y + row * outputs + out + first, first_of(count - first), columns[row]);
  }
}

// Outputs `first` to before `last`, as many as are written at a time, of VECTORS vectors. Those that are computed `ahead`
// outputs later, where that is before `end`, are asked for, and lines of y before they are written.
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

// Outputs first to last of every row. Vectors of rows of zeros are left out.
void product_of_vectors(const Product& given, int64_t first, int64_t last) {
  const auto* const x = static_cast<const uint16_t*>(given.x);
  const int64_t whole = given.rows - given.rows % WORDS;
  Product rest = given;
  rest.x = x + whole * given.x_stride;
  rest.y += whole * given.outputs;
  rest.rows -= whole;
  if (rest.zeros != nullptr) rest.zeros += whole;
  if (whole == 0) return product<Bfloat16>(rest, first, last);
  // Rows that meet a weight at once ask for the next tile, and more of them for the outputs that they all meet next.
  const bool at_once = whole <= 2 * WORDS;
  for (int64_t out = first; out < last; out += WRITTEN_OUTPUTS) {
    const int64_t end = last - out < WRITTEN_OUTPUTS ? last : out + WRITTEN_OUTPUTS;
    RowVector vectors[2];
    int count = 0;
    for (int64_t row = 0; row < whole; row += WORDS) {
      if (only_zeros(given, row, row + WORDS)) continue;
      vectors[count++] = {x + row * given.x_stride, given.y + row * given.outputs};
      if (count < 2) continue;
      outputs_of_vectors<2>(vectors, given, out, end, at_once ? OUTPUTS_OF_TWO : WRITTEN_OUTPUTS, last);
      count = 0;
    }
    if (count == 1)
      outputs_of_vectors<1>(vectors, given, out, end, at_once ? OUTPUTS_OF_VECTOR : WRITTEN_OUTPUTS, last);
    if (rest.rows > 0) product<Bfloat16>(rest, out, end);
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_ROW_VECTORS_H_
