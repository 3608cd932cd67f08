// The forms of attention of a few tokens over a KV cache, one for each instruction set and dtype of caches.

#ifndef MODELS_CPU_KERNELS_DECODE_ATTENTIONS_H_
#define MODELS_CPU_KERNELS_DECODE_ATTENTIONS_H_

#include <stdint.h>

// Query rows of a lane and key/value head that are computed together, each key and value being read once for them.
constexpr int64_t MAX_ATTENTION_ROWS = 32;

// Positions of a page of a cache: KV_BLOCK in models/state/state.py.
constexpr int64_t PAGE_POSITIONS = 128;

// One step of N lanes, T tokens, in row-major order. Of a lane only the first `lengths[lane]` tokens are read. The keys and
// values of these are in the caches already (`append` in decode_attention_call.h).
struct DecodeAttention {
  const int32_t* pages;      // [lane, block], page table; page 0, the null page, stands for no page
  const int32_t* lengths;    // [lane], from 0 to T
  const int32_t* positions;  // [lane], of its first token
  const float* query;        // [lane, token, head, key], scaled
  const float* new_keys;     // [lane, token, kv_head, key], those of the tokens
  const float* new_values;   // [lane, token, kv_head, value]; null where a value is the first numbers of a key
  void* keys;                // [page, kv_head, PAGE_POSITIONS, key], of the cache's dtype
  void* values;              // [page, kv_head, PAGE_POSITIONS, value]; `keys` where a value is the first numbers of a key
  float* out;                // [lane, token, head, value], zero at padding tokens
  int64_t lanes, tokens, heads, kv_heads, key, value, blocks;
  int64_t window;            // positions that a token sees, its own included; 0 for all

  // Positions from 0 on that a token with `seen` positions up to its own does not see.
  int64_t unseen(int64_t seen) const { return window > 0 && seen > window ? seen - window : 0; }

  // Positions that a lane's row of the page table has entries for.
  int64_t context() const { return blocks * PAGE_POSITIONS; }
  // Page of a position of a lane, before `context()`.
  int64_t page_of(int64_t lane, int64_t position) const { return pages[lane * blocks + position / PAGE_POSITIONS]; }
  int64_t rows() const { return tokens * (heads / kv_heads); }
  // Numbers from one value to the next.
  int64_t value_stride() const { return new_values == nullptr ? key : value; }
};

// Compute the rows from `first` to before `last`, at most MAX_ATTENTION_ROWS, of one lane and key/value head. A row is a
// head of its group for a token; those of one token follow each other.
using Attend = void (*)(const DecodeAttention&, int64_t lane, int64_t kv_head, int64_t first, int64_t last);

// Null pointers where the compiler has no such instructions.
struct AttendForms {
  Attend bfloat16, float32;
};

extern const AttendForms portable_attend, avx2_attend, avx512_attend, neon_attend;

#endif  // MODELS_CPU_KERNELS_DECODE_ATTENTIONS_H_
