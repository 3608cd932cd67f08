// Steps of a recurrence for x86-64 with AVX-512 (F, BW, DQ and VL).

#include "recurrent_step.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "shared/avx512_totals.h"

namespace {

struct Simd {
  using Vector = __m512;
  static constexpr int STEP = 16, ROWS = 8;

  static __mmask16 first(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }
  static Vector all(float x) { return _mm512_set1_ps(x); }
  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static Vector load_first(const float* from, int64_t count) { return _mm512_maskz_loadu_ps(first(count), from); }
  static void store(float* to, Vector x) { _mm512_storeu_ps(to, x); }
  static void store_first(float* to, Vector x, int64_t count) { _mm512_mask_storeu_ps(to, first(count), x); }
  static Vector multiply(Vector x, Vector y) { return _mm512_mul_ps(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return _mm512_fmadd_ps(x, y, sum); }
  template <int COUNT>
  static void totals(const Vector* sums, float* to) {
    store_all_totals<COUNT>(sums, to);
  }
};

}  // namespace

extern const Advance avx512_advance = advance<Simd>;
#else
extern const Advance avx512_advance = nullptr;
#endif
