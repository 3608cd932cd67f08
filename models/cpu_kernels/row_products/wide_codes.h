// Codes of packed weights where numbers of bfloat16 are multiplied as float32 (code_product.h).

#ifndef MODELS_CPU_KERNELS_WIDE_CODES_H_
#define MODELS_CPU_KERNELS_WIDE_CODES_H_

#include "code_product.h"

namespace {

template <typename Simd, bool FLOAT8, bool OFFSETS>
struct Bytes {
  static constexpr int BITS = 8, STEP = Simd::STEP, GROUPS = 1;
  static bool takes(const Packed& given, int64_t width) {
    return width % STEP == 0 && !given.whole && !given.zero && (given.offset != nullptr) == OFFSETS;
  }
  struct Group {
    typename Simd::Numbers scale, offset;
    void start(const Packed&, const Scales& all, int, int64_t at) {
      scale = Simd::all(quiet(all.scale[at]));
      if (OFFSETS) offset = Simd::all(all.zero[at]);
    }
    void numbers(const uint8_t* codes, typename Simd::Numbers* to) const {
      const typename Simd::Numbers scaled = (FLOAT8 ? Simd::of_e4m3(codes) : Simd::of_int8(codes)) * scale;
      to[0] = Simd::rounded(OFFSETS ? scaled - offset : scaled);
    }
  };
};

// Codes of four bits choose among the sixteen numbers of their group.
template <typename Simd>
struct FourBits {
  static constexpr int BITS = 4, STEP = Simd::STEP, GROUPS = 1;
  static bool takes(const Packed&, int64_t width) { return width % STEP == 0; }
  struct Group {
    typename Simd::Numbers table[16 / STEP];
    void start(const Packed& given, const Scales& all, int out, int64_t at) {
      const float* const values = given.kind == Kind::e2m1 ? E2M1 : INTEGERS;
      const auto scale = Simd::all(quiet(all.scale[at]));
      const auto zero = Simd::all(given.zero != nullptr ? all.zero[at] : zero_of(given, 0));
      const auto offset = Simd::all(given.offset != nullptr ? all.zero[at] : 0.0f);
      const auto whole = Simd::all(quiet(all.whole == nullptr ? 1.0f : all.whole[out]));
      for (int part = 0; part < 16 / STEP; ++part)
        table[part] = Simd::rounded((Simd::load(values + part * STEP) - zero) * scale * whole - offset);
    }
    void numbers(const uint8_t* codes, typename Simd::Numbers* to) const { to[0] = Simd::chosen(table, codes); }
  };
};

}  // namespace

#endif  // MODELS_CPU_KERNELS_WIDE_CODES_H_
