// Attention over a KV cache for aarch64 with NEON.

#include "decode_attention.h"

#if defined(__aarch64__)
#include "shared/neon_vectors.h"

namespace {

struct Simd : NeonVectors {
  static constexpr int SUMS = 16, ROWS = 4;
};

}  // namespace

extern const AttendForms neon_attend = attend_forms<Simd>();
#else
extern const AttendForms neon_attend = {};
#endif
