// Vectors of four numbers for aarch64 with NEON: products added to sums, and their totals in one order.

#ifndef MODELS_CPU_KERNELS_NEON_VECTORS_H_
#define MODELS_CPU_KERNELS_NEON_VECTORS_H_

#include <arm_neon.h>

#include "shared/vectors.h"

namespace {

// vfmaq_f32, without GCC 12's stores of all sums in every iteration of the loop.
inline float32x4_t fused(float32x4_t sums, float32x4_t one, float32x4_t other) {
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(sums) : "w"(one), "w"(other));
  return sums;
}

template <int OUTPUTS>
inline void store_all_totals(const float32x4_t* sums, float* y) {
  for (int out = 0; out < OUTPUTS; ++out) {
    const float32x4_t two = vpaddq_f32(sums[out], sums[out]);
    y[out] = vgetq_lane_f32(vpaddq_f32(two, two), 0);
  }
}

struct NeonVectors {
  using Vector = float32x4_t;
  using Integers = uint32x4_t;
  static constexpr int STEP = 4;

  static Vector all(float x) { return vdupq_n_f32(x); }
  static Vector load(const float* from) { return vld1q_f32(from); }
  static Vector load(const uint16_t* from) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(from), 16)); }
  template <typename Number>
  static Vector load_first(const Number* from, int64_t count) {
    return load_copied<NeonVectors>(from, count);
  }
  static void store(float* to, Vector x) { vst1q_f32(to, x); }
  static void store_first(float* to, Vector x, int64_t count) { store_copied<NeonVectors>(to, x, count); }
  static Vector multiply(Vector x, Vector y) { return vmulq_f32(x, y); }
  static Vector larger(Vector x, Vector y) { return vmaxq_f32(x, y); }
  static Vector add_product(Vector sum, Vector x, Vector y) { return fused(sum, x, y); }
  template <int COUNT>
  static void store_totals(const Vector* sums, float* to) {
    store_all_totals<COUNT>(sums, to);
  }
};

}  // namespace

#endif  // MODELS_CPU_KERNELS_NEON_VECTORS_H_
