// Steps of a short convolution for x86-64 with AVX2.

#include <stdint.h>

namespace {
constexpr int STEP = 8;
}

#include "conv_step.h"

#if defined(__AVX2__)
extern const Convolve avx2_convolve = convolve;
#else
extern const Convolve avx2_convolve = nullptr;
#endif
