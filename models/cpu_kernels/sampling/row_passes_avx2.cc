// Passes over the logits of one row for x86-64 with AVX2.

#include <stdint.h>

namespace {
constexpr int STEP = 8;
}

#include "row_passes.h"

#if defined(__AVX2__)
extern const RowPasses avx2_row_passes = row_passes;
#else
extern const RowPasses avx2_row_passes = {};
#endif
