// Row products, also with packed weights, for x86-64 with AVX-512 (F, BW, DQ and VL).

#include "codes/wide_codes.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "codes/avx512_scales.h"
#include "shared/avx512_vectors.h"

namespace {

struct Float32 : Avx512Vectors {
  using Row = float;
  using Weight = float;
  using Numbers = Vector;
  using Sums = Vector;
  static constexpr int SUMS = 24, MAX_ROWS = 8;

  static Sums zero() { return _mm512_setzero_ps(); }
  static float prepared(float x) { return x; }
  static Sums add_product(Sums sums, const float* x, Numbers numbers) {
    return _mm512_fmadd_ps(_mm512_loadu_ps(x), numbers, sums);
  }
};

struct Bfloat16 : Float32 {
  using Weight = uint16_t;

  static float prepared(float x) { return float_of(rounded_bits(bits_of(x))); }
};

// Operations for numbers of packed weights.
struct Unpacked : Bfloat16, WidenedScales {
  static constexpr bool ANY_SIZE = false;

  static Numbers product_less(Numbers x, Numbers y, Numbers z) { return _mm512_fmsub_ps(x, y, z); }
  static __m128i sixteen(const uint8_t* codes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)); }
  static Numbers of_int8(const uint8_t* codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen(codes))); }
  // A float8 is a float16 with another exponent, 256 times as small; the conversion keeps denormal float16. The sign of
  // a code arrives in bits 15 and 14; bit 14 is unused in such small float16.
  static Numbers part_of_e4m3(const uint8_t* codes) {
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(sixteen(codes)), 7);
    const __m256i small = _mm256_and_si256(halves, _mm256_set1_epi16(static_cast<int16_t>(0xBFFF)));
    return _mm512_cvtph_ps(small);
  }
  static void keep(uint16_t* to, Numbers numbers) {
    const __m256i narrow = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(numbers), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), narrow);
  }
};

// Codes of four bits choose among the sixteen numbers of their group.
struct FourBits {
  static constexpr int BITS = 4, STEP = Unpacked::STEP, GROUPS = 1;
  static bool takes(const Packed& given, int64_t width) { return is_four_bits(given.kind) && width % STEP == 0; }
  struct Group {
    __m512 table;
    void start(const Packed& given, const Scales& all, int out, int64_t at) {
      const __m512 values = _mm512_loadu_ps(given.kind == Kind::e2m1 ? E2M1 : INTEGERS);
      const __m512 zero = _mm512_set1_ps(given.zero != nullptr ? all.zero[at] : zero_of(given, 0));
      const __m512 whole = _mm512_set1_ps(given.whole != nullptr ? all.whole[out] : 1.0f);
      const __m512 offset = _mm512_set1_ps(given.offset != nullptr ? all.zero[at] : 0.0f);
      table = rounded<Unpacked>((values - zero) * _mm512_set1_ps(all.scale[at]) * whole - offset);
    }
    void numbers(const uint8_t* codes, __m512* to) const {
      const __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes));
      const __m512i places = _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, _mm_srli_epi16(low, 4)));
      to[0] = _mm512_permutexvar_ps(places, table);  // four bits of a place count
    }
  };
};

using Packs = ByWideCodes<Unpacked, FourBits>;

}  // namespace

extern const Forms avx512_forms = {form<Bfloat16>(), form<Float32>()};
extern const Unpack avx512_unpack = {Packs::unpack, unpack_rows<float>, Packs::product, Unpacked::MAX_ROWS};
#else
extern const Forms avx512_forms = {};
extern const Unpack avx512_unpack = {};
#endif
