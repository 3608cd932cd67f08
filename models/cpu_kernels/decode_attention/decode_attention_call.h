// Write the keys and values of a few tokens, and attend over the KV cache, on the threads of a pool.

#ifndef MODELS_CPU_KERNELS_DECODE_ATTENTION_CALL_H_
#define MODELS_CPU_KERNELS_DECODE_ATTENTION_CALL_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "decode_attentions.h"
#include "shared/parallel.h"
#include "row_products/row_product.h"

namespace cpu_kernels {

// Bytes of keys and values for another thread (`parts_of`).
constexpr int64_t MIN_ATTENTION_BYTES = 64 * 1024;
// Query rows that a core multiplies as fast as it reads keys and values.
constexpr int64_t ROWS_AT_ONCE = 4;

// Name a lane with too many tokens, a page outside the pool of `pages`, or a written page with two names; "" without a
// fault. Only entries up to a lane's last token count.
inline std::string fault_of_pages(const DecodeAttention& step, int64_t pages) {
  std::vector<uint8_t> names(static_cast<std::size_t>(pages));  // 2 for two names or more
  const auto each = [&](int64_t lane, int64_t from, const auto& work) {
    const int64_t end = std::min(int64_t{step.positions[lane]} + step.lengths[lane], step.context());
    for (int64_t at = std::max(from, int64_t{0}); at < end; at += PAGE_POSITIONS - at % PAGE_POSITIONS)
      if (work(step.page_of(lane, at))) return step.page_of(lane, at);
    return int64_t{0};
  };
  const auto about = [](int64_t lane) { return "lane " + std::to_string(lane); };
  for (int64_t lane = 0; lane < step.lanes; ++lane) {
    if (step.lengths[lane] < 0 || step.lengths[lane] > step.tokens)
      return about(lane) + " has " + std::to_string(step.lengths[lane]) + " tokens: expected 0 to " +
             std::to_string(step.tokens);
    if (step.lengths[lane] == 0) continue;
    int64_t outside = 0;
    each(lane, 0, [&](int64_t page) {
      if (page < 0 || page >= pages) {
        outside = page;
        return true;
      }
      uint8_t& count = names[static_cast<std::size_t>(page)];
      count = count == 0 ? 1 : 2;
      return false;
    });
    if (outside != 0)
      return about(lane) + " is on page " + std::to_string(outside) + ": expected one of " + std::to_string(pages);
  }
  for (int64_t lane = 0; lane < step.lanes; ++lane) {
    if (step.lengths[lane] == 0) continue;
    const int64_t shared = each(lane, step.positions[lane], [&](int64_t page) {
      return page != 0 && names[static_cast<std::size_t>(page)] > 1;
    });
    if (shared != 0)
      return about(lane) + " writes to page " + std::to_string(shared) + ", which is named twice";
  }
  return "";
}

inline void keep(float number, float* to) { *to = number; }
inline void keep(float number, uint16_t* to) { *to = static_cast<uint16_t>(rounded_bits(bits_of(number)) >> 16); }

// Write a lane's and head's new keys or values at their positions; those without a page are dropped.
template <typename Number>
void append(const DecodeAttention& step, int64_t lane, int64_t kv_head, const float* fresh, void* cache, int64_t size) {
  Number* const pool = static_cast<Number*>(cache);
  for (int64_t token = 0; token < step.lengths[lane]; ++token) {
    const int64_t at = step.positions[lane] + token;
    if (at < 0 || at >= step.context()) continue;
    const int64_t page = step.page_of(lane, at);
    if (page == 0) continue;
    Number* const to = pool + ((page * step.kv_heads + kv_head) * PAGE_POSITIONS + at % PAGE_POSITIONS) * size;
    const float* const from = fresh + ((lane * step.tokens + token) * step.kv_heads + kv_head) * size;
    for (int64_t k = 0; k < size; ++k) keep(from[k], to + k);
  }
}

template <typename Number, typename Pool>
void decode_attention(Pool& pool, Attend attend, const DecodeAttention& step) {
  const int64_t heads = step.lanes * step.kv_heads, rows = step.rows(), bytes = static_cast<int64_t>(sizeof(Number));
  const int64_t stored = bytes * (step.key + (step.new_values == nullptr ? 0 : step.value));
  const int64_t writers = parts_of(pool, heads, heads * step.tokens * stored, MIN_ATTENTION_BYTES);
  in_parallel(pool, writers, [&](int64_t part) {
    for (int64_t at = part * heads / writers; at < (part + 1) * heads / writers; ++at) {
      append<Number>(step, at / step.kv_heads, at % step.kv_heads, step.new_keys, step.keys, step.key);
      if (step.new_values == nullptr) continue;
      append<Number>(step, at / step.kv_heads, at % step.kv_heads, step.new_values, step.values, step.value);
    }
  });
  int64_t positions = 0;
  for (int64_t lane = 0; lane < step.lanes; ++lane)
    if (step.lengths[lane]) {
      const int64_t seen = std::clamp<int64_t>(step.positions[lane] + step.lengths[lane], 0, step.context());
      positions += seen - std::min(step.unseen(int64_t{step.positions[lane]} + 1), seen);
    }
  const int64_t tiles = (rows + MAX_ATTENTION_ROWS - 1) / MAX_ATTENTION_ROWS, all = heads * tiles;
  const int64_t work = positions * step.kv_heads * stored * ((rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE);
  const int64_t parts = parts_of(pool, all, work, MIN_ATTENTION_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    for (int64_t at = part * all / parts; at < (part + 1) * all / parts; ++at) {
      const int64_t head = at / tiles, first = at % tiles * MAX_ATTENTION_ROWS;
      attend(step, head / step.kv_heads, head % step.kv_heads, first, std::min(first + MAX_ATTENTION_ROWS, rows));
    }
  });
}

// `is_bfloat16`: the dtype of the caches.
template <typename Pool>
void decode_attention(Pool& pool, const AttendForms& forms, bool is_bfloat16, const DecodeAttention& step) {
  if (is_bfloat16)
    decode_attention<uint16_t>(pool, forms.bfloat16, step);
  else
    decode_attention<float>(pool, forms.float32, step);
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_DECODE_ATTENTION_CALL_H_
