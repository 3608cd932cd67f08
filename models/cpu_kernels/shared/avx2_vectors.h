// Vectors of eight numbers for x86-64 with AVX2 and FMA.

#ifndef MODELS_CPU_KERNELS_AVX2_VECTORS_H_
#define MODELS_CPU_KERNELS_AVX2_VECTORS_H_

#include <immintrin.h>

#include "shared/vectors.h"

namespace {

struct Avx2Vectors {
  using Vector = __m256;
  typedef uint32_t Integers __attribute__((vector_size(32)));
  static constexpr int STEP = 8;

  static Vector all(float x) { return _mm256_set1_ps(x); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static Vector load(const uint16_t* from) {
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
  template <typename Number>
  static Vector load_first(const Number* from, int64_t count) {
    return load_copied<Avx2Vectors>(from, count);
  }
  static void store(float* to, Vector x) { _mm256_storeu_ps(to, x); }
  static void store_first(float* to, Vector x, int64_t count) { store_copied<Avx2Vectors>(to, x, count); }
  static Vector multiply(Vector x, Vector y) { return _mm256_mul_ps(x, y); }
  static Vector larger(Vector x, Vector y) { return _mm256_max_ps(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return _mm256_fmadd_ps(x, y, sum); }
  template <int COUNT>
  static void store_totals(const Vector* sums, float* to) {
    for (int k = 0; k < COUNT; ++k) {
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[k]), _mm256_extractf128_ps(sums[k], 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      to[k] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
  }
};

}  // namespace

#endif  // MODELS_CPU_KERNELS_AVX2_VECTORS_H_
