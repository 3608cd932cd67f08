// Steps of a short convolution for any processor; for aarch64, compilers use NEON.

#include <stdint.h>

namespace {
constexpr int STEP = 4;
}

#include "conv_step.h"

extern const Convolve portable_convolve = convolve;
