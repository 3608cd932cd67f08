// Numbers of packed weights, rounded to bfloat16, for x86-64 with AVX-512-BF16 and AVX-512-VBMI.

#include "unpack.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include <immintrin.h>

namespace {

constexpr int STEP = 32;

inline __mmask32 first(int64_t count) { return static_cast<__mmask32>((1u << count) - 1u); }

// Values of the codes from 0 to 127.
template <bool FLOAT8>
struct Magnitudes {
  alignas(64) float values[128];
  constexpr Magnitudes() : values() {
    for (int code = 0; code < 128; ++code) {
      values[code] = static_cast<float>(FLOAT8 && code >= 8 ? 8 + code % 8 : code);
      if (FLOAT8) values[code] *= 0x1p-9f;
      if (FLOAT8)
        for (int doubled = 1; doubled < code / 8; ++doubled) values[code] *= 2.0f;
    }
  }
};

struct Int8 {
  static constexpr bool SIGNED = true;
  static constexpr Magnitudes<false> MAGNITUDES{};
  __m512 zero;
  explicit Int8(float zero) : zero(_mm512_set1_ps(zero)) {}
  __m512 low(__m256i codes) const {
    return _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes))), zero);
  }
  __m512 high(__m256i codes) const {
    return _mm512_sub_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1))), zero);
  }
};

// A float8 is a float16 of another exponent, 256 times as small; the conversion keeps denormal float16.
struct E4m3 {
  static constexpr bool SIGNED = false;
  static constexpr Magnitudes<true> MAGNITUDES{};
  explicit E4m3(float) {}
  static __m512 widened(__m128i codes) {
    const __m256i wide = _mm256_cvtepu8_epi16(codes);
    const __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x7F)), 7);
    const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(wide, _mm256_set1_epi16(0x80)), 8);
    return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_or_si256(magnitude, sign)), _mm512_set1_ps(256.0f));
  }
  __m512 low(__m256i codes) const { return widened(_mm256_castsi256_si128(codes)); }
  __m512 high(__m256i codes) const { return widened(_mm256_extracti128_si256(codes, 1)); }
};

// Numbers of `width` codes of one group, by arithmetic.
template <typename Codes>
void unpack_group(const uint8_t* codes, int64_t width, float scale, float whole, float zero, uint16_t* to) {
  const __m512 scales = _mm512_set1_ps(scale), wholes = _mm512_set1_ps(whole);
  const Codes values(zero);
  const auto numbers = [&](__m256i some) {
    const __m512 low = _mm512_mul_ps(_mm512_mul_ps(values.low(some), scales), wholes);
    const __m512 high = _mm512_mul_ps(_mm512_mul_ps(values.high(some), scales), wholes);
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  };
  int64_t k = 0;
  for (; k + STEP <= width; k += STEP)
    _mm512_storeu_si512(to + k, numbers(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + k))));
  if (k < width) {
    const __mmask32 mask = first(width - k);
    _mm512_mask_storeu_epi16(to + k, mask, numbers(_mm256_maskz_loadu_epi8(mask, codes + k)));
  }
}

struct EvenBytes {
  alignas(64) uint8_t values[64], odd[64];
  constexpr EvenBytes() : values(), odd() {
    for (int one = 0; one < 64; ++one) {
      values[one] = static_cast<uint8_t>(2 * one);
      odd[one] = static_cast<uint8_t>(2 * one + 1);
    }
  }
};
constexpr EvenBytes EVEN_BYTES;

// The numbers of the 128 magnitudes of codes of one byte, their low and their high bytes. A code chooses its number, and
// turns its sign.
struct Table {
  __m512i low[2], high[2];

  template <typename Codes>
  static Table of(float scale, float whole) {
    const __m512 scales = _mm512_set1_ps(scale), wholes = _mm512_set1_ps(whole);
    const auto numbers = [&](int from) {
      const __m512 low = _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(Codes::MAGNITUDES.values + from), scales), wholes);
      const __m512 high = _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(Codes::MAGNITUDES.values + from + 16), scales), wholes);
      return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
    };
    const __m512i even = _mm512_load_si512(EVEN_BYTES.values), odd = _mm512_load_si512(EVEN_BYTES.odd);
    Table found;
    for (int half = 0; half < 2; ++half) {
      const __m512i one = numbers(64 * half), two = numbers(64 * half + 32);
      found.low[half] = _mm512_permutex2var_epi8(one, even, two);
      found.high[half] = _mm512_permutex2var_epi8(one, odd, two);
    }
    return found;
  }
};

constexpr int TABLE_STEP = 64;
// Uses of a table, of 64 numbers each, from which it takes less time to make one than it saves.
constexpr int64_t MIN_USES = 6;

template <typename Codes>
void unpack_group_by_table(const Table& table, const uint8_t* codes, int64_t width, float scale, float whole,
                           uint16_t* to) {
  const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  __m512i magnitudes = _mm512_setzero_si512();
  int64_t k = 0;
  for (; k + TABLE_STEP <= width; k += TABLE_STEP) {
    // The halves of each 16 bytes become vectors of their own.
    const __m512i some = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes + k));
    const __m512i magnitude = Codes::SIGNED ? _mm512_abs_epi8(some) : some;
    if constexpr (Codes::SIGNED) magnitudes = _mm512_or_si512(magnitudes, magnitude);
    const __m512i low = _mm512_permutex2var_epi8(table.low[0], magnitude, table.low[1]);
    const __m512i chosen = _mm512_permutex2var_epi8(table.high[0], magnitude, table.high[1]);
    // chosen ^ (some & 0x80)
    const __m512i high = _mm512_ternarylogic_epi32(chosen, some, _mm512_set1_epi8(-128), 0x78);
    _mm512_storeu_si512(to + k, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(to + k + 32, _mm512_unpackhi_epi8(low, high));
  }
  // -128 has no magnitude of seven bits.
  if (Codes::SIGNED && _mm512_movepi8_mask(magnitudes)) k = 0;
  if (k < width) unpack_group<Codes>(codes + k, width - k, scale, whole, 0.0f, to + k);
}

// Groups of a row whose tables are kept for the next rows: those of a block have the same scale.
constexpr int64_t KEPT = 64;

template <typename Codes>
void unpack_bytes_bfloat16(const Packed& given, int64_t begin, int64_t end, uint16_t* to) {
  const int64_t width = given.inputs / given.groups;
  const bool plain = given.zero == nullptr && given.whole == nullptr && width >= TABLE_STEP;
  Table tables[KEPT];
  float scales[KEPT];
  bool made[KEPT] = {};
  for (int64_t out = begin; out < end; ++out) {
    const float whole = given.whole == nullptr ? 1.0f : given.whole[out];
    for (int64_t group = 0; group < given.groups; ++group, to += width) {
      const int64_t at = out * given.groups + group;
      const uint8_t* const codes = given.codes + at * width;
      const float scale = scale_of(given, at);
      const bool kept = plain && group < KEPT;
      bool has_table = kept && made[group] && scales[group] == scale;
      if (kept && !has_table) {
        const bool next_is_same = out + 1 < end && scale_of(given, at + given.groups) == scale;
        if (next_is_same || width / TABLE_STEP >= MIN_USES) {
          tables[group] = Table::of<Codes>(scale, whole);
          scales[group] = scale;
          has_table = made[group] = true;
        }
      }
      if (has_table)
        unpack_group_by_table<Codes>(tables[group], codes, width, scale, whole, to);
      else
        unpack_group<Codes>(codes, width, scale, whole, zero_of(given, at), to);
    }
  }
}

// The sixteen numbers of a group are a table, from which 32 codes choose at once.
void unpack_four_bits_bfloat16(const Packed& given, int64_t out, uint16_t* to) {
  const int64_t width = given.inputs / given.groups;
  const __m512 whole = _mm512_set1_ps(given.whole == nullptr ? 1.0f : given.whole[out]);
  const __m512 values = given.kind == Kind::e2m1
                            ? _mm512_loadu_ps(E2M1)
                            : _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const uint8_t* codes = given.codes + out * (given.inputs / 2);
  for (int64_t group = 0; group < given.groups; ++group, codes += width / 2, to += width) {
    const __m512 scale = _mm512_set1_ps(scale_of(given, out * given.groups + group));
    const __m512 zero = _mm512_set1_ps(zero_of(given, out * given.groups + group));
    const __m512 numbers = _mm512_mul_ps(_mm512_mul_ps(_mm512_sub_ps(values, zero), scale), whole);
    const __m512i table = _mm512_castsi256_si512(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(numbers)));
    const auto chosen = [&](__m128i some) {
      const __m512i pairs = _mm512_cvtepu8_epi32(some);
      const __m512i apart = _mm512_or_si512(pairs, _mm512_slli_epi32(pairs, 12));
      return _mm512_permutexvar_epi16(_mm512_and_si512(apart, _mm512_set1_epi32(0x000F000F)), table);
    };
    int64_t k = 0;
    for (; k + STEP <= width; k += STEP)
      _mm512_storeu_si512(to + k, chosen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + k / 2))));
    if (k + STEP / 2 == width) {
      const __m512i half = chosen(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + k / 2)));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + k), _mm512_castsi512_si256(half));
    } else if (k < width) {
      const __mmask16 bytes = static_cast<__mmask16>(first((width - k) / 2));
      _mm512_mask_storeu_epi16(to + k, first(width - k), chosen(_mm_maskz_loadu_epi8(bytes, codes + k / 2)));
    }
  }
}

void unpack_bfloat16(const Packed& given, int64_t begin, int64_t end, uint16_t* to) {
  if (given.kind == Kind::e4m3)
    unpack_bytes_bfloat16<E4m3>(given, begin, end, to);
  else if (given.kind == Kind::int8)
    unpack_bytes_bfloat16<Int8>(given, begin, end, to);
  else
    for (int64_t out = begin; out < end; ++out, to += given.inputs) unpack_four_bits_bfloat16(given, out, to);
}

}  // namespace

extern const Unpack avx512bf16_unpack = {unpack_bfloat16, nullptr};
#else
extern const Unpack avx512bf16_unpack = {};
#endif
