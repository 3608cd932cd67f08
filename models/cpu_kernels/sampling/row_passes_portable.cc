// Passes over the logits of one row for any processor; for aarch64, compilers use NEON.

#include <stdint.h>

namespace {
constexpr int STEP = 4;
}

#include "row_passes.h"

extern const RowPasses portable_row_passes = row_passes;
