// Scales of groups in float32, sixteen at a time.

#ifndef MODELS_CPU_KERNELS_AVX512_SCALES_H_
#define MODELS_CPU_KERNELS_AVX512_SCALES_H_

#include <immintrin.h>
#include <stdint.h>

namespace {

struct WidenedScales {
  static constexpr bool ANY_SIZE = true;

  template <typename Convert>
  static void widen(const uint16_t* from, int64_t count, float* to, const Convert& convert) {
    int64_t one = 0;
    for (; one + 16 <= count; one += 16)
      _mm512_storeu_ps(to + one, convert(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + one))));
    const auto rest = static_cast<__mmask16>((1u << (count - one)) - 1u);
    if (rest) _mm512_mask_storeu_ps(to + one, rest, convert(_mm256_maskz_loadu_epi16(rest, from + one)));
  }
  static void widen_bfloat16(const uint16_t* from, int64_t count, float* to) {
    widen(from, count, to, [](__m256i narrow) {
      return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
    });
  }
  // The conversion keeps denormal float16.
  static void widen_halves(const uint16_t* from, int64_t count, float* to) {
    widen(from, count, to, [](__m256i narrow) { return _mm512_cvtph_ps(narrow); });
  }
};

}  // namespace

#endif  // MODELS_CPU_KERNELS_AVX512_SCALES_H_
