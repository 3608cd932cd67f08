// Row products, also with packed weights, for aarch64 with NEON.

#include "packed.h"
#include "row_product.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "codes/neon_codes.h"
#include "shared/neon_vectors.h"

namespace {

struct Float32 : NeonVectors {
  using Row = float;
  using Weight = float;
  using Numbers = Vector;
  using Sums = Vector;
  static constexpr int SUMS = 24, MAX_ROWS = 8;

  static Sums zero() { return vdupq_n_f32(0.0f); }
  static float prepared(float x) { return x; }
  static Sums add_product(Sums sums, const float* x, Numbers numbers) { return fused(sums, vld1q_f32(x), numbers); }
};

// Eight numbers at a time, two for each partial sum, one after the other.
struct Bfloat16 {
  using Row = float;
  using Weight = uint16_t;
  struct Numbers {
    float32x4_t low, high;
  };
  using Sums = float32x4_t;
  static constexpr int STEP = 8, SUMS = 16, MAX_ROWS = 4;

  static Sums zero() { return vdupq_n_f32(0.0f); }
  static float prepared(float x) { return float_of(rounded_bits(bits_of(x))); }
  static Numbers load(const uint16_t* from) {
    const uint16x8_t narrow = vld1q_u16(from);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(narrow), 16)),
            vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(narrow), 16))};
  }
  static Numbers load_first(const uint16_t* from, int64_t count) {
    uint16_t numbers[STEP] = {};
    for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
    return load(numbers);
  }
  static Sums add_product(Sums sums, const float* x, const Numbers& numbers) {
    return fused(fused(sums, vld1q_f32(x), numbers.low), vld1q_f32(x + 4), numbers.high);
  }
  template <int OUTPUTS>
  static void store_totals(const Sums* sums, float* y) {
    store_all_totals<OUTPUTS>(sums, y);
  }
};

// Operations for numbers of packed weights: half as many numbers at a time, in the same order.
struct Unpacked : Float32, PlainScales {
  static constexpr int SUMS = Bfloat16::SUMS, MAX_ROWS = Bfloat16::MAX_ROWS;

  static void widen_words(uint16x8_t words, Numbers* to) {
    to[0] = of_bits(vshll_n_u16(vget_low_u16(words), 16));
    to[1] = of_bits(vshll_n_u16(vget_high_u16(words), 16));
  }
  static void keep(uint16_t* to, Numbers numbers) { vst1_u16(to, vshrn_n_u32(vreinterpretq_u32_f32(numbers), 16)); }
};

}  // namespace

extern const Forms neon_forms = {form<Bfloat16>(), form<Float32>()};
extern const Unpack neon_unpack = {Packs<Unpacked>::unpack, unpack, Packs<Unpacked>::product, Unpacked::MAX_ROWS};
#else
extern const Forms neon_forms = {};
extern const Unpack neon_unpack = {};
#endif
