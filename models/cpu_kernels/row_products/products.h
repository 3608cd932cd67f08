// The forms of row products, one for each instruction set and dtype of weights.

#ifndef MODELS_CPU_KERNELS_PRODUCTS_H_
#define MODELS_CPU_KERNELS_PRODUCTS_H_

#include <stdint.h>

// Rows that are prepared together, and skipped together if all are zeros.
constexpr int64_t ROW_TILE = 16;

// One product y[rows, outputs] = x[rows, inputs] * weight[outputs, inputs]^T.
struct Product {
  const void* x;  // prepared by the form: `x_stride` numbers per row, zeros from `inputs` on
  int64_t x_stride;
  const void* weight;
  float* y;
  int64_t rows, inputs, outputs;
  // [rows], 1 for a row of zeros: a form may omit its results, which the caller writes. Null: no such rows.
  const uint8_t* zeros = nullptr;
};

// True if all rows from `first` to before `end` are zeros.
static inline bool only_zeros(const Product& product, int64_t first, int64_t end) {
  if (product.zeros == nullptr) return false;
  for (int64_t row = first; row < end; ++row)
    if (!product.zeros[row]) return false;
  return true;
}

struct Form {
  // Copy rows in the form that `product` reads, (x, order, rows, inputs, prepared, x_stride): row `order[k]` of x as
  // row k; null `order` keeps the rows. Rows that are multiplied together are prepared together.
  void (*prepare)(const float*, const int64_t*, int64_t, int64_t, void*, int64_t);
  // Compute outputs `first` to before `last` of every row.
  void (*product)(const Product&, int64_t first, int64_t last);
  int64_t number_bytes;  // of a prepared number
  int64_t step;          // `x_stride` is a multiple of it
  int64_t outputs;       // rows of a weight that fill tiles
};

// Forms of one instruction set; null `product` if the compiler lacks the instructions.
struct Forms {
  Form bfloat16, float32;
};

extern const Forms portable_forms, avx2_forms, avx512_forms, avx512bf16_forms, neon_forms, neonbf16_forms, amx_forms;

#endif  // MODELS_CPU_KERNELS_PRODUCTS_H_
