// Attention over a KV cache for x86-64 with AVX-512 (F, BW, DQ and VL).

#include "decode_attention.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "shared/avx512_vectors.h"

namespace {

struct Simd : Avx512Vectors {
  static constexpr int SUMS = 16, ROWS = 4;
};

}  // namespace

extern const AttendForms avx512_attend = attend_forms<Simd>();
#else
extern const AttendForms avx512_attend = {};
#endif
