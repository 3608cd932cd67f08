// Passes over the logits of one row for x86-64 with AVX-512.

#include <stdint.h>

namespace {
constexpr int STEP = 16;
}

#include "row_passes.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
extern const RowPasses avx512_row_passes = row_passes;
#else
extern const RowPasses avx512_row_passes = {};
#endif
