// Passes over the logits of one row, one form for each instruction set.

#ifndef MODELS_CPU_KERNELS_SAMPLE_ROWS_H_
#define MODELS_CPU_KERNELS_SAMPLE_ROWS_H_

#include <stdint.h>

// Adjacent tokens with one maximum; a multiple of the numbers of a vector. The last group may be shorter.
constexpr int64_t GROUP_TOKENS = 64;

constexpr int64_t THRESHOLDS = 4;

constexpr float LEAST_WEIGHT = 1e-6f;

// Sums of the weights of all tokens, and of those with a scaled logit above each threshold.
struct Weights {
  double all, above[THRESHOLDS];
};

struct RowPasses {
  // Write the maximum of each group; return whether a logit is NaN.
  bool (*group_maxima)(const float* logits, int64_t vocab, float* maxima);
  // Return the sums of exp(logits[i] / temperature - highest), each term at most 1. Groups of tiny weights are left out:
  // together at most LEAST_WEIGHT.
  Weights (*weights)(const float* logits, const float* maxima, int64_t vocab, float temperature, float highest,
                     const float* thresholds);
  // Write exp(logits[i] / temperature - highest) of `count` tokens, at most 1 each.
  void (*exponentials)(const float* logits, int64_t count, float temperature, float highest, float* powers);
  // Write the random words of `count` tokens from the token `first`: threefry2x32 of (0, token), both halves combined.
  void (*random_words)(const uint32_t* key, int64_t first, int64_t count, uint32_t* words);
};

extern const RowPasses portable_row_passes, avx2_row_passes, avx512_row_passes;

#endif  // MODELS_CPU_KERNELS_SAMPLE_ROWS_H_
