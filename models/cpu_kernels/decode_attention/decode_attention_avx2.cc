// Attention over a KV cache for x86-64 with AVX2 and FMA.

#include "decode_attention.h"

#if defined(__AVX2__) && defined(__FMA__)
#include "shared/avx2_vectors.h"

namespace {

struct Simd : Avx2Vectors {
  static constexpr int SUMS = 8, ROWS = 2;
};

}  // namespace

extern const AttendForms avx2_attend = attend_forms<Simd>();
#else
extern const AttendForms avx2_attend = {};
#endif
