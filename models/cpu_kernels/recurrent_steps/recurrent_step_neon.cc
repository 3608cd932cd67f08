// Steps of a recurrence for aarch64 with NEON, which every such processor has.

#include "recurrent_step.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "shared/neon_totals.h"

namespace {

struct Simd {
  using Vector = float32x4_t;
  static constexpr int STEP = 4, ROWS = 8;

  static Vector all(float x) { return vdupq_n_f32(x); }
  static Vector load(const float* from) { return vld1q_f32(from); }
  static Vector load_first(const float* from, int64_t count) { return load_copied<Simd>(from, count); }
  static void store(float* to, Vector x) { vst1q_f32(to, x); }
  static void store_first(float* to, Vector x, int64_t count) { store_copied<Simd>(to, x, count); }
  static Vector multiply(Vector x, Vector y) { return vmulq_f32(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return fused(sum, x, y); }
  template <int COUNT>
  static void totals(const Vector* sums, float* to) {
    store_all_totals<COUNT>(sums, to);
  }
};

}  // namespace

extern const Advance neon_advance = advance<Simd>;
#else
extern const Advance neon_advance = nullptr;
#endif
