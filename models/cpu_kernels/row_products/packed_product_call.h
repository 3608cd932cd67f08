// Products of rows with packed weights on the threads of a pool: few rows directly from codes, if an instruction set
// has code for them; otherwise a few rows of a weight at a time are unpacked into the cache of a core and multiplied by
// the row product. A result has the bits of the unpacked weight's.

#ifndef MODELS_CPU_KERNELS_PACKED_PRODUCT_CALL_H_
#define MODELS_CPU_KERNELS_PACKED_PRODUCT_CALL_H_

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "packed.h"
#include "row_product_call.h"

namespace cpu_kernels {

// Bytes of unpacked numbers at a time, if they hold more than a few tiles of rows.
constexpr int64_t UNPACKED_BYTES = 128 * 1024;

// A product of prepared rows, all or one expert's, with numbers of `number_bytes` bytes.
struct PackedCall {
  const Form& form;
  const Unpack& unpack;
  int64_t number_bytes;

  // Compute outputs first to last of some rows: x is prepared, y has rows of `outputs` numbers.
  void outputs(const Packed& weight, const void* x, int64_t x_stride, float* y, int64_t rows, int64_t outputs,
               int64_t first, int64_t last, const uint8_t* zeros = nullptr) const {
    Product all{x, x_stride, nullptr, y, rows, weight.inputs, outputs, zeros};
    if (number_bytes == 2 && rows <= unpack.code_rows && unpack.product(weight, all, first, last)) return;
    thread_local Scratch scratch;
    const int64_t row_bytes = weight.inputs * number_bytes;
    const int64_t tiles = std::max<int64_t>(1, UNPACKED_BYTES / (form.outputs * std::max<int64_t>(1, row_bytes)));
    const int64_t most = std::min(tiles * form.outputs, last - first);
    auto* const numbers = static_cast<char*>(scratch.of_size(static_cast<std::size_t>(most * row_bytes)));
    for (int64_t out = first; out < last; out += most) {
      const int64_t end = std::min(out + most, last);
      if (number_bytes == 2)
        unpack.bfloat16(weight, out, end, reinterpret_cast<uint16_t*>(numbers));
      else
        unpack.float32(weight, out, end, reinterpret_cast<float*>(numbers));
      all.weight = numbers;
      all.y = y + out;
      form.product(all, 0, end - out);
    }
  }
};

// y = x * weight^T; x is [rows, inputs], y [rows, outputs].
template <typename Pool>
void packed_product(Pool& pool, const PackedCall& call, const Packed& weight, const float* x, float* y, int64_t rows,
                    int64_t outputs) {
  if (rows == 0 || outputs == 0) return;
  thread_local Scratch scratch;
  const int64_t x_stride = (weight.inputs + call.form.step - 1) / call.form.step * call.form.step;
  const PreparedRows prepared = prepared_rows(pool, call.form, x, rows, weight.inputs, x_stride, scratch);
  const int64_t parts = parts_of(pool, outputs, outputs * weight.inputs, MIN_PART_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    const int64_t first = part * outputs / parts, last = (part + 1) * outputs / parts;
    call.outputs(weight, prepared.x, x_stride, y, rows, outputs, first, last, prepared.zeros);
    write_zeros(prepared.zeros, y, rows, outputs, first, last);
  });
}

// The matrix of an expert with `outputs` rows.
inline Packed of_expert(const Packed& all, int64_t expert, int64_t outputs) {
  const int64_t rows = expert * outputs, scale_bytes = all.scale_dtype == ScaleDtype::float32 ? 4 : 2;
  Packed one = all;
  one.codes += rows * code_bytes(all);
  one.scale = static_cast<const char*>(all.scale) + rows * all.groups * scale_bytes;
  if (one.whole != nullptr) one.whole += rows;
  if (one.zero != nullptr) one.zero += rows * all.groups;
  if (one.offset != nullptr) one.offset += rows * all.groups;
  return one;
}

// y[row] = x[row] * weight[expert[row]]^T. A matrix is unpacked once for all rows of its expert; a row without an
// expert gets NaN.
template <typename Pool>
void packed_expert_product(Pool& pool, const PackedCall& call, const Packed& weight, int64_t experts, const float* x,
                           const int32_t* expert, float* y, int64_t rows, int64_t outputs) {
  if (rows == 0 || outputs == 0) return;
  std::vector<int64_t> order(static_cast<std::size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t one, int64_t two) { return expert[one] < expert[two]; });
  std::vector<int64_t> runs;  // begin of each expert's rows, and the end of all
  for (int64_t row = 0; row < rows; ++row)
    if (row == 0 || expert[order[row]] != expert[order[row - 1]]) runs.push_back(row);
  runs.push_back(rows);
  thread_local Scratch prepared_rows, sorted_results;
  const int64_t x_stride = (weight.inputs + call.form.step - 1) / call.form.step * call.form.step;
  const int64_t x_bytes = x_stride * call.form.number_bytes;
  auto* const prepared = static_cast<char*>(prepared_rows.of_size(static_cast<std::size_t>(rows * x_bytes)));
  auto* const sorted = static_cast<float*>(sorted_results.of_size(static_cast<std::size_t>(rows * outputs) * sizeof(float)));
  for (std::size_t run = 0; run + 1 < runs.size(); ++run)
    call.form.prepare(x, order.data() + runs[run], runs[run + 1] - runs[run], weight.inputs, prepared + runs[run] * x_bytes,
                      x_stride);
  const int64_t parts = parts_of(pool, outputs, rows * outputs * weight.inputs, MIN_PART_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    const int64_t begin = part * outputs / parts, end = (part + 1) * outputs / parts;
    for (std::size_t run = 0; run + 1 < runs.size(); ++run) {
      const int64_t row = runs[run], next = runs[run + 1];
      const int32_t own = expert[order[row]];
      const bool is_one = own >= 0 && own < experts;
      if (is_one)
        call.outputs(of_expert(weight, own, outputs), prepared + row * x_bytes, x_stride, sorted + row * outputs, next - row,
                     outputs, begin, end);
      for (int64_t one = row; one < next; ++one)
        for (int64_t out = begin; out < end; ++out)
          y[order[one] * outputs + out] = is_one ? sorted[one * outputs + out] : std::numeric_limits<float>::quiet_NaN();
    }
  });
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_PACKED_PRODUCT_CALL_H_
