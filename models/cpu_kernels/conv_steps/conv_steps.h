// The forms of a short convolution over a few tokens, one for each instruction set.

#ifndef MODELS_CPU_KERNELS_CONV_STEPS_H_
#define MODELS_CPU_KERNELS_CONV_STEPS_H_

#include <stdint.h>

constexpr int64_t MIN_TAPS = 2, MAX_TAPS = 8;
// Channels whose taps a thread keeps on its stack, transposed, while the lanes pass.
constexpr int64_t BLOCK_CHANNELS = 256;

struct Bfloat16 {
  uint16_t bits;
};

// One step of N lanes, T tokens, in row-major order. Of a lane only the first `lengths[lane]` tokens are read.
struct ConvStep {
  const int32_t* slots;    // [lane], the row of each lane in `state`; null where row i is of lane i
  const int32_t* lengths;  // [lane], from 0 to T
  const bool* fresh;       // [lane], whether it starts from zero, whatever its row holds
  const float* x;          // [lane, token, channel]
  const void* taps;        // [channel, tap], that of the current token last
  const float* bias;       // [channel]; null for none
  void* state;             // [row, taps - 1, channel], the inputs before the first token; updated in its place
  float* out;              // [lane, token, channel], zero at padding tokens
  int64_t lanes, tokens, channels, kernel;  // `kernel` is the number of taps
  bool narrow_taps, narrow_state;           // bfloat16 and not float
  bool activated;                           // whether outputs go through SiLU
  bool keeps_state;                         // nothing is written to `state`
};

// Convolve some channels, at most BLOCK_CHANNELS, of some lanes. A null pointer where the compiler has no such
// instructions.
using Convolve = void (*)(const ConvStep&, int64_t first_lane, int64_t last_lane, int64_t first, int64_t last);

extern const Convolve portable_convolve, avx2_convolve, avx512_convolve;

#endif  // MODELS_CPU_KERNELS_CONV_STEPS_H_
