// Steps of a recurrence for x86-64 with AVX2 and FMA.

#include "recurrent_step.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "shared/avx2_vectors.h"

namespace {

struct Simd : Avx2Vectors {
  static constexpr int ROWS = 4;
};

}  // namespace

extern const Advance avx2_advance = advance<Simd>;
#else
extern const Advance avx2_advance = nullptr;
#endif
