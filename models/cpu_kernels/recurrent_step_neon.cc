// Steps of a recurrence for aarch64 with NEON, which every such processor has.

#include "recurrent_step.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#include "neon_totals.h"

namespace {

struct Simd {
  using Vector = float32x4_t;
  static constexpr int STEP = 4, ROWS = 8;

  static Vector all(float x) { return vdupq_n_f32(x); }
  static Vector load(const float* from) { return vld1q_f32(from); }
  static Vector load_first(const float* from, int64_t count) {
    float numbers[STEP] = {};
    for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
    return vld1q_f32(numbers);
  }
  static void store(float* to, Vector x) { vst1q_f32(to, x); }
  static void store_first(float* to, Vector x, int64_t count) {
    float numbers[STEP];
    vst1q_f32(numbers, x);
    for (int64_t k = 0; k < count; ++k) to[k] = numbers[k];
  }
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
