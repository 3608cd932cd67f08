// Row products, also with packed weights, for x86-64 with AVX2 and FMA.

#include "wide_codes.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "shared/avx2_vectors.h"

namespace {

struct Float32 : Avx2Vectors {
  using Row = float;
  using Weight = float;
  using Numbers = Vector;
  using Sums = Vector;
  static constexpr int SUMS = 12, MAX_ROWS = 4;

  static Sums zero() { return _mm256_setzero_ps(); }
  static float prepared(float x) { return x; }
  static Sums add_product(Sums sums, const float* x, Numbers numbers) {
    return _mm256_fmadd_ps(_mm256_loadu_ps(x), numbers, sums);
  }
};

struct Bfloat16 : Float32 {
  using Weight = uint16_t;

  static float prepared(float x) { return float_of(rounded_bits(bits_of(x))); }
};

// What numbers of packed weights are made by.
struct Unpacked : Bfloat16, PlainScales {
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
