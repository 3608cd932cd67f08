// Steps of a recurrence for x86-64 with AVX-512 (F, BW, DQ and VL).

#include "recurrent_step.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "shared/avx512_vectors.h"

namespace {

struct Simd : Avx512Vectors {
  static constexpr int ROWS = 8;
};

}  // namespace

extern const Advance avx512_advance = advance<Simd>;
#else
extern const Advance avx512_advance = nullptr;
#endif
