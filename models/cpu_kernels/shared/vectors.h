// The first numbers of a vector, for instruction sets without masks. `Vectors`: those of the instruction set. Included
// by files of one instruction set, as row_products/row_product.h explains.

#ifndef MODELS_CPU_KERNELS_VECTORS_H_
#define MODELS_CPU_KERNELS_VECTORS_H_

#include <stdint.h>

namespace {

template <typename Vectors, typename Number>
typename Vectors::Vector load_copied(const Number* from, int64_t count) {
  Number numbers[Vectors::STEP] = {};
  for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
  return Vectors::load(numbers);
}

template <typename Vectors>
void store_copied(float* to, typename Vectors::Vector x, int64_t count) {
  float numbers[Vectors::STEP];
  Vectors::store(numbers, x);
  for (int64_t k = 0; k < count; ++k) to[k] = numbers[k];
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_VECTORS_H_
