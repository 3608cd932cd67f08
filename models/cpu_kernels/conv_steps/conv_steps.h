// The forms of a short convolution over a few tokens, one for each instruction set.

#ifndef MODELS_CPU_KERNELS_CONV_STEPS_H_
#define MODELS_CPU_KERNELS_CONV_STEPS_H_

#include <stdint.h>

constexpr int64_t MIN_TAPS = 2, MAX_TAPS = 8;
// Channels with transposed taps on a thread's stack, for all lanes.
constexpr int64_t BLOCK_CHANNELS = 256;

struct Bfloat16 {
  uint16_t bits;
};

// One step of N lanes, T tokens, in row-major order; only the first `lengths[lane]` tokens are read.
struct ConvStep {
  const int32_t* slots;    // [lane], row of each lane in `state`; null: row i of lane i
  const int32_t* lengths;  // [lane], from 0 to T
  const bool* fresh;       // [lane], starts from zero, whatever its row holds
  const float* x;          // [lane, token, channel]
  const void* taps;        // [channel, tap], the current token's tap last
  const float* bias;       // [channel], or null
  void* state;             // [row, taps - 1, channel], inputs before the first token; updated in place
  float* out;              // [lane, token, channel], zero at padding tokens
  int64_t lanes, tokens, channels, kernel;  // `kernel` is the number of taps
  bool narrow_taps, narrow_state;           // bfloat16 instead of float
  bool activated;                           // apply SiLU to outputs
  bool keeps_state;                         // do not write `state`
};

// Convolve at most BLOCK_CHANNELS channels of some lanes. Null if the compiler lacks the instructions.
using Convolve = void (*)(const ConvStep&, int64_t first_lane, int64_t last_lane, int64_t first, int64_t last);

extern const Convolve portable_convolve, avx2_convolve, avx512_convolve;

#endif  // MODELS_CPU_KERNELS_CONV_STEPS_H_
