// Checks of the operands of steps in place.

#ifndef MODELS_CPU_KERNELS_LANE_ROWS_H_
#define MODELS_CPU_KERNELS_LANE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace cpu_kernels {

template <typename Buffer>
bool has_sizes(const Buffer& buffer, std::initializer_list<int64_t> sizes) {
  const auto found = buffer.dimensions();
  return std::equal(found.begin(), found.end(), sizes.begin(), sizes.end());
}

// The row of each lane; null, for an empty array: row i of lane i.
template <typename Lanes>
const int32_t* slots_of(const Lanes& slots) {
  return slots.element_count() == 0 ? nullptr : slots.typed_data();
}

// Name a lane with too many tokens, a row outside the pool of `rows`, or a row in common with another lane with tokens;
// "" without a fault. Without slots row i is of lane i.
inline std::string fault_of_lanes(const int32_t* slots, const int32_t* lengths, int64_t lanes, int64_t tokens,
                                  int64_t rows) {
  std::vector<bool> taken(static_cast<std::size_t>(rows));
  for (int64_t lane = 0; lane < lanes; ++lane) {
    if (lengths[lane] < 0 || lengths[lane] > tokens)
      return "lane " + std::to_string(lane) + " has " + std::to_string(lengths[lane]) + " tokens: expected 0 to " +
             std::to_string(tokens);
    if (slots == nullptr || lengths[lane] == 0) continue;
    const int64_t slot = slots[lane];
    if (slot < 0 || slot >= rows || taken[static_cast<std::size_t>(slot)])
      return "lane " + std::to_string(lane) + " is on row " + std::to_string(slot) + " of " + std::to_string(rows) +
             ": expected a row of its own";
    taken[static_cast<std::size_t>(slot)] = true;
  }
  return "";
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_LANE_ROWS_H_
