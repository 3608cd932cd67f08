// Numbers of packed weights, row by row, in plain loops that compilers vectorise. A file for each instruction set
// includes this header: everything here has internal linkage.

#ifndef MODELS_CPU_KERNELS_UNPACK_H_
#define MODELS_CPU_KERNELS_UNPACK_H_

#include "row_products/packed.h"
#include "row_products/row_product.h"

namespace {

// Prefetch distance of codes (row_product.h): half the distance of bfloat16 numbers.
constexpr int64_t CODES_AHEAD = AHEAD_BYTES / 2;

constexpr float E2M1[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

inline float float_of_half(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, rest = half & 0x7FFFu;
  if (rest >= 0x7C00u) return float_of(sign | 0x7F800000u | ((rest & 0x3FFu) << 13));
  if (rest < 0x400u) {
    const float small = static_cast<float>(rest) * 0x1p-24f;
    return sign ? -small : small;
  }
  return float_of(sign | ((rest << 13) + (112u << 23)));
}

inline float scale_of(const Packed& given, int64_t at) {
  switch (given.scale_dtype) {
    case ScaleDtype::float32:
      return static_cast<const float*>(given.scale)[at];
    case ScaleDtype::bfloat16:
      return float_of(static_cast<uint32_t>(static_cast<const uint16_t*>(given.scale)[at]) << 16);
    default:
      return float_of_half(static_cast<const uint16_t*>(given.scale)[at]);
  }
}

inline float zero_of(const Packed& given, int64_t at) {
  if (given.zero == nullptr) return given.kind == Kind::int4 && given.offset == nullptr ? 8.0f : 0.0f;
  return given.kind == Kind::int8 ? static_cast<float>(static_cast<int8_t>(given.zero[at]))
                                  : static_cast<float>(given.zero[at]);
}

inline float offset_of(const Packed& given, int64_t at) { return given.offset == nullptr ? 0.0f : given.offset[at]; }

// A float8 without its scale, without a denormal float32 on the way: a processor may flush it to zero.
inline float number_of_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  const float small = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f;
  const uint32_t bits = magnitude < 8 ? bits_of(small) : (magnitude << 20) + (120u << 23);
  return float_of(bits | static_cast<uint32_t>(code & 0x80u) << 24);
}

inline void store(float number, float* to) { *to = number; }
inline void store(float number, uint16_t* to) { *to = static_cast<uint16_t>(rounded_bits(bits_of(number)) >> 16); }

// The sixteen numbers of four-bit codes within a group.
template <typename Number>
void numbers_of_group(const Packed& given, int64_t at, float whole, Number* numbers) {
  const float scale = scale_of(given, at), zero = zero_of(given, at), offset = offset_of(given, at);
  for (int code = 0; code < 16; ++code) {
    const float value = given.kind == Kind::e2m1 ? E2M1[code] : static_cast<float>(code);
    store((value - zero) * scale * whole - offset, numbers + code);
  }
}

// Write the numbers of code pairs from place `first` of a group on.
template <typename Number>
void store_pairs(const Number* numbers, const uint8_t* codes, int64_t first, int64_t width, Number* to) {
  for (int64_t k = first; k < width; k += 2) {
    to[k] = numbers[codes[k / 2] & 15];
    to[k + 1] = numbers[codes[k / 2] >> 4];
  }
}

// Call `write(numbers, codes, width, to)` for each group of a row.
template <typename Number, typename Write>
void over_groups_of_four_bits(const Packed& given, int64_t out, Number* to, const Write& write) {
  const int64_t width = given.inputs / given.groups;
  const float whole = given.whole == nullptr ? 1.0f : given.whole[out];
  const uint8_t* codes = given.codes + out * (given.inputs / 2);
  for (int64_t group = 0; group < given.groups; ++group, codes += width / 2, to += width) {
    Number numbers[16];
    numbers_of_group(given, out * given.groups + group, whole, numbers);
    write(numbers, codes, width, to);
  }
}

template <typename Number>
void unpack_four_bits(const Packed& given, int64_t out, Number* to) {
  over_groups_of_four_bits(given, out, to, [](const Number* numbers, const uint8_t* codes, int64_t width, Number* at) {
    store_pairs(numbers, codes, 0, width, at);
  });
}

template <bool FLOAT8, typename Number>
void unpack_bytes(const Packed& given, int64_t out, Number* to) {
  const int64_t width = given.inputs / given.groups;
  const float whole = given.whole == nullptr ? 1.0f : given.whole[out];
  const uint8_t* codes = given.codes + out * given.inputs;
  for (int64_t group = 0; group < given.groups; ++group, codes += width, to += width) {
    const int64_t at = out * given.groups + group;
    const float scale = scale_of(given, at), zero = zero_of(given, at), offset = offset_of(given, at);
    for (int64_t k = 0; k < width; ++k) {
      const float value = FLOAT8 ? number_of_e4m3(codes[k]) : static_cast<float>(static_cast<int8_t>(codes[k]));
      store((value - zero) * scale * whole - offset, to + k);
    }
  }
}

template <typename Number>
void unpack_rows(const Packed& given, int64_t first, int64_t last, Number* to) {
  const int64_t stored = code_bytes(given);
  for (int64_t out = first; out < last; ++out, to += given.inputs) {
    for (int64_t byte = 0; byte < stored; byte += 64) __builtin_prefetch(given.codes + out * stored + CODES_AHEAD + byte);
    if (given.kind == Kind::e4m3)
      unpack_bytes<true>(given, out, to);
    else if (given.kind == Kind::int8)
      unpack_bytes<false>(given, out, to);
    else
      unpack_four_bits(given, out, to);
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_UNPACK_H_
