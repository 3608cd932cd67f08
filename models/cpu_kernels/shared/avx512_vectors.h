// Vectors of sixteen numbers for x86-64 with AVX-512 (F, BW, DQ and VL), and their totals in one order.

#ifndef MODELS_CPU_KERNELS_AVX512_VECTORS_H_
#define MODELS_CPU_KERNELS_AVX512_VECTORS_H_

#include <immintrin.h>
#include <stdint.h>

namespace {

// The four totals of each quarter of four vectors, side by side.
inline __m512 totals_of_quarters(__m512 a, __m512 b, __m512 c, __m512 d) {
  const __m512d one = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)));
  const __m512d other = _mm512_castps_pd(_mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d)));
  return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(one, other)),
                       _mm512_castpd_ps(_mm512_unpackhi_pd(one, other)));
}

// Four totals at a time by a transpose; one to three remaining totals are computed with zeros.
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

struct Avx512Vectors {
  using Vector = __m512;
  typedef uint32_t Integers __attribute__((vector_size(64)));
  static constexpr int STEP = 16;

  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
  static Vector widened(__m256i narrow) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  static Vector all(float x) { return _mm512_set1_ps(x); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static Vector load(const uint16_t* from) {
    return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Vector load_first(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
  static Vector load_first(const uint16_t* from, int64_t count) {
    return widened(_mm256_maskz_loadu_epi16(first(count), from));
  }
  static void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
  static void store_first(float* to, Vector x, int64_t count) { _mm512_mask_storeu_ps(to, first(count), x); }
  static Vector multiply(Vector x, Vector y) { return _mm512_mul_ps(x, y); }
  static Vector larger(Vector x, Vector y) { return _mm512_max_ps(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return _mm512_fmadd_ps(x, y, sum); }
  template <int COUNT>
  static void store_totals(const Vector* sums, float* to) {
    store_all_totals<COUNT>(sums, to);
  }
};

}  // namespace

#endif  // MODELS_CPU_KERNELS_AVX512_VECTORS_H_
