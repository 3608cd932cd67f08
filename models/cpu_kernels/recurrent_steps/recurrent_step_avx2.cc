// Steps of a recurrence for x86-64 with AVX2 and FMA.

#include "recurrent_step.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace {

struct Simd {
  using Vector = __m256;
  static constexpr int STEP = 8, ROWS = 4;

  static Vector all(float x) { return _mm256_set1_ps(x); }
  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static Vector load_first(const float* from, int64_t count) { return load_copied<Simd>(from, count); }
  static void store(float* to, Vector x) { _mm256_storeu_ps(to, x); }
  static void store_first(float* to, Vector x, int64_t count) { store_copied<Simd>(to, x, count); }
  static Vector multiply(Vector x, Vector y) { return _mm256_mul_ps(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return _mm256_fmadd_ps(x, y, sum); }
  template <int COUNT>
  static void totals(const Vector* sums, float* to) {
    for (int k = 0; k < COUNT; ++k) {
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[k]), _mm256_extractf128_ps(sums[k], 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      to[k] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
  }
};

}  // namespace

extern const Advance avx2_advance = advance<Simd>;
#else
extern const Advance avx2_advance = nullptr;
#endif
