// Row products, also with packed weights, for aarch64 with FEAT_BF16: one instruction adds two products of bfloat16
// numbers to each partial sum, with denormal numbers as zero.

#include "packed.h"
#include "row_product.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#include <arm_neon.h>

#include "codes/neon_codes.h"
#include "shared/neon_vectors.h"

namespace {

struct Bfloat16 : PlainScales {
  using Row = uint16_t;
  using Weight = uint16_t;
  using Numbers = bfloat16x8_t;
  using Sums = float32x4_t;
  static constexpr int STEP = 8, SUMS = 24, MAX_ROWS = 8;

  static Sums zero() { return vdupq_n_f32(0.0f); }
  static uint16_t prepared(float x) { return static_cast<uint16_t>(rounded_bits(bits_of(x)) >> 16); }
  static Numbers load(const uint16_t* from) { return vreinterpretq_bf16_u16(vld1q_u16(from)); }
  static Numbers load_first(const uint16_t* from, int64_t count) {
    uint16_t numbers[STEP] = {};
    for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
    return load(numbers);
  }
  static Sums add_product(Sums sums, const uint16_t* x, Numbers numbers) {
    return vbfdotq_f32(sums, load(x), numbers);
  }
  static void widen_words(uint16x8_t words, Numbers* to) { to[0] = vreinterpretq_bf16_u16(words); }
  static void keep(uint16_t* to, Numbers numbers) { vst1q_u16(to, vreinterpretq_u16_bf16(numbers)); }
  template <int OUTPUTS>
  static void store_totals(const Sums* sums, float* y) {
    store_all_totals<OUTPUTS>(sums, y);
  }
};

}  // namespace

extern const Forms neonbf16_forms = {form<Bfloat16>(), {}};
extern const Unpack neonbf16_unpack = {Packs<Bfloat16>::unpack, nullptr, Packs<Bfloat16>::product, Bfloat16::MAX_ROWS};
#else
extern const Forms neonbf16_forms = {};
extern const Unpack neonbf16_unpack = {};
#endif
