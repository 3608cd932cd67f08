// Tokens of a linear recurrence, in place: the gated delta rule, with a decay for each head or channel, and SSD.
//
// A file for each instruction set defines `Simd` and includes this header, as row_products/row_product.h explains.
//
// Each row S[v] of a state is advanced by itself. A few rows stay in the first cache of a core during a block of
// tokens, so memory is read and written once per block. All sums are in the order of the key's channels: the bits of a
// row depend neither on other lanes, the thread nor the number of tokens of the step.

#ifndef MODELS_CPU_KERNELS_RECURRENT_STEP_H_
#define MODELS_CPU_KERNELS_RECURRENT_STEP_H_

#include "recurrent_steps.h"

namespace {

// Prefetch later rows of the state to the second cache. With one token for each of 32 lanes, two cores of Zen 4 read and
// write 41 GB/s, and 24 with prefetches to the first cache, which holds the rows in work (2026-11-29).
inline void ask_ahead(const float* at) {
  constexpr int READ = 0, SECOND_CACHE = 2;
  __builtin_prefetch(reinterpret_cast<const char*>(at) + 16 * 1024, READ, SECOND_CACHE);
}

// Call `work(k, load, store)` for each vector of a row, the last with `keys % STEP` numbers.
template <typename Simd, typename Work>
inline void over_channels(int64_t keys, const Work& work) {
  using Vector = typename Simd::Vector;
  const int64_t whole = keys - keys % Simd::STEP;
  for (int64_t k = 0; k < whole; k += Simd::STEP)
    work(k, [](const float* from) { return Simd::load(from); }, [](float* to, Vector x) { Simd::store(to, x); });
  if (const int64_t left = keys - whole)
    work(whole, [left](const float* from) { return Simd::load_first(from, left); },
         [left](float* to, Vector x) { Simd::store_first(to, x, left); });
}

// Operands of one token for all rows of a head.
struct Token {
  const float* query;
  const float* key;
  const float* decay;  // of the head or of each channel
  float beta;
  float query_key;  // sum of query * key
};

// Sums of ROWS rows with a token's key and query, both decayed if the decay is by channel.
template <typename Simd, int ROWS>
using Sums = typename Simd::Vector[2 * ROWS];

template <typename Simd, int ROWS, bool BY_CHANNEL, typename Load, typename Rows>
inline __attribute__((always_inline)) void read_channels(const Token& token, int64_t k, const Load& load,
                                                         const Rows& state_of, Sums<Simd, ROWS>& sums) {
  typename Simd::Vector key = load(token.key + k), query = load(token.query + k);
  if (BY_CHANNEL) {
    const auto decay = load(token.decay + k);
    key = Simd::multiply(decay, key);
    query = Simd::multiply(decay, query);
  }
  for (int row = 0; row < ROWS; ++row) {
    const auto state = state_of(row);
    sums[row] = Simd::add_product(sums[row], state, key);
    sums[ROWS + row] = Simd::add_product(sums[ROWS + row], state, query);
  }
}

// Read ROWS rows for the first token of a block.
template <typename Simd, int ROWS, bool BY_CHANNEL>
void read_first(const float* rows, int64_t keys, const Token& token, Sums<Simd, ROWS>& sums) {
  for (auto& sum : sums) sum = Simd::all(0.0f);
  over_channels<Simd>(keys, [&](int64_t k, auto load, auto) __attribute__((always_inline)) {
    const auto state_of = [&](int row) __attribute__((always_inline)) {
      ask_ahead(rows + row * keys + k);
      return load(rows + row * keys + k);
    };
    read_channels<Simd, ROWS, BY_CHANNEL>(token, k, load, state_of, sums);
  });
}

// Write a token's `delta key^T` to ROWS rows, and in the same pass read them for the next token, if any.
template <typename Simd, int ROWS, bool BY_CHANNEL, bool READS>
void write_and_read(float* rows, int64_t keys, const Token& token, const float* delta, const Token* next,
                    Sums<Simd, ROWS>& sums) {
  using Vector = typename Simd::Vector;
  for (auto& sum : sums) sum = Simd::all(0.0f);
  over_channels<Simd>(keys, [&](int64_t k, auto load, auto store) __attribute__((always_inline)) {
    const Vector key = load(token.key + k), left = BY_CHANNEL ? load(token.decay + k) : Simd::all(*token.decay);
    const auto state_of = [&](int row) __attribute__((always_inline)) {
      float* const at = rows + row * keys + k;
      const Vector state = Simd::add_product(Simd::multiply(left, load(at)), Simd::all(delta[row]), key);
      store(at, state);
      return state;
    };
    if (READS)
      read_channels<Simd, ROWS, BY_CHANNEL>(*next, k, load, state_of, sums);
    else
      for (int row = 0; row < ROWS; ++row) state_of(row);
  });
}

// Advance ROWS rows by a block of tokens; without `writes`, the last token needs no new rows.
//
// With r = S decay [key, query] and d = beta (value - r_key), the delta rule's output is r_query + (query key) d.
template <typename Simd, int ROWS, bool BY_CHANNEL>
void correct(float* rows, int64_t keys, const Token* tokens, int64_t count, const float* value, float* out,
             int64_t stride, bool writes) {
  Sums<Simd, ROWS> sums;
  read_first<Simd, ROWS, BY_CHANNEL>(rows, keys, tokens[0], sums);
  for (int64_t k = 0; k < count; ++k, value += stride, out += stride) {
    const Token& token = tokens[k];
    float read[2 * ROWS], delta[ROWS];
    Simd::template store_totals<2 * ROWS>(sums, read);
    const float decay = BY_CHANNEL ? 1.0f : *token.decay;
    for (int row = 0; row < ROWS; ++row) {
      delta[row] = token.beta * (value[row] - decay * read[row]);
      out[row] = decay * read[ROWS + row] + token.query_key * delta[row];
    }
    if (k + 1 < count)
      write_and_read<Simd, ROWS, BY_CHANNEL, true>(rows, keys, token, delta, &tokens[k + 1], sums);
    else if (writes)
      write_and_read<Simd, ROWS, BY_CHANNEL, false>(rows, keys, token, delta, nullptr, sums);
  }
}

// Advance ROWS rows by a token of SSD: without a correction, a row is read as it is written.
template <typename Simd, int ROWS>
void add(float* rows, int64_t keys, const Token& token, const float* value, float* out, bool first, bool writes) {
  using Vector = typename Simd::Vector;
  Vector sums[ROWS];
  for (auto& one : sums) one = Simd::all(0.0f);
  const Vector decay = Simd::all(*token.decay);
  over_channels<Simd>(keys, [&](int64_t k, auto load, auto store) __attribute__((always_inline)) {
    const Vector key = load(token.key + k), query = load(token.query + k);
    for (int row = 0; row < ROWS; ++row) {
      float* const at = rows + row * keys + k;
      if (first) ask_ahead(at);
      const Vector state = Simd::add_product(Simd::multiply(decay, load(at)), Simd::all(value[row]), key);
      if (writes) store(at, state);
      sums[row] = Simd::add_product(sums[row], state, query);
    }
  });
  Simd::template store_totals<ROWS>(sums, out);
}

// Advance ROWS rows by a block of tokens of their lane.
template <typename Simd, int ROWS>
void advance_rows(const RecurrentStep& step, const Token* tokens, int64_t count, bool fresh, float* state,
                  const float* value, float* out) {
  const int64_t keys = step.keys, stride = step.heads * step.values;
  alignas(64) float copy[ROWS * MAX_STEP_KEYS];
  float* rows = state;
  if (step.keeps_state && (count > 1 || fresh)) {
    rows = copy;
    if (!fresh) __builtin_memcpy(rows, state, sizeof(float) * static_cast<unsigned long>(ROWS * keys));
  }
  if (fresh) __builtin_memset(rows, 0, sizeof(float) * static_cast<unsigned long>(ROWS * keys));
  const bool writes = !step.keeps_state;
  if (step.beta == nullptr)
    for (int64_t k = 0; k < count; ++k)
      add<Simd, ROWS>(rows, keys, tokens[k], value + k * stride, out + k * stride, k == 0, writes || k + 1 < count);
  else if (step.by_channel)
    correct<Simd, ROWS, true>(rows, keys, tokens, count, value, out, stride, writes);
  else
    correct<Simd, ROWS, false>(rows, keys, tokens, count, value, out, stride, writes);
}

template <typename Simd>
void advance(const RecurrentStep& step, int64_t lane, int64_t head, int64_t first, int64_t last) {
  using Vector = typename Simd::Vector;
  const int64_t keys = step.keys, length = step.lengths[lane], stride = step.heads * step.values;
  const int64_t place = (lane * step.tokens * step.heads + head) * step.values;
  for (int64_t token = length; token < step.tokens; ++token)
    for (int64_t row = first; row < last; ++row) step.out[place + token * stride + row] = 0.0f;
  const int64_t slot = step.slots == nullptr ? lane : step.slots[lane];
  float* const state = step.state + (slot * step.heads + head) * step.values * keys;
  Token tokens[BLOCK_TOKENS];
  for (int64_t begin = 0; begin < length; begin += BLOCK_TOKENS) {
    const int64_t count = length - begin < BLOCK_TOKENS ? length - begin : BLOCK_TOKENS;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t token = lane * step.tokens + begin + k, at = token * step.heads + head;
      const int64_t key = (token * step.key_heads + head / (step.heads / step.key_heads)) * keys;
      tokens[k] = {step.query + key, step.key + key, step.decay + at * (step.by_channel ? keys : 1), 0.0f, 0.0f};
      if (step.beta == nullptr) continue;
      tokens[k].beta = step.beta[at];
      Vector sum = Simd::all(0.0f);
      over_channels<Simd>(keys, [&](int64_t j, auto load, auto) __attribute__((always_inline)) {
        sum = Simd::add_product(sum, load(tokens[k].query + j), load(tokens[k].key + j));
      });
      Simd::template store_totals<1>(&sum, &tokens[k].query_key);
    }
    const float* const value = step.value + place + begin * stride;
    float* const out = step.out + place + begin * stride;
    const bool fresh = begin == 0 && step.fresh[lane];
    int64_t row = first;
    for (; row + Simd::ROWS <= last; row += Simd::ROWS)
      advance_rows<Simd, Simd::ROWS>(step, tokens, count, fresh, state + row * keys, value + row, out + row);
    for (; row < last; ++row)
      advance_rows<Simd, 1>(step, tokens, count, fresh, state + row * keys, value + row, out + row);
  }
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_RECURRENT_STEP_H_
