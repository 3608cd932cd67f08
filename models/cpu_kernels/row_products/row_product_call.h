// One row product on the threads of a pool.

#ifndef MODELS_CPU_KERNELS_ROW_PRODUCT_CALL_H_
#define MODELS_CPU_KERNELS_ROW_PRODUCT_CALL_H_

#include <algorithm>
#include <memory>
#include <new>

#include "products.h"
#include "shared/parallel.h"

namespace cpu_kernels {

// Bytes of weights and rows for another thread (`parts_of`), and bytes of rows to prepare.
constexpr int64_t MIN_PART_BYTES = 32 * 1024, MIN_PREPARED_BYTES = 128 * 1024;
constexpr std::size_t ALIGNMENT = 64;

// Memory of a thread for its calls, as large as the largest call so far.
class Scratch {
 public:
  void* of_size(std::size_t bytes) {
    if (bytes > size_) {
      memory_.reset();
      size_ = 0;
      memory_.reset(::operator new(bytes, std::align_val_t(ALIGNMENT)));
      size_ = bytes;
    }
    return memory_.get();
  }

 private:
  struct Free {
    void operator()(void* memory) const { ::operator delete(memory, std::align_val_t(ALIGNMENT)); }
  };
  std::unique_ptr<void, Free> memory_;
  std::size_t size_ = 0;
};

inline bool is_zeros(const float* numbers, int64_t count) {
  for (int64_t k = 0; k < count; ++k)
    if (numbers[k] != 0.0f) return false;
  return true;
}

// Rows in the form's layout, `x_stride` numbers each, and a flag for rows of zeros; both in the scratch.
struct PreparedRows {
  const void* x;
  const uint8_t* zeros;
};

// Prepare rows on the threads of a pool. Padding and idle lanes of a step are rows of zeros.
template <typename Pool>
PreparedRows prepared_rows(Pool& pool, const Form& form, const float* x, int64_t rows, int64_t inputs, int64_t x_stride,
                           Scratch& scratch) {
  const int64_t row_bytes = x_stride * form.number_bytes, pieces = (rows + ROW_TILE - 1) / ROW_TILE;
  auto* const prepared = static_cast<char*>(scratch.of_size(static_cast<std::size_t>(rows * row_bytes + rows)));
  auto* const zeros = reinterpret_cast<uint8_t*>(prepared + rows * row_bytes);
  const int64_t parts = parts_of(pool, pieces, rows * row_bytes, MIN_PREPARED_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    const int64_t first = part * pieces / parts * ROW_TILE, stop = (part + 1) * pieces / parts * ROW_TILE;
    const int64_t end = stop < rows ? stop : rows;
    for (int64_t row = first; row < end; ++row) zeros[row] = is_zeros(x + row * inputs, inputs);
    form.prepare(x + first * inputs, nullptr, end - first, inputs, prepared + first * row_bytes, x_stride);
  });
  return {prepared, zeros};
}

// Write zeros for rows of zeros, outputs `first` to before `last`, whatever the weight.
inline void write_zeros(const uint8_t* zeros, float* y, int64_t rows, int64_t outputs, int64_t first, int64_t last) {
  for (int64_t row = 0; row < rows; ++row)
    if (zeros[row]) std::fill(y + row * outputs + first, y + row * outputs + last, 0.0f);
}

// y = x * weight^T; x is [rows, inputs], weight [outputs, inputs], y [rows, outputs], all in row-major order. Rows of
// zeros give zeros, and tiles of such rows take no time.
template <typename Pool>
void row_product(Pool& pool, const Form& form, const float* x, const void* weight, float* y, int64_t rows, int64_t inputs,
                 int64_t outputs, int64_t weight_bytes) {
  if (rows == 0 || outputs == 0) return;
  thread_local Scratch scratch;
  const int64_t x_stride = (inputs + form.step - 1) / form.step * form.step;
  const PreparedRows prepared = prepared_rows(pool, form, x, rows, inputs, x_stride, scratch);
  const Product product{prepared.x, x_stride, weight, y, rows, inputs, outputs, prepared.zeros};
  const int64_t parts = parts_of(pool, outputs, outputs * inputs * weight_bytes, MIN_PART_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    const int64_t first = part * outputs / parts, last = (part + 1) * outputs / parts;
    form.product(product, first, last);
    write_zeros(prepared.zeros, y, rows, outputs, first, last);
  });
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_ROW_PRODUCT_CALL_H_
