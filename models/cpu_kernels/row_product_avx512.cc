// Row products for x86-64 with AVX-512 (F, BW, DQ and VL).

#include "row_product.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "avx512_totals.h"

namespace {

struct Float32 {
  using Row = float;
  using Weight = float;
  using Numbers = __m512;
  using Sums = __m512;
  static constexpr int STEP = 16, SUMS = 24, MAX_ROWS = 8;

  static Sums zero() { return _mm512_setzero_ps(); }
  static float prepared(float x) { return x; }
  static Numbers load(const float* from) { return _mm512_loadu_ps(from); }
  static Numbers load_first(const float* from, int64_t count) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1u), from);
  }
  static Sums add_product(Sums sums, const float* x, Numbers numbers) {
    return _mm512_fmadd_ps(_mm512_loadu_ps(x), numbers, sums);
  }
  template <int OUTPUTS>
  static void store_totals(const Sums* sums, float* y) {
    store_all_totals<OUTPUTS>(sums, y);
  }
};

struct Bfloat16 : Float32 {
  using Weight = uint16_t;

  static float prepared(float x) { return float_of(rounded_bits(bits_of(x))); }
  static Numbers widened(__m256i narrow) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  static Numbers load(const uint16_t* from) {
    return widened(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static Numbers load_first(const uint16_t* from, int64_t count) {
    return widened(_mm256_maskz_loadu_epi16(static_cast<__mmask16>((1u << count) - 1u), from));
  }
};

}  // namespace

extern const Forms avx512_forms = {form<Bfloat16>(), form<Float32>()};
#else
extern const Forms avx512_forms = {};
#endif
