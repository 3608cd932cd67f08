// Numbers of packed weights in float32 for aarch64 with NEON: codes of four bits choose from a table, sixteen at once.
// Codes of a byte use the plain loops, vectorised.

#ifndef MODELS_CPU_KERNELS_NEON_UNPACK_H_
#define MODELS_CPU_KERNELS_NEON_UNPACK_H_

#include <arm_neon.h>

#include "unpack.h"

namespace {

// The numbers of codes within a group, split into their low and their high bytes.
inline uint8x16x2_t table_of(const uint16_t* numbers) { return vld2q_u8(reinterpret_cast<const uint8_t*>(numbers)); }
inline uint8x16x4_t table_of(const float* numbers) { return vld4q_u8(reinterpret_cast<const uint8_t*>(numbers)); }

inline void store_chosen(const uint8x16x4_t& table, uint8x16_t codes, float* to) {
  uint8x16x4_t chosen;
  for (int one = 0; one < 4; ++one) chosen.val[one] = vqtbl1q_u8(table.val[one], codes);
  vst4q_u8(reinterpret_cast<uint8_t*>(to), chosen);
}

inline void store_group(const float* numbers, const uint8_t* codes, int64_t width, float* to) {
  const uint8x16x4_t table = table_of(numbers);
  int64_t k = 0;
  for (; k + 32 <= width; k += 32) {
    const uint8x16_t pairs = vld1q_u8(codes + k / 2);
    const uint8x16_t even = vandq_u8(pairs, vdupq_n_u8(15)), odd = vshrq_n_u8(pairs, 4);
    store_chosen(table, vzip1q_u8(even, odd), to + k);
    store_chosen(table, vzip2q_u8(even, odd), to + k + 16);
  }
  store_pairs(numbers, codes, k, width, to);
}

inline void unpack(const Packed& given, int64_t first, int64_t last, float* to) {
  if (!is_four_bits(given.kind)) return unpack_rows(given, first, last, to);
  for (int64_t out = first; out < last; ++out, to += given.inputs) over_groups_of_four_bits(given, out, to, store_group);
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_NEON_UNPACK_H_
