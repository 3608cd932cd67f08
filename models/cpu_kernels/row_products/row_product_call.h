// One row product on the threads of a pool.

#ifndef MODELS_CPU_KERNELS_ROW_PRODUCT_CALL_H_
#define MODELS_CPU_KERNELS_ROW_PRODUCT_CALL_H_

#include <memory>
#include <new>

#include "products.h"
#include "shared/parallel.h"

namespace cpu_kernels {

// Bytes of weights and numbers of rows that are worth another thread (`parts_of`), and bytes of rows to be prepared.
constexpr int64_t MIN_PART_BYTES = 32 * 1024, MIN_PREPARED_BYTES = 128 * 1024;
// Rows that a form prepares together, at most.
constexpr int64_t PREPARED_ROWS = 16;
constexpr std::size_t ALIGNMENT = 64;

// Memory that a thread keeps for its calls, as large as the largest of them so far.
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

// Prepare rows on the threads of a pool, each with `x_stride` numbers. The result is the scratch's.
template <typename Pool>
void* prepared_rows(Pool& pool, const Form& form, const float* x, int64_t rows, int64_t inputs, int64_t x_stride,
                    Scratch& scratch) {
  const int64_t row_bytes = x_stride * form.number_bytes, pieces = (rows + PREPARED_ROWS - 1) / PREPARED_ROWS;
  auto* const prepared = static_cast<char*>(scratch.of_size(static_cast<std::size_t>(rows * row_bytes)));
  const int64_t parts = parts_of(pool, pieces, rows * row_bytes, MIN_PREPARED_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    const int64_t first = part * pieces / parts * PREPARED_ROWS, end = (part + 1) * pieces / parts * PREPARED_ROWS;
    const int64_t count = (end < rows ? end : rows) - first;
    form.prepare(x + first * inputs, nullptr, count, inputs, prepared + first * row_bytes, x_stride);
  });
  return prepared;
}

// y = x * weight^T; x is [rows, inputs], weight [outputs, inputs], y [rows, outputs], all in row-major order.
template <typename Pool>
void row_product(Pool& pool, const Form& form, const float* x, const void* weight, float* y, int64_t rows, int64_t inputs,
                 int64_t outputs, int64_t weight_bytes) {
  if (rows == 0 || outputs == 0) return;
  thread_local Scratch scratch;
  const int64_t x_stride = (inputs + form.step - 1) / form.step * form.step;
  const void* const prepared = prepared_rows(pool, form, x, rows, inputs, x_stride, scratch);
  const Product given{prepared, x_stride, weight, y, rows, inputs, outputs};
  const int64_t parts = parts_of(pool, outputs, outputs * inputs * weight_bytes, MIN_PART_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    form.product(given, part * outputs / parts, (part + 1) * outputs / parts);
  });
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_ROW_PRODUCT_CALL_H_
