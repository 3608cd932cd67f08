// The forms of attention of a few tokens over a KV cache, one for each instruction set and dtype of caches.

#ifndef MODELS_CPU_KERNELS_DECODE_ATTENTIONS_H_
#define MODELS_CPU_KERNELS_DECODE_ATTENTIONS_H_

#include <stdint.h>

// Query rows of a lane and key/value head that read each key and value together, once.
constexpr int64_t MAX_ATTENTION_ROWS = 32;

// Positions of a page of a cache: KV_BLOCK in models/state/state.py.
constexpr int64_t PAGE_POSITIONS = 128;

// One step of N lanes, T tokens, in row-major order. Only the first `lengths[lane]` tokens are read; their keys and
// values are in the caches already (`append` in decode_attention_call.h).
struct DecodeAttention {
  const int32_t* pages;      // [lane, block], page table; page 0, the null page, stands for no page
  const int32_t* lengths;    // [lane], from 0 to T
  const int32_t* positions;  // [lane], of its first token
  const float* query;        // [lane, token, head, key], scaled
  const float* new_keys;     // [lane, token, kv_head, key]
  const float* new_values;   // [lane, token, kv_head, value]; null: the first numbers of a key
  void* keys;                // [page, kv_head, PAGE_POSITIONS, key], dtype of the cache
  void* values;              // [page, kv_head, PAGE_POSITIONS, value]; `keys` if values are the first numbers of keys
  float* out;                // [lane, token, head, value], zero at padding tokens
  int64_t lanes, tokens, heads, kv_heads, key, value, blocks;
  int64_t window;            // positions that a token sees, its own included; 0 for all

  // First positions that a token with `seen` positions up to its own does not see.
  int64_t unseen(int64_t seen) const { return window > 0 && seen > window ? seen - window : 0; }

  // Positions of a lane's row of the page table.
  int64_t context() const { return blocks * PAGE_POSITIONS; }
  // Page of a position of a lane, before `context()`.
  int64_t page_of(int64_t lane, int64_t position) const { return pages[lane * blocks + position / PAGE_POSITIONS]; }
  int64_t rows() const { return tokens * (heads / kv_heads); }
  // Numbers from one value to the next.
  int64_t value_stride() const { return new_values == nullptr ? key : value; }
};

// Compute at most MAX_ATTENTION_ROWS rows of one lane and key/value head, `first` to before `last`. A row is a head of
// its group for a token; rows of a token are adjacent.
using Attend = void (*)(const DecodeAttention&, int64_t lane, int64_t kv_head, int64_t first, int64_t last);

// Null pointers if the compiler lacks the instructions.
struct AttendForms {
  Attend bfloat16, float32;
};

extern const AttendForms portable_attend, avx2_attend, avx512_attend, neon_attend;

#endif  // MODELS_CPU_KERNELS_DECODE_ATTENTIONS_H_
