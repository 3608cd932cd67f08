// Sixteen words at a time with AVX-512: the first ones of a vector, and rows made columns.

#ifndef MODELS_CPU_KERNELS_AVX512_WORDS_H_
#define MODELS_CPU_KERNELS_AVX512_WORDS_H_

#include <immintrin.h>
#include <stdint.h>

namespace {

// Words of a vector.
constexpr int WORDS = 16;

inline __mmask16 first_of(int64_t count) {
  return static_cast<__mmask16>(count >= WORDS ? 0xFFFFu : count <= 0 ? 0u : (1u << count) - 1u);
}

// Sources of the words of two vectors that exchange halves of 2, 4, 8 and 16 words; from 16 on, words of the second.
struct Places {
  alignas(64) int32_t first[4][WORDS], second[4][WORDS];
  constexpr Places() : first(), second() {
    for (int stage = 0; stage < 4; ++stage)
      for (int word = 0; word < WORDS; ++word) {
        const int half = 1 << stage;
        first[stage][word] = word & half ? WORDS + word - half : word;
        second[stage][word] = word & half ? WORDS + word : word + half;
      }
  }
};
constexpr Places PLACES;

// 16 vectors of 16 words, rows to columns.
inline void transpose(__m512i* rows) {
  for (int stage = 0; stage < 4; ++stage) {
    const __m512i first = _mm512_load_si512(PLACES.first[stage]), second = _mm512_load_si512(PLACES.second[stage]);
    for (int row = 0; row < WORDS; ++row) {
      const int other = row | 1 << stage;
      if (other == row) continue;
      const __m512i one = rows[row], two = rows[other];
      rows[row] = _mm512_permutex2var_epi32(one, first, two);
      rows[other] = _mm512_permutex2var_epi32(one, second, two);
    }
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_AVX512_WORDS_H_
