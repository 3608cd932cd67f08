// Row products, also with packed weights, for x86-64 with AVX2, FMA and F16C.

#include "codes/wide_codes.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
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

// Operations for numbers of packed weights.
struct Unpacked : Bfloat16, PlainScales {
  static constexpr bool ANY_SIZE = false;

  static Numbers product_less(Numbers x, Numbers y, Numbers z) { return _mm256_fmsub_ps(x, y, z); }
  static __m128i eight_bytes(const uint8_t* from) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)); }
  static __m128i sixteen_bytes(const void* from) { return _mm_loadu_si128(static_cast<const __m128i*>(from)); }
  static Numbers of_int8(const uint8_t* codes) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight_bytes(codes))); }
  // As with AVX-512.
  static Numbers part_of_e4m3(const uint8_t* codes) {
    const __m128i halves = _mm_slli_epi16(_mm_cvtepi8_epi16(eight_bytes(codes)), 7);
    return _mm256_cvtph_ps(_mm_and_si128(halves, _mm_set1_epi16(static_cast<int16_t>(0xBFFF))));
  }
  static void widen_halves(const uint16_t* from, int64_t count, float* to) {
    int64_t one = 0;
    for (; one + 8 <= count; one += 8) store(to + one, _mm256_cvtph_ps(sixteen_bytes(from + one)));
    PlainScales::widen_halves(from + one, count - one, to + one);
  }
  static void keep(uint16_t* to, Numbers numbers) {
    const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(numbers), 16);
    const __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow);
  }
};

// The eight magnitudes of four-bit codes, the sign of each code, and the places of its low and its high byte among the
// bytes of all magnitudes: four low ones, four high ones, and so again. Zero of integers is no magnitude.
struct Sizes {
  alignas(32) float size[8];
  alignas(32) uint8_t low[32], high[32], sign[32];
  constexpr explicit Sizes(Kind kind) : size(), low(), high(), sign() {
    for (int one = 0; one < 8; ++one) size[one] = kind == Kind::int4 ? INTEGERS[one + 1] : E2M1[one];
    for (int code = 0; code < 32; ++code) {
      const int integer = code % 16 - 8, own = integer < 0 ? -integer - 1 : integer - 1;
      const int place = kind == Kind::int4 ? own : code % 8;
      low[code] = static_cast<uint8_t>(place < 0 ? 0x80 : place + place / 4 * 4);
      high[code] = static_cast<uint8_t>(place < 0 ? 0x80 : low[code] + 4);
      sign[code] = (kind == Kind::int4 ? integer < 0 : integer >= 0) ? 0x80 : 0;
    }
  }
};
constexpr Sizes OF_INT4(Kind::int4), OF_E2M1(Kind::e2m1);

// Codes of four bits choose among the sixteen numbers of their group by tables of low and of high bytes, the same for
// both halves of a vector. Groups of 32 columns or more, or two of 16 at a time; SYMMETRIC codes of eight magnitudes,
// or integers with zero points or offsets.
template <int GROUPS_AT_ONCE, bool SYMMETRIC>
struct FourBits {
  static constexpr int BITS = 4, STEP = 32, GROUPS = GROUPS_AT_ONCE;
  static bool takes(const Packed& given, int64_t width) {
    const bool fits = GROUPS == 1 ? width % STEP == 0 : width * GROUPS == STEP && given.groups % GROUPS == 0;
    const bool moved = given.zero || given.offset;
    return fits && (SYMMETRIC ? is_four_bits(given.kind) && !moved : given.kind == Kind::int4 && moved);
  }
  struct Group {
    __m256i low[GROUPS], high[GROUPS];
    void start(const Packed& given, const Scales& all, int out, int64_t at) {
      const __m256 whole = _mm256_set1_ps(given.whole != nullptr ? all.whole[out] : 1.0f);
      for (int group = 0; group < GROUPS; ++group, ++at) {
        const __m256 scale = _mm256_set1_ps(all.scale[at]);
        if constexpr (SYMMETRIC) {
          const Sizes& sizes = given.kind == Kind::int4 ? OF_INT4 : OF_E2M1;
          const __m256 numbers = rounded<Unpacked>(_mm256_load_ps(sizes.size) * scale * whole);
          // In each half, low bytes of four numbers before their high bytes; then all bytes in both halves.
          const __m256i apart = twice(_mm_setr_epi8(2, 6, 10, 14, 3, 7, 11, 15, 2, 6, 10, 14, 3, 7, 11, 15));
          const __m256i bytes = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(_mm256_castps_si256(numbers), apart), 0x88);
          low[group] = _mm256_shuffle_epi8(bytes, all_of(sizes.low));
          high[group] = _mm256_xor_si256(_mm256_shuffle_epi8(bytes, all_of(sizes.high)), all_of(sizes.sign));
        } else {
          const __m256 zero = _mm256_set1_ps(given.zero != nullptr ? all.zero[at] : 0.0f);
          const __m256 offset = _mm256_set1_ps(given.offset != nullptr ? all.zero[at] : 0.0f);
          const auto numbers = [&](__m256 codes) {
            return _mm256_castps_si256(rounded<Unpacked>((codes - zero) * scale * whole - offset));
          };
          const __m256i even = _mm256_srli_epi32(numbers(_mm256_setr_ps(0, 2, 4, 6, 8, 10, 12, 14)), 16);
          const __m256i odd = numbers(_mm256_setr_ps(1, 3, 5, 7, 9, 11, 13, 15));
          const __m256i apart = twice(_mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
          const __m256i bytes = _mm256_shuffle_epi8(_mm256_blend_epi16(even, odd, 0xAA), apart);
          low[group] = _mm256_permute4x64_epi64(bytes, 0x88);
          high[group] = _mm256_permute4x64_epi64(bytes, 0xDD);
        }
      }
    }
    void numbers(const uint8_t* codes, __m256* to) const {
      // Four places of each eight numbers in each half. Equal places of the first and second eight are adjacent, and of
      // the third and fourth: the low bits of two bytes, then their high bits.
      const __m256i places = _mm256_setr_epi8(0, 4, 0, 4, 1, 5, 1, 5, 8, 12, 8, 12, 9, 13, 9, 13,  //
                                              2, 6, 2, 6, 3, 7, 3, 7, 10, 14, 10, 14, 11, 15, 11, 15);
      const __m256i pairs = _mm256_shuffle_epi8(twice(Unpacked::sixteen_bytes(codes)), places);
      const __m256i both = _mm256_blend_epi16(pairs, _mm256_srli_epi16(pairs, 4), 0xAA);
      const __m256i four = _mm256_and_si256(both, _mm256_set1_epi8(15));
      const auto chosen = [&](const __m256i* table, int group) { return _mm256_shuffle_epi8(table[group], four); };
      widen(_mm256_unpacklo_epi8(chosen(low, 0), chosen(high, 0)), to);
      widen(_mm256_unpackhi_epi8(chosen(low, GROUPS - 1), chosen(high, GROUPS - 1)), to + 2);
    }
    static __m256i twice(__m128i half) { return _mm256_broadcastsi128_si256(half); }
    static __m256i all_of(const uint8_t* bytes) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(bytes)); }
    static void widen(__m256i words, __m256* to) {
      to[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
      to[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536)));
    }
  };
};

using Packs = ByWideCodes<Unpacked, FourBits<1, true>, FourBits<2, true>, FourBits<1, false>, FourBits<2, false>>;

}  // namespace

extern const Forms avx2_forms = {form<Bfloat16>(), form<Float32>()};
extern const Unpack avx2_unpack = {Packs::unpack, unpack_rows<float>, Packs::product, Unpacked::MAX_ROWS};
#else
extern const Forms avx2_forms = {};
extern const Unpack avx2_unpack = {};
#endif
