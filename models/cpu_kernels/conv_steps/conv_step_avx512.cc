// Steps of a short convolution for x86-64 with AVX-512 (F, BW, DQ and VL).

#include <stdint.h>

namespace {
constexpr int STEP = 16;
}

#include "conv_step.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
extern const Convolve avx512_convolve = convolve;
#else
extern const Convolve avx512_convolve = nullptr;
#endif
