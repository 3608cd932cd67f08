// Attention over a KV cache for any processor.

#include "decode_attention.h"
#include "shared/portable_vectors.h"

namespace {

struct Simd : PortableVectors {
  static constexpr int SUMS = 4, ROWS = 2;
};

}  // namespace

extern const AttendForms portable_attend = attend_forms<Simd>();
