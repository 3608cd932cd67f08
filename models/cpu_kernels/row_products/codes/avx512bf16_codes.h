// Codes of packed weights with AVX-512-BF16: numbers are chosen from tables by AVX-512-VBMI, or scaled and rounded.
// Included only if a compiler has these instructions.

#ifndef MODELS_CPU_KERNELS_AVX512BF16_CODES_H_
#define MODELS_CPU_KERNELS_AVX512BF16_CODES_H_

#include "avx512_scales.h"
#include "code_product.h"
#include "shared/avx512_vectors.h"

namespace {

struct Bfloat16 : WidenedScales {
  using Row = uint16_t;
  using Weight = uint16_t;
  using Numbers = __m512bh;
  using Sums = __m512;
  static constexpr int STEP = 32, SUMS = 24, MAX_ROWS = 8;

  static Sums zero() { return _mm512_setzero_ps(); }
  static Numbers load(const uint16_t* from) { return reinterpret_cast<Numbers>(_mm512_loadu_si512(from)); }
  static Numbers load_first(const uint16_t* from, int64_t count) {
    return reinterpret_cast<Numbers>(_mm512_maskz_loadu_epi16(static_cast<__mmask32>((1u << count) - 1u), from));
  }
  static Sums add_product(Sums sums, const uint16_t* x, Numbers numbers) {
    return _mm512_dpbf16_ps(sums, load(x), numbers);
  }
  static void keep(uint16_t* to, Numbers numbers) { _mm512_storeu_si512(to, reinterpret_cast<__m512i>(numbers)); }
  template <int OUTPUTS>
  static void store_totals(const Sums* sums, float* y) {
    store_all_totals<OUTPUTS>(sums, y);
  }
};

// Few streams are the fastest on Zen 4, one core of which then reads plain weights at 31 GB/s with one row, instead of
// 18, 26 instead of 20 with four, 25 instead of 22 with eight (2026-11-29).
template <>
constexpr int max_outputs<Bfloat16>(int rows) {
  return rows <= 2 ? 1 : 2;
}
template <>
constexpr int max_code_outputs<Bfloat16>(int rows) {
  return rows <= 2 ? MAX_OUTPUTS : rows <= 4 ? 3 : 2;
}

inline __m512bh rounded(__m512 low, __m512 high) { return _mm512_cvtne2ps_pbh(high, low); }
inline __m512bh as_numbers(__m512i bits) { return reinterpret_cast<__m512bh>(bits); }
inline __m128i sixteen(const uint8_t* codes) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)); }

// Groups of 32 columns or more, or two of 16 at a time.
template <int GROUPS_AT_ONCE, bool OFFSETS>
struct Int8 {
  static constexpr int BITS = 8, STEP = 32, GROUPS = GROUPS_AT_ONCE;
  static bool takes(const Packed& given, int64_t width) {
    const bool fits = GROUPS == 1 ? width % STEP == 0 : width * GROUPS == STEP && given.groups % GROUPS == 0;
    return fits && !given.whole && !given.zero && (given.offset != nullptr) == OFFSETS;
  }
  struct Group {
    __m512 scale[GROUPS], offset[GROUPS];
    void start(const Packed&, const Scales& all, int, int64_t at) {
      for (int one = 0; one < GROUPS; ++one) {
        scale[one] = _mm512_set1_ps(all.scale[at + one]);
        if constexpr (OFFSETS) offset[one] = _mm512_set1_ps(all.zero[at + one]);
      }
    }
    __m512 scaled(const uint8_t* codes, int group) const {
      const __m512 values = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sixteen(codes))), scale[group]);
      if constexpr (OFFSETS) return _mm512_sub_ps(values, offset[group]);
      return values;
    }
    void numbers(const uint8_t* codes, __m512bh* to) const {
      to[0] = rounded(scaled(codes, 0), scaled(codes + 16, GROUPS - 1));
    }
  };
};

// The 128 magnitudes of a float8 as exact bfloat16 numbers: their low and their high bytes.
struct Magnitudes {
  alignas(64) uint8_t low[128], high[128];
  constexpr Magnitudes() : low(), high() {
    for (int code = 0; code < 128; ++code) {
      int exponent = code / 8, fraction = code % 8;
      if (exponent == 0 && fraction > 0) {
        exponent = 1;
        for (; fraction < 8; fraction *= 2) --exponent;
      }
      const int bits = code == 0 ? 0 : ((exponent + 120) << 7) + (fraction % 8 << 4);
      low[code] = static_cast<uint8_t>(bits);
      high[code] = static_cast<uint8_t>(bits >> 8);
    }
  }
};
constexpr Magnitudes MAGNITUDES;

struct E4m3 {
  static constexpr int BITS = 8, STEP = 64, GROUPS = 1;
  static bool takes(const Packed& given, int64_t width) { return width % STEP == 0 && !given.whole && !given.zero; }
  struct Group {
    __m512 scale;
    void start(const Packed&, const Scales& all, int, int64_t at) { scale = _mm512_set1_ps(all.scale[at]); }
    __m512bh scaled(__m512i numbers) const {
      const __m512i zero = _mm512_setzero_si512();
      const __m512 low = _mm512_castsi512_ps(_mm512_unpacklo_epi16(zero, numbers));
      const __m512 high = _mm512_castsi512_ps(_mm512_unpackhi_epi16(zero, numbers));
      return rounded(_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale));
    }
    void numbers(const uint8_t* codes, __m512bh* to) const {
      // Each "unpack" below takes a part of every 16 bytes: the first 16 codes are the first four bytes of each part.
      const __m512i turned = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
      const __m512i some = _mm512_permutexvar_epi32(turned, _mm512_loadu_si512(codes));
      const auto chosen = [&](const uint8_t* bytes) {
        return _mm512_permutex2var_epi8(_mm512_load_si512(bytes), some, _mm512_load_si512(bytes + 64));
      };
      const __m512i low = chosen(MAGNITUDES.low);
      // chosen ^ (some & 0x80)
      const __m512i high = _mm512_ternarylogic_epi32(chosen(MAGNITUDES.high), some, _mm512_set1_epi8(-128), 0x78);
      to[0] = scaled(_mm512_unpacklo_epi8(low, high));
      to[1] = scaled(_mm512_unpackhi_epi8(low, high));
    }
  };
};

// 32 words with a code of four bits in the low bits; higher bits are another code's.
inline __m512i words_of_four_bits(const uint8_t* codes) {
  alignas(64) static constexpr struct Twice {
    uint8_t place[64];
    constexpr Twice() : place() {
      for (int byte = 0; byte < 64; ++byte) place[byte] = static_cast<uint8_t>(byte % 2 ? 63 : byte / 4);
    }
  } TWICE;
  const __m512i pairs = _mm512_permutexvar_epi8(_mm512_load_si512(TWICE.place), _mm512_zextsi128_si512(sixteen(codes)));
  return _mm512_srlv_epi16(pairs, _mm512_set1_epi32(4 << 16));
}

// The sixteen numbers of a group before rounding.
template <Kind KIND>
inline __m512 numbers_of_group(const Packed& given, const Scales& all, int64_t at) {
  const __m512 scale = _mm512_set1_ps(all.scale[at]);
  if (KIND == Kind::e2m1) return _mm512_mul_ps(_mm512_loadu_ps(E2M1), scale);
  const __m512 codes = _mm512_load_ps(INTEGERS);
  const __m512 zero = _mm512_set1_ps(given.zero != nullptr ? all.zero[at] : given.offset != nullptr ? 0.0f : 8.0f);
  const __m512 numbers = _mm512_mul_ps(_mm512_sub_ps(codes, zero), scale);
  return given.offset != nullptr ? _mm512_sub_ps(numbers, _mm512_set1_ps(all.zero[at])) : numbers;
}

// Codes of four bits choose among the numbers of their group; the table has them twice, as the fifth bit is arbitrary.
template <Kind KIND>
struct FourBits {
  static constexpr int BITS = 4, STEP = 32, GROUPS = 1;
  static bool takes(const Packed& given, int64_t width) { return width % STEP == 0 && !given.whole; }
  struct Group {
    __m512i table;
    void start(const Packed& given, const Scales& all, int, int64_t at) {
      const __m512 numbers = numbers_of_group<KIND>(given, all, at);
      table = reinterpret_cast<__m512i>(rounded(numbers, numbers));
    }
    void numbers(const uint8_t* codes, __m512bh* to) const {
      to[0] = as_numbers(_mm512_permutexvar_epi16(words_of_four_bits(codes), table));
    }
  };
};

// Two groups of 32 at a time: the table has the numbers of both.
template <Kind KIND>
struct TwoGroups {
  static constexpr int BITS = 4, STEP = 64, GROUPS = 2;
  static bool takes(const Packed& given, int64_t width) { return width == 32 && given.groups % 2 == 0 && !given.whole; }
  struct Group {
    __m512i table;
    void start(const Packed& given, const Scales& all, int, int64_t at) {
      const __m512 low = numbers_of_group<KIND>(given, all, at), high = numbers_of_group<KIND>(given, all, at + 1);
      table = reinterpret_cast<__m512i>(rounded(low, high));
    }
    void numbers(const uint8_t* codes, __m512bh* to) const {
      const __m512i code = _mm512_set1_epi16(15), second = _mm512_set1_epi16(16);
      const __m512i low = _mm512_and_si512(words_of_four_bits(codes), code);
      // words & 15 | 16
      const __m512i high = _mm512_ternarylogic_epi32(words_of_four_bits(codes + 16), code, second, 0xEA);
      to[0] = as_numbers(_mm512_permutexvar_epi16(low, table));
      to[1] = as_numbers(_mm512_permutexvar_epi16(high, table));
    }
  };
};

// NVFP4, two groups of 16 at a time: the table has the numbers of both.
struct Nvfp4 {
  static constexpr int BITS = 4, STEP = 32, GROUPS = 2;
  static bool takes(const Packed& given, int64_t width) { return width == 16 && given.groups % 2 == 0 && given.whole; }
  struct Group {
    __m512i table;
    void start(const Packed&, const Scales& all, int out, int64_t at) {
      const __m512 values = _mm512_loadu_ps(E2M1), whole = _mm512_set1_ps(all.whole[out]);
      const __m512 low = _mm512_mul_ps(values, _mm512_set1_ps(all.scale[at]));
      const __m512 high = _mm512_mul_ps(values, _mm512_set1_ps(all.scale[at + 1]));
      table = reinterpret_cast<__m512i>(rounded(_mm512_mul_ps(low, whole), _mm512_mul_ps(high, whole)));
    }
    void numbers(const uint8_t* codes, __m512bh* to) const {
      // words & 15 | 16 of the second half
      const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
      const __m512i places =
          _mm512_ternarylogic_epi32(words_of_four_bits(codes), _mm512_set1_epi16(15), second, 0xEA);
      to[0] = as_numbers(_mm512_permutexvar_epi16(places, table));
    }
  };
};

// Whether `use` accepts codes of a weight's kind.
template <typename Use>
bool with_codes(const Packed& given, const Use& use) {
  switch (given.kind) {
    case Kind::int8:
      return use(Int8<1, false>{}) || use(Int8<2, false>{}) || use(Int8<1, true>{});
    case Kind::e4m3:
      return use(E4m3{});
    case Kind::int4:
      return use(TwoGroups<Kind::int4>{}) || use(FourBits<Kind::int4>{});
    default:
      return use(TwoGroups<Kind::e2m1>{}) || use(FourBits<Kind::e2m1>{}) || use(Nvfp4{});
  }
}

// The numbers of some rows of a weight, by matching codes, or one by one.
inline void unpack(const Packed& given, int64_t first, int64_t last, uint16_t* to) {
  if (!with_codes(given, [&](auto codes) { return unpack_codes<Bfloat16, decltype(codes)>(given, first, last, to); }))
    unpack_rows(given, first, last, to);
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_AVX512BF16_CODES_H_
