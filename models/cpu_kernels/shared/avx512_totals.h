// Totals of vectors of sixteen partial sums, in one order.

#ifndef MODELS_CPU_KERNELS_AVX512_TOTALS_H_
#define MODELS_CPU_KERNELS_AVX512_TOTALS_H_

#include <immintrin.h>

namespace {

// Of each quarter of four vectors the four totals, which then lie beside each other.
inline __m512 totals_of_quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d one = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d other = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(one, other)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(one, other)));
}

// Four totals at a time by a transpose; one or two or three that are left over are computed with zeros beside them.
template <int OUTPUTS>
inline void store_all_totals(const __m512* sums, float* y) {
  for (int out = 0; out < OUTPUTS; out += 4) {
    __m512 some[4];
    for (int one = 0; one < 4; ++one) some[one] = out + one < OUTPUTS ? sums[out + one] : _mm512_setzero_ps();
    const __m512 quarters = totals_of_quarters(some[0], some[1], some[2], some[3]);
    const __m256 halves = _mm256_add_ps(_mm512_castps512_ps256(quarters),
                                        _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(quarters), 1)));
    const __m128 totals = _mm_add_ps(_mm256_castps256_ps128(halves), _mm256_extractf128_ps(halves, 1));
    if (OUTPUTS - out >= 4)
      _mm_storeu_ps(y + out, totals);
    else
      _mm_mask_storeu_ps(y + out, static_cast<__mmask8>((1u << (OUTPUTS - out)) - 1u), totals);
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_AVX512_TOTALS_H_
