// Attention over a KV cache for any processor: vectors of eight numbers, which compilers make of what there is.

#include "decode_attention.h"

namespace {

struct Simd {
  typedef float Vector __attribute__((vector_size(32)));
  typedef uint32_t Integers __attribute__((vector_size(32)));
  static constexpr int STEP = 8, SUMS = 4, ROWS = 2;

  static Vector all(float x) { return Vector{x, x, x, x, x, x, x, x}; }
  static Vector load(const float* from) {
    Vector numbers;
    __builtin_memcpy(&numbers, from, sizeof numbers);
    return numbers;
  }
  static Vector load(const uint16_t* from) {
    Integers bits;
    for (int k = 0; k < STEP; ++k) bits[k] = static_cast<uint32_t>(from[k]) << 16;
    return (Vector)bits;
  }
  static Vector load_first(const float* from, int64_t count) {
    Vector numbers{};
    for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
    return numbers;
  }
  static Vector load_first(const uint16_t* from, int64_t count) {
    Integers bits{};
    for (int64_t k = 0; k < count; ++k) bits[k] = static_cast<uint32_t>(from[k]) << 16;
    return (Vector)bits;
  }
  static void store(float* to, Vector x) { __builtin_memcpy(to, &x, sizeof x); }
  static void store_first(float* to, Vector x, int64_t count) {
    for (int64_t k = 0; k < count; ++k) to[k] = x[k];
  }
  static Vector larger(Vector x, Vector y) {
    for (int k = 0; k < STEP; ++k) x[k] = x[k] > y[k] ? x[k] : y[k];
    return x;
  }
  static Vector add_product(Vector sum, Vector x, Vector y) { return sum + x * y; }
  template <int COUNT>
  static void totals(const Vector* sums, float* to) {
    for (int k = 0; k < COUNT; ++k) {
      const Vector& s = sums[k];
      to[k] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
  }
};

}  // namespace

extern const AttendForms portable_attend = attend_forms<Simd>();
