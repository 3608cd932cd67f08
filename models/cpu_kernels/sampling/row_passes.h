// Passes over the logits of one row.
//
// A file for each instruction set defines `STEP`, the numbers of a vector, and includes this header, as
// row_products/row_product.h explains. The bits of a result do not depend on `STEP`: sums run over 16 columns in every
// form.

#ifndef MODELS_CPU_KERNELS_ROW_PASSES_H_
#define MODELS_CPU_KERNELS_ROW_PASSES_H_

#include "sample_rows.h"

namespace {

#define INLINE inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(4 * STEP)));
typedef uint32_t Words __attribute__((vector_size(4 * STEP)));
typedef int32_t Masks __attribute__((vector_size(4 * STEP)));

constexpr int64_t COLUMNS = 16;
static_assert(GROUP_TOKENS % COLUMNS == 0 && COLUMNS % STEP == 0, "groups are whole columns, columns whole vectors");

template <typename To, typename From>
INLINE To bits_as(From from) {
  To to;
  static_assert(sizeof to == sizeof from, "the same bits");
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
INLINE Floats load(const float* from) {
  Floats x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
template <typename Vector, typename Number>
INLINE void store(Number* to, Vector x) {
  __builtin_memcpy(to, &x, sizeof x);
}
INLINE Floats larger(Floats a, Floats b) { return a > b ? a : b; }

// Tokens of a group, with minus infinity behind the row's last token.
INLINE const float* whole_group(const float* logits, int64_t count, float* spare) {
  if (count == GROUP_TOKENS) return logits;
  for (int64_t k = 0; k < GROUP_TOKENS; ++k) spare[k] = k < count ? logits[k] : -__builtin_inff();
  return spare;
}
INLINE int64_t tokens_of(int64_t first, int64_t vocab) {
  return vocab - first < GROUP_TOKENS ? vocab - first : GROUP_TOKENS;
}

inline bool group_maxima(const float* logits, int64_t vocab, float* maxima) {
  alignas(64) float spare[GROUP_TOKENS];
  Masks numbers = Masks{} - 1;
  for (int64_t first = 0, group = 0; first < vocab; first += GROUP_TOKENS, ++group) {
    const float* x = whole_group(logits + first, tokens_of(first, vocab), spare);
    Floats highest = load(x);
    numbers &= highest == highest;
    for (int64_t k = STEP; k < GROUP_TOKENS; k += STEP) {
      const Floats next = load(x + k);
      numbers &= next == next;
      highest = larger(highest, next);
    }
    float most = highest[0];
    for (int k = 1; k < STEP; ++k) most = highest[k] > most ? highest[k] : most;
    maxima[group] = most;
  }
  bool nan = false;
  for (int k = 0; k < STEP; ++k) nan |= numbers[k] == 0;
  return nan;
}

// exp(x) for x from -87 to 0, as in `conv_steps/conv_step.h`.
INLINE Floats exponential(Floats x) {
  const Floats shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats sum = r * 1.98756915e-4f + 1.39819995e-3f;
  sum = sum * r + 8.33345191e-3f;
  sum = sum * r + 4.16657959e-2f;
  sum = sum * r + 1.66666655e-1f;
  sum = sum * r + 5.00000012e-1f;
  sum = (sum * (r * r) + r) + 1.0f;
  return sum * bits_as<Floats>((bits_as<Words>(shifted) << 23) + (127u << 23));
}

// exp(x / temperature - highest), 1 for the highest logit, even if infinite; terms below exp(-87) are zero.
INLINE Floats power_of(Floats x, float temperature, float highest) {
  const Floats zero{}, least = zero - 87.0f, scaled = x / temperature, distance = scaled - highest;
  const Floats inside = distance > least ? distance : least, power = exponential(inside < zero ? inside : zero);
  return distance > least ? power : scaled == highest ? zero + 1.0f : zero;
}

inline void exponentials(const float* logits, int64_t count, float temperature, float highest, float* powers) {
  alignas(64) float spare[GROUP_TOKENS], made[GROUP_TOKENS];
  const float* x = whole_group(logits, count, spare);
  float* const to = count == GROUP_TOKENS ? powers : made;
  for (int64_t k = 0; k < GROUP_TOKENS; k += STEP) store(to + k, power_of(load(x + k), temperature, highest));
  for (int64_t k = 0; to == made && k < count; ++k) powers[k] = made[k];
}

inline double sum_of_columns(const Floats* sums) {
  alignas(64) float columns[COLUMNS];
  for (int64_t k = 0; k < COLUMNS / STEP; ++k) store(columns + k * STEP, sums[k]);
  double total = 0.0;
  for (int64_t k = 0; k < COLUMNS; ++k) total += columns[k];
  return total;
}

// Groups whose weights are summed in float32 before they are added in float64.
constexpr int64_t SUMMED_GROUPS = 8;

inline Weights weights(const float* logits, const float* maxima, int64_t vocab, float temperature, float highest,
                       const float* thresholds) {
  const float farthest = __builtin_logf(LEAST_WEIGHT / static_cast<float>(vocab));
  alignas(64) float spare[GROUP_TOKENS];
  Weights totals = {};
  for (int64_t start = 0; start < vocab; start += SUMMED_GROUPS * GROUP_TOKENS) {
    const int64_t end = vocab - start < SUMMED_GROUPS * GROUP_TOKENS ? vocab : start + SUMMED_GROUPS * GROUP_TOKENS;
    Floats all[COLUMNS / STEP] = {}, above[THRESHOLDS][COLUMNS / STEP] = {};
    for (int64_t first = start; first < end; first += GROUP_TOKENS) {
      if (maxima[first / GROUP_TOKENS] / temperature - highest < farthest) continue;
      const float* x = whole_group(logits + first, tokens_of(first, vocab), spare);
      for (int64_t k = 0; k < GROUP_TOKENS; k += STEP) {
        const Floats next = load(x + k), scaled = next / temperature, power = power_of(next, temperature, highest);
        all[k % COLUMNS / STEP] += power;
        for (int64_t j = 0; j < THRESHOLDS; ++j)
          above[j][k % COLUMNS / STEP] += scaled > thresholds[j] ? power : Floats{};
      }
    }
    totals.all += sum_of_columns(all);
    for (int64_t j = 0; j < THRESHOLDS; ++j) totals.above[j] += sum_of_columns(above[j]);
  }
  return totals;
}

template <int BITS>
INLINE Words turned(Words x) {
  return (x << BITS) | (x >> (32 - BITS));
}
template <int A, int B, int C, int D>
INLINE void four_rounds(Words& x, Words& y) {
  x += y, y = turned<A>(y) ^ x;
  x += y, y = turned<B>(y) ^ x;
  x += y, y = turned<C>(y) ^ x;
  x += y, y = turned<D>(y) ^ x;
}

// threefry2x32 with 20 rounds (Salmon et al., 2011), as in jax.random with jax_threefry_partitionable.
INLINE Words threefry(uint32_t a, uint32_t b, Words counter) {
  const uint32_t c = a ^ b ^ 0x1BD11BDAu;
  Words x = Words{} + a, y = counter + b;
  four_rounds<13, 15, 26, 6>(x, y);
  x += b, y += c + 1u;
  four_rounds<17, 29, 16, 24>(x, y);
  x += c, y += a + 2u;
  four_rounds<13, 15, 26, 6>(x, y);
  x += a, y += b + 3u;
  four_rounds<17, 29, 16, 24>(x, y);
  x += b, y += c + 4u;
  four_rounds<13, 15, 26, 6>(x, y);
  x += c, y += a + 5u;
  return x ^ y;
}

inline void random_words(const uint32_t* key, int64_t first, int64_t count, uint32_t* words) {
  Words counter;
  for (int k = 0; k < STEP; ++k) counter[k] = static_cast<uint32_t>(first + k);
  for (int64_t k = 0; k < count; k += STEP, counter += STEP) {
    const Words made = threefry(key[0], key[1], counter);
    if (k + STEP <= count)
      store(words + k, made);
    else
      for (int64_t left = 0; left < count - k; ++left) words[k + left] = made[left];
  }
}

constexpr RowPasses row_passes = {group_maxima, weights, exponentials, random_words};

}  // namespace

#endif  // MODELS_CPU_KERNELS_ROW_PASSES_H_
