// Tokens of a short convolution with its activation, the window of each lane in place.
//
// A file for each instruction set defines `STEP`, the numbers of a vector, and includes this header, as
// row_products/row_product.h explains.
//
// Each channel is computed by itself, by products, sums and one quotient, each rounded: its bits depend neither on
// other lanes, the thread nor the instruction set.

#ifndef MODELS_CPU_KERNELS_CONV_STEP_H_
#define MODELS_CPU_KERNELS_CONV_STEP_H_

#include "conv_steps.h"

namespace {

#define INLINE inline __attribute__((always_inline))

typedef float Floats __attribute__((vector_size(4 * STEP)));
typedef uint32_t Bits __attribute__((vector_size(4 * STEP)));
typedef uint16_t Halves __attribute__((vector_size(2 * STEP)));

INLINE Bits bits_of(Floats x) {
  Bits bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}
INLINE Floats of_bits(Bits bits) {
  Floats x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
INLINE Floats load(const float* from) {
  Floats x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
INLINE Floats load(const Bfloat16* from) {
  Halves halves;
  __builtin_memcpy(&halves, from, sizeof halves);
  return of_bits(__builtin_convertvector(halves, Bits) << 16);
}
INLINE void store(float* to, Floats x) { __builtin_memcpy(to, &x, sizeof x); }
// To the nearest number, ties to even; NaN stays NaN.
INLINE void store(Bfloat16* to, Floats x) {
  const Bits bits = bits_of(x), nearest = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Bits kept = x == x ? nearest : (bits >> 16) | 0x40;
  const Halves halves = __builtin_convertvector(kept, Halves);
  __builtin_memcpy(to, &halves, sizeof halves);
}

// Whole vectors, or the first `count` numbers of one.
template <bool WHOLE, typename T>
INLINE Floats read(const T* from, int64_t count) {
  if (WHOLE) return load(from);
  T numbers[STEP] = {};
  for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
  return load(numbers);
}
template <bool WHOLE, typename T>
INLINE void write(T* to, Floats x, int64_t count) {
  if (WHOLE) return store(to, x);
  T numbers[STEP];
  store(numbers, x);
  for (int64_t k = 0; k < count; ++k) to[k] = numbers[k];
}

// exp(x) for x from -87 to 87: 2^n exp(r), with n the nearest integer to x / log(2), in the last bits of the sum with
// 1.5 * 2^23. log(2) is the sum of two numbers; n times the first is exact.
INLINE Floats exponential(Floats x) {
  const Floats shifted = x * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Floats sum = r * 1.98756915e-4f + 1.39819995e-3f;
  sum = sum * r + 8.33345191e-3f;
  sum = sum * r + 4.16657959e-2f;
  sum = sum * r + 1.66666655e-1f;
  sum = sum * r + 5.00000012e-1f;
  sum = (sum * (r * r) + r) + 1.0f;
  return sum * of_bits((bits_of(shifted) << 23) + (127u << 23));
}

// x / (1 + exp(-x)), as in models.ops.float32.
INLINE Floats silu(Floats x) {
  const Floats zero{}, most = zero + 87.0f, least = zero - 80.0f;
  Floats at = x > least ? x : least;
  at = at < most ? at : most;
  return x / (exponential(-at) + 1.0f);
}

// Prefetch windows and taps of the next block, within the buffers: uncached ones take 3.9 microseconds instead of 5.9
// (one lane of 3072 channels, Zen 5, 2026-11-26).
template <int WRITTEN>
INLINE void ask_ahead(const void* at, int64_t bytes) {
  __builtin_prefetch(static_cast<const char*>(at) + bytes, WRITTEN);
}

constexpr int64_t PREFETCHED_TOKENS = 16;

INLINE float number(float x) { return x; }
INLINE float number(Bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float found;
  __builtin_memcpy(&found, &bits, sizeof found);
  return found;
}

// Taps of each channel -> channels of each tap.
template <int TAPS, typename T>
void turn(const T* taps, int64_t count, float (*to)[BLOCK_CHANNELS]) {
  const int64_t bytes = count * TAPS * static_cast<int64_t>(sizeof(T));
  for (int64_t at = 0; at < bytes; at += 64) ask_ahead<0>(taps, bytes + at);
  for (int64_t channel = 0; channel < count; ++channel)
    for (int tap = 0; tap < TAPS; ++tap) to[tap][channel] = number(taps[channel * TAPS + tap]);
}

// All tokens of a lane, for a vector of channels from `at` on; `taps` and arrays by row begin there, too.
template <int TAPS, bool WHOLE, typename T>
INLINE void convolve_vector(const ConvStep& step, int64_t lane, int64_t at, const float* taps, T* state, int64_t count) {
  const int64_t length = step.lengths[lane], channels = step.channels;
  const Floats zero{};
  Floats tap[TAPS], window[TAPS];
  for (int k = 0; k < TAPS; ++k) tap[k] = read<true>(taps + k * BLOCK_CHANNELS, 0);
  for (int k = 0; k + 1 < TAPS; ++k)
    ask_ahead<1>(state + k * channels, BLOCK_CHANNELS * static_cast<int64_t>(sizeof(T)));
  for (int k = 0; k + 1 < TAPS; ++k)
    window[k] = step.fresh[lane] ? zero : read<WHOLE>(state + k * channels, count);
  const Floats bias = step.bias ? read<WHOLE>(step.bias + at, count) : zero;
  const float* x = step.x + lane * step.tokens * channels + at;
  float* out = step.out + lane * step.tokens * channels + at;
  for (int64_t token = 0; token < length; ++token, x += channels, out += channels) {
    // Rows are often whole pages apart: processors do not prefetch across pages.
    if (token + PREFETCHED_TOKENS < length) {
      ask_ahead<0>(x + PREFETCHED_TOKENS * channels, 0);
      ask_ahead<1>(out + PREFETCHED_TOKENS * channels, 0);
    }
    window[TAPS - 1] = read<WHOLE>(x, count);
    Floats y = window[0] * tap[0];
    for (int k = 1; k < TAPS; ++k) y = y + window[k] * tap[k];
    if (step.bias) y = y + bias;
    write<WHOLE>(out, step.activated ? silu(y) : y, count);
    for (int k = 0; k + 1 < TAPS; ++k) window[k] = window[k + 1];
  }
  for (int64_t token = length; token < step.tokens; ++token, out += channels) write<WHOLE>(out, zero, count);
  if (step.keeps_state) return;
  for (int k = 0; k + 1 < TAPS; ++k) write<WHOLE>(state + k * channels, window[k], count);
}

template <int TAPS, typename T>
void convolve_lane(const ConvStep& step, int64_t lane, int64_t first, int64_t last, const float* taps) {
  const int64_t row = step.slots ? step.slots[lane] : lane, count = last - first, whole = count - count % STEP;
  T* const state = static_cast<T*>(step.state) + row * (TAPS - 1) * step.channels + first;
  for (int64_t k = 0; k < whole; k += STEP)
    convolve_vector<TAPS, true>(step, lane, first + k, taps + k, state + k, STEP);
  if (whole < count) convolve_vector<TAPS, false>(step, lane, first + whole, taps + whole, state + whole, count - whole);
}

// Outputs of a lane without tokens; its row is neither read nor written.
inline void rest(const ConvStep& step, int64_t lane, int64_t first, int64_t last) {
  for (int64_t token = 0; token < step.tokens; ++token)
    for (int64_t k = first; k < last; ++k) step.out[(lane * step.tokens + token) * step.channels + k] = 0.0f;
}

template <int TAPS>
void convolve_taps(const ConvStep& step, int64_t first_lane, int64_t last_lane, int64_t first, int64_t last) {
  alignas(64) float taps[TAPS][BLOCK_CHANNELS] = {};
  if (step.narrow_taps)
    turn<TAPS>(static_cast<const Bfloat16*>(step.taps) + first * TAPS, last - first, taps);
  else
    turn<TAPS>(static_cast<const float*>(step.taps) + first * TAPS, last - first, taps);
  for (int64_t lane = first_lane; lane < last_lane; ++lane) {
    if (step.lengths[lane] == 0)
      rest(step, lane, first, last);
    else if (step.narrow_state)
      convolve_lane<TAPS, Bfloat16>(step, lane, first, last, taps[0]);
    else
      convolve_lane<TAPS, float>(step, lane, first, last, taps[0]);
  }
}

inline void convolve(const ConvStep& step, int64_t first_lane, int64_t last_lane, int64_t first, int64_t last) {
  static_assert(MIN_TAPS == 2 && MAX_TAPS == 8, "each number of taps has its code");
  constexpr Convolve OF_TAPS[] = {convolve_taps<2>, convolve_taps<3>, convolve_taps<4>, convolve_taps<5>,
                                  convolve_taps<6>, convolve_taps<7>, convolve_taps<8>};
  OF_TAPS[step.kernel - MIN_TAPS](step, first_lane, last_lane, first, last);
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_CONV_STEP_H_
