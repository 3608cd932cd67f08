// Attention over a KV cache for x86-64 with AVX-512 (F, BW, DQ and VL).

#include "decode_attention.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "shared/avx512_totals.h"

namespace {

struct Simd {
  using Vector = __m512;
  typedef uint32_t Integers __attribute__((vector_size(64)));
  static constexpr int STEP = 16, SUMS = 16, ROWS = 4;

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
  static Vector larger(Vector x, Vector y) { return _mm512_max_ps(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return _mm512_fmadd_ps(x, y, sum); }
  template <int COUNT>
  static void totals(const Vector* sums, float* to) {
    store_all_totals<COUNT>(sums, to);
  }
};

}  // namespace

extern const AttendForms avx512_attend = attend_forms<Simd>();
#else
extern const AttendForms avx512_attend = {};
#endif
