// Steps of a recurrence for any processor.

#include "recurrent_step.h"
#include "shared/portable_vectors.h"

namespace {

struct Simd : PortableVectors {
  static constexpr int ROWS = 2;
};

}  // namespace

extern const Advance portable_advance = advance<Simd>;
