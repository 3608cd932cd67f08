// Steps of a recurrence for aarch64 with NEON.

#include "recurrent_step.h"

#if defined(__aarch64__)
#include "shared/neon_vectors.h"

namespace {

struct Simd : NeonVectors {
  static constexpr int ROWS = 8;
};

}  // namespace

extern const Advance neon_advance = advance<Simd>;
#else
extern const Advance neon_advance = nullptr;
#endif
