// Row products for x86-64 with AVX2 and FMA.

#include "row_product.h"

#if defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>

namespace {

struct Float32 {
  using Row = float;
  using Weight = float;
  using Numbers = __m256;
  using Sums = __m256;
  static constexpr int STEP = 8, SUMS = 12, MAX_ROWS = 4;

  static Sums zero() { return _mm256_setzero_ps(); }
  static float prepared(float x) { return x; }
  static Numbers load(const float* from) { return _mm256_loadu_ps(from); }
  static Numbers load_first(const float* from, int64_t count) {
    alignas(32) float numbers[STEP] = {};
    for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
    return _mm256_load_ps(numbers);
  }
  static Sums add_product(Sums sums, const float* x, Numbers numbers) {
    return _mm256_fmadd_ps(_mm256_loadu_ps(x), numbers, sums);
  }
  template <int OUTPUTS>
  static void store_totals(const Sums* sums, float* y) {
    for (int out = 0; out < OUTPUTS; ++out) {
      const __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[out]), _mm256_extractf128_ps(sums[out], 1));
      const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
      y[out] = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
    }
  }
};

struct Bfloat16 : Float32 {
  using Weight = uint16_t;

  static float prepared(float x) { return float_of(rounded_bits(bits_of(x))); }
  static Numbers widened(__m128i narrow) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
  static Numbers load(const uint16_t* from) {
    return widened(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static Numbers load_first(const uint16_t* from, int64_t count) {
    alignas(16) uint16_t numbers[STEP] = {};
    for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
    return widened(_mm_load_si128(reinterpret_cast<const __m128i*>(numbers)));
  }
};

}  // namespace

extern const Forms avx2_forms = {form<Bfloat16>(), form<Float32>()};
#else
extern const Forms avx2_forms = {};
#endif
