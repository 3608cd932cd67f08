// Row products, also with packed weights, for x86-64 with AVX2 and FMA.

#include "wide_codes.h"

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

// What numbers of packed weights are made by.
struct Unpacked : Bfloat16, PlainScales {
  using Float32::load;

  static Numbers all(float x) { return _mm256_set1_ps(x); }
  static Numbers rounded(Numbers x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i last = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), last);
    return _mm256_castsi256_ps(_mm256_and_si256(up, _mm256_set1_epi32(-65536)));
  }
  static __m128i eight(const uint8_t* codes) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes)); }
  static Numbers of_int8(const uint8_t* codes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight(codes))); }
  static Numbers of_e4m3(const uint8_t* codes) {
    const __m256i wide = _mm256_cvtepi8_epi32(eight(codes));
    const __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi32(0x7F));
    const __m256i normal = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32(120 << 23));
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1p-9f));
    const __m256i is_normal = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(7));
    const __m256 value = _mm256_blendv_ps(small, _mm256_castsi256_ps(normal), _mm256_castsi256_ps(is_normal));
    return _mm256_or_ps(value, _mm256_and_ps(_mm256_castsi256_ps(wide), _mm256_set1_ps(-0.0f)));
  }
  static Numbers chosen(const Numbers* table, const uint8_t* codes) {
    int32_t four;
    __builtin_memcpy(&four, codes, sizeof four);
    const __m128i low = _mm_cvtsi32_si128(four);
    const __m256i places = _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(low, _mm_srli_epi16(low, 4)));
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(places, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table[0], places), _mm256_permutevar8x32_ps(table[1], places), upper);
  }
  static void keep(uint16_t* to, Numbers numbers) {
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(numbers), 16);
    const __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow);
  }
};

}  // namespace

extern const Forms avx2_forms = {form<Bfloat16>(), form<Float32>()};
extern const Unpack avx2_unpack = {unpack_rows<uint16_t>, unpack_rows<float>,
                                   product_of_packed<Unpacked, Bytes, FourBits>, Unpacked::MAX_ROWS};
#else
extern const Forms avx2_forms = {};
extern const Unpack avx2_unpack = {};
#endif
