// Codes of packed weights where numbers of bfloat16 are multiplied as float32 (code_product.h). `Simd` has
//   product_less(x, y, z): x * y - z, rounded once;
//   of_int8(codes), and part_of_e4m3(codes), which is 1/256 of the numbers.

#ifndef MODELS_CPU_KERNELS_WIDE_CODES_H_
#define MODELS_CPU_KERNELS_WIDE_CODES_H_

#include "code_product.h"

namespace {

// Numbers rounded to the nearest bfloat16, ties to even, by two products. Let the 24 bits of a number be M = 65536 h +
// l. The first product, M - M / 65536 = M - h - l / 65536, is rounded to M - h, or to M - h - 1 if l is more than half
// of 65536; if l is half, M is even, and the even result leaves an even h or h + 1. M minus this result, an exact
// difference, is the rounded number. A first product below M's power of two has an additional bit, but l is too small
// there to reach it.
template <typename Simd>
inline typename Simd::Numbers rounded(typename Simd::Numbers x) {
  return Simd::product_less(x, Simd::all(65536.0f), x * Simd::all(65535.0f));
}

// Codes of a byte. With NARROW scales of 8 bits, a code times a scale is exact, and so is 65535 times a scale: the two
// products that round also scale.
template <typename Simd, bool FLOAT8, bool OFFSETS, bool NARROW>
struct Bytes {
  static constexpr int BITS = 8, STEP = Simd::STEP, GROUPS = 1;
  static bool takes(const Packed& given, int64_t width) {
    return given.kind == (FLOAT8 ? Kind::e4m3 : Kind::int8) && width % STEP == 0 && !given.whole && !given.zero &&
           (given.offset != nullptr) == OFFSETS && (given.scale_dtype == ScaleDtype::bfloat16) == NARROW;
  }
  struct Group {
    typename Simd::Numbers scale, other;  // the offset, or if NARROW the factor of the first product
    void start(const Packed&, const Scales& all, int, int64_t at) {
      const float own = FLOAT8 ? all.scale[at] * 256 : all.scale[at];
      scale = Simd::all(NARROW ? own * 65536 : own);
      other = Simd::all(NARROW ? own * 65535 : OFFSETS ? all.zero[at] : 0);
    }
    void numbers(const uint8_t* codes, typename Simd::Numbers* to) const {
      const typename Simd::Numbers values = FLOAT8 ? Simd::part_of_e4m3(codes) : Simd::of_int8(codes);
      if constexpr (NARROW)
        to[0] = Simd::product_less(values, scale, values * other);
      else
        to[0] = rounded<Simd>(OFFSETS ? values * scale - other : values * scale);
    }
  };
};

// All codes of a byte, and `FourBits`.
template <typename Simd, typename... FourBits>
using ByWideCodes = ByCodes<Simd, Bytes<Simd, false, false, true>, Bytes<Simd, false, false, false>,
                            Bytes<Simd, false, true, false>, Bytes<Simd, true, false, true>, Bytes<Simd, true, false, false>,
                            FourBits...>;

}  // namespace

#endif  // MODELS_CPU_KERNELS_WIDE_CODES_H_
