// Codes of packed weights for aarch64 (code_product.h): bfloat16 numbers, sixteen or eight at a time.

#ifndef MODELS_CPU_KERNELS_NEON_CODES_H_
#define MODELS_CPU_KERNELS_NEON_CODES_H_

#include <arm_neon.h>

#include "code_product.h"
#include "neon_unpack.h"

namespace {

// A scale whose NaN survives rounding of its last bits.
inline float quiet(float scale) { return scale == scale ? scale : float_of(0x7FC00000u); }

inline float32x4_t of_bits(uint32x4_t bits) { return vreinterpretq_f32_u32(bits); }

// Four numbers rounded to bfloat16; a NaN scale is quiet already.
inline uint16x4_t rounded_words(float32x4_t numbers) {
  const uint32x4_t bits = vreinterpretq_u32_f32(numbers), last = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vshrn_n_u32(vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7FFF)), last), 16);
}

// Codes of four bits choose among the sixteen numbers of their group by byte tables.
template <typename Simd>
struct FourBits {
  static constexpr int BITS = 4, STEP = 16, GROUPS = 1;
  static bool takes(const Packed& given, int64_t width) { return is_four_bits(given.kind) && width % STEP == 0; }
  struct Group {
    uint8x16x2_t table;
    void start(const Packed& given, const Scales& all, int out, int64_t at) {
      const float scale = quiet(all.scale[at]), whole = quiet(all.whole == nullptr ? 1.0f : all.whole[out]);
      const float zero = given.zero != nullptr ? all.zero[at] : zero_of(given, 0);
      const float offset = given.offset != nullptr ? all.zero[at] : 0.0f;
      const float* const values = given.kind == Kind::e2m1 ? E2M1 : INTEGERS;
      uint16_t numbers[16];
      for (int part = 0; part < 16; part += 4) {
        const float32x4_t scaled = vmulq_n_f32(vsubq_f32(vld1q_f32(values + part), vdupq_n_f32(zero)), scale);
        vst1_u16(numbers + part, rounded_words(vsubq_f32(vmulq_n_f32(scaled, whole), vdupq_n_f32(offset))));
      }
      table = table_of(numbers);
    }
    void numbers(const uint8_t* codes, typename Simd::Numbers* to) const {
      const uint8x8_t pairs = vld1_u8(codes), even = vand_u8(pairs, vdup_n_u8(15)), odd = vshr_n_u8(pairs, 4);
      const uint8x16_t places = vcombine_u8(vzip1_u8(even, odd), vzip2_u8(even, odd));
      const uint8x16_t low = vqtbl1q_u8(table.val[0], places), high = vqtbl1q_u8(table.val[1], places);
      Simd::widen_words(vreinterpretq_u16_u8(vzip1q_u8(low, high)), to);
      Simd::widen_words(vreinterpretq_u16_u8(vzip2q_u8(low, high)), to + 8 / Simd::STEP);
    }
  };
};

inline float32x4_t values_of_e4m3(int32x4_t codes) {
  const uint32x4_t wide = vreinterpretq_u32_s32(codes), magnitude = vandq_u32(wide, vdupq_n_u32(0x7F));
  const uint32x4_t normal = vaddq_u32(vshlq_n_u32(magnitude, 20), vdupq_n_u32(120u << 23));
  const float32x4_t small = vmulq_n_f32(vcvtq_f32_u32(magnitude), 0x1p-9f);
  const uint32x4_t value = vbslq_u32(vcltq_u32(magnitude, vdupq_n_u32(8)), vreinterpretq_u32_f32(small), normal);
  return of_bits(vorrq_u32(value, vandq_u32(wide, vdupq_n_u32(0x80000000u))));
}

template <typename Simd, bool FLOAT8, bool OFFSETS>
struct Bytes {
  static constexpr int BITS = 8, STEP = 8, GROUPS = 1;
  static bool takes(const Packed& given, int64_t width) {
    return given.kind == (FLOAT8 ? Kind::e4m3 : Kind::int8) && width % STEP == 0 && !given.whole && !given.zero &&
           (given.offset != nullptr) == OFFSETS;
  }
  struct Group {
    float scale, offset;
    void start(const Packed&, const Scales& all, int, int64_t at) {
      scale = quiet(all.scale[at]);
      offset = OFFSETS ? all.zero[at] : 0.0f;
    }
    uint16x4_t words(int16x4_t codes) const {
      const int32x4_t wide = vmovl_s16(codes);
      const float32x4_t scaled = vmulq_n_f32(FLOAT8 ? values_of_e4m3(wide) : vcvtq_f32_s32(wide), scale);
      return rounded_words(OFFSETS ? vsubq_f32(scaled, vdupq_n_f32(offset)) : scaled);
    }
    void numbers(const uint8_t* codes, typename Simd::Numbers* to) const {
      const int16x8_t wide = vmovl_s8(vreinterpret_s8_u8(vld1_u8(codes)));
      Simd::widen_words(vcombine_u16(words(vget_low_s16(wide)), words(vget_high_s16(wide))), to);
    }
  };
};

template <typename Simd>
using Packs = ByCodes<Simd, FourBits<Simd>, Bytes<Simd, true, false>, Bytes<Simd, false, false>, Bytes<Simd, false, true>>;

}  // namespace

#endif  // MODELS_CPU_KERNELS_NEON_CODES_H_
