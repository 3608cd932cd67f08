// Vectors of eight numbers for any processor, compiled to its instructions.

#ifndef MODELS_CPU_KERNELS_PORTABLE_VECTORS_H_
#define MODELS_CPU_KERNELS_PORTABLE_VECTORS_H_

#include "shared/vectors.h"

namespace {

struct PortableVectors {
  typedef float Vector __attribute__((vector_size(32)));
  typedef uint32_t Integers __attribute__((vector_size(32)));
  typedef uint16_t Halves __attribute__((vector_size(16)));
  static constexpr int STEP = 8;

  static Vector all(float x) { return Vector{x, x, x, x, x, x, x, x}; }
  static Vector load(const float* from) {
    Vector numbers;
    __builtin_memcpy(&numbers, from, sizeof numbers);
    return numbers;
  }
  static Vector load(const uint16_t* from) {
    Halves narrow;
    __builtin_memcpy(&narrow, from, sizeof narrow);
    const Integers wide = __builtin_convertvector(narrow, Integers) << 16;
    Vector numbers;
    __builtin_memcpy(&numbers, &wide, sizeof numbers);
    return numbers;
  }
  template <typename Number>
  static Vector load_first(const Number* from, int64_t count) {
    return load_copied<PortableVectors>(from, count);
  }
  static void store(float* to, Vector x) { __builtin_memcpy(to, &x, sizeof x); }
  static void store_first(float* to, Vector x, int64_t count) { store_copied<PortableVectors>(to, x, count); }
  static Vector multiply(Vector x, Vector y) { return x * y; }
  static Vector larger(Vector x, Vector y) {
    for (int k = 0; k < STEP; ++k) x[k] = x[k] > y[k] ? x[k] : y[k];
    return x;
  }
  static Vector add_product(Vector sum, Vector x, Vector y) { return sum + x * y; }
  template <int COUNT>
  static void store_totals(const Vector* sums, float* to) {
    for (int k = 0; k < COUNT; ++k) {
      const Vector& s = sums[k];
      to[k] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
  }
};

}  // namespace

#endif  // MODELS_CPU_KERNELS_PORTABLE_VECTORS_H_
