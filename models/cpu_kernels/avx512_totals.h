// Totals of vectors of sixteen partial sums, in one order.

#ifndef MODELS_CPU_KERNELS_AVX512_TOTALS_H_
#define MODELS_CPU_KERNELS_AVX512_TOTALS_H_

#include <immintrin.h>

namespace {

inline __m128 four_sums(__m512 sums) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sums),
                                     _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(sums), 1)));
  return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

// Four totals at a time by a transpose; one or two or three that are left over are computed with zeros beside them.
template <int OUTPUTS>
inline void store_all_totals(const __m512* sums, float* y) {
  for (int out = 0; out < OUTPUTS; out += 4) {
    __m128 parts[4];
    for (int one = 0; one < 4; ++one) parts[one] = out + one < OUTPUTS ? four_sums(sums[out + one]) : _mm_setzero_ps();
    const __m128 low = _mm_unpacklo_ps(parts[0], parts[1]), high = _mm_unpackhi_ps(parts[0], parts[1]);
    const __m128 low_next = _mm_unpacklo_ps(parts[2], parts[3]), high_next = _mm_unpackhi_ps(parts[2], parts[3]);
    const __m128 even = _mm_add_ps(_mm_movelh_ps(low, low_next), _mm_movelh_ps(high, high_next));
    const __m128 odd = _mm_add_ps(_mm_movehl_ps(low_next, low), _mm_movehl_ps(high_next, high));
    const __m128 totals = _mm_add_ps(even, odd);
    if (OUTPUTS - out >= 4)
      _mm_storeu_ps(y + out, totals);
    else
      _mm_mask_storeu_ps(y + out, static_cast<__mmask8>((1u << (OUTPUTS - out)) - 1u), totals);
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_AVX512_TOTALS_H_
