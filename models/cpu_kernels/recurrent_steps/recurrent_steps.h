// The forms of a linear recurrence over tokens, one for each instruction set.

#ifndef MODELS_CPU_KERNELS_RECURRENT_STEPS_H_
#define MODELS_CPU_KERNELS_RECURRENT_STEPS_H_

#include <stdint.h>

// Tokens of a block, during which a few rows of a state stay in the first cache; also the longest step with a kept
// state.
constexpr int64_t BLOCK_TOKENS = 64;
// Maximum channels of the key, for some rows on a thread's stack.
constexpr int64_t MAX_STEP_KEYS = 512;

// One step of N lanes, T tokens, in row-major order; only the first `lengths[lane]` tokens are read.
struct RecurrentStep {
  const int32_t* slots;    // [lane], row of each lane in `state`; null: row i of lane i
  const int32_t* lengths;  // [lane], from 0 to T
  const bool* fresh;       // [lane], starts from zero, whatever its row holds
  const float* decay;      // [lane, token, head], or [lane, token, head, key] if `by_channel`
  const float* beta;       // [lane, token, head], write strength of the delta rule; null in SSD
  const float* query;      // [lane, token, key_head, key]
  const float* key;        // the same
  const float* value;      // [lane, token, head, value]
  float* state;            // [row, head, value, key], updated in place
  float* out;              // [lane, token, head, value], zero at padding tokens
  int64_t lanes, tokens, heads, key_heads, values, keys;
  bool by_channel;
  bool keeps_state;  // do not write `state`; T is at most BLOCK_TOKENS
};

// Advance rows `first` to before `last` of the state of one lane and head by all its tokens. Null if the compiler lacks
// the instructions.
using Advance = void (*)(const RecurrentStep&, int64_t lane, int64_t head, int64_t first, int64_t last);

extern const Advance portable_advance, avx2_advance, avx512_advance, neon_advance;

#endif  // MODELS_CPU_KERNELS_RECURRENT_STEPS_H_
