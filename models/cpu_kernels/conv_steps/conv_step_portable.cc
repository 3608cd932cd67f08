// Steps of a short convolution for any processor. For aarch64 compilers make NEON of it, which every such one has.

#include <stdint.h>

namespace {
constexpr int STEP = 4;
}

#include "conv_step.h"

extern const Convolve portable_convolve = convolve;
