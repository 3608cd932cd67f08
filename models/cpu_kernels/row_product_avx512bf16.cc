// Row products for x86-64 with AVX-512-BF16: two products of bfloat16 numbers for each partial sum in one instruction,
// which takes denormal numbers for zero.

#include "row_product.h"

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "avx512_totals.h"

namespace {

struct Bfloat16 {
  using Row = uint16_t;
  using Weight = uint16_t;
  using Numbers = __m512bh;
  using Sums = __m512;
  static constexpr int STEP = 32, SUMS = 24, MAX_ROWS = 8;

  static Sums zero() { return _mm512_setzero_ps(); }
  static uint16_t prepared(float x) { return static_cast<uint16_t>(rounded_bits(bits_of(x)) >> 16); }
  static Numbers load(const uint16_t* from) { return reinterpret_cast<Numbers>(_mm512_loadu_si512(from)); }
  static Numbers load_first(const uint16_t* from, int64_t count) {
    return reinterpret_cast<Numbers>(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << count) - 1u), from));
  }
  static Sums add_product(Sums sums, const uint16_t* x, Numbers numbers) {
    return _mm512_dpbf16_ps(sums, load(x), numbers);
  }
  template <int OUTPUTS>
  static void store_totals(const Sums* sums, float* y) {
    store_all_totals<OUTPUTS>(sums, y);
  }
};

}  // namespace

extern const Forms avx512bf16_forms = {form<Bfloat16>(), {}};
#else
extern const Forms avx512bf16_forms = {};
#endif
