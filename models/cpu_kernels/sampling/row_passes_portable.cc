// Passes over the logits of one row for any processor. For aarch64 compilers make NEON of it, which every such processor has.

#include <stdint.h>

namespace {
constexpr int STEP = 4;
}

#include "row_passes.h"

extern const RowPasses portable_row_passes = row_passes;
