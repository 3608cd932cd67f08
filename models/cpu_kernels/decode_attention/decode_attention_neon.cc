// Attention over a KV cache for aarch64 with NEON, which every such processor has.

#include "decode_attention.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "shared/neon_totals.h"

namespace {

struct Simd {
  using Vector = float32x4_t;
  using Integers = uint32x4_t;
  static constexpr int STEP = 4, SUMS = 16, ROWS = 4;

  static Vector all(float x) { return vdupq_n_f32(x); }
  static Vector load(const float* from) { return vld1q_f32(from); }
  static Vector load(const uint16_t* from) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16)); }
  template <typename Number>
  static Vector load_first(const Number* from, int64_t count) {
    return load_copied<Simd>(from, count);
  }
  static void store(float* to, Vector x) { vst1q_f32(to, x); }
  static void store_first(float* to, Vector x, int64_t count) { store_copied<Simd>(to, x, count); }
  static Vector larger(Vector x, Vector y) { return vmaxq_f32(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return fused(sum, x, y); }
  template <int COUNT>
  static void totals(const Vector* sums, float* to) {
    store_all_totals<COUNT>(sums, to);
  }
};

}  // namespace

extern const AttendForms neon_attend = attend_forms<Simd>();
#else
extern const AttendForms neon_attend = {};
#endif
