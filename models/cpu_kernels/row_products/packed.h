// Packed weights: codes with a scale for each group of a row's numbers, as in files of quantised models.

#ifndef MODELS_CPU_KERNELS_PACKED_H_
#define MODELS_CPU_KERNELS_PACKED_H_

#include <stdint.h>

// In the order of KINDS in packed_product.py.
enum class Kind : int64_t { e4m3, e2m1, int8, int4 };
enum class ScaleDtype { float32, bfloat16, float16 };

// Whether a byte has two codes. Functions here have internal linkage, as in row_product.h.
static inline bool is_four_bits(Kind kind) { return kind == Kind::e2m1 || kind == Kind::int4; }

// A matrix [outputs, inputs] of numbers (code - zero) * scale * whole - offset.
struct Packed {
  const uint8_t* codes;    // [outputs, inputs]; four-bit codes in half as many bytes, the even one in the low bits
  const void* scale;       // [outputs, groups]
  const float* whole;      // [outputs], or null for 1
  const uint8_t* zero;     // [outputs, groups], the code of zero; null: 8 for int4, else 0
  int64_t inputs, groups;  // `groups` divides `inputs`
  Kind kind;
  ScaleDtype scale_dtype;
  // [outputs, groups] for codes with zero 0; null for 0. Codes times scales are exact there, so rounding before the
  // subtraction does not matter.
  const float* offset = nullptr;
};

// Bytes of the codes of one output.
static inline int64_t code_bytes(const Packed& weight) {
  return is_four_bits(weight.kind) ? weight.inputs / 2 : weight.inputs;
}

struct Product;

// Write the numbers of rows `first` to before `last`, row after row, in float32 or rounded once to bfloat16.
struct Unpack {
  void (*bfloat16)(const Packed&, int64_t first, int64_t last, uint16_t* numbers);
  void (*float32)(const Packed&, int64_t first, int64_t last, float* numbers);
  // Compute outputs `first` to before `last` of at most `code_rows` rows, directly from codes, with the bits of the row
  // product of bfloat16 numbers. False without code for a weight; null without any code.
  bool (*product)(const Packed&, const Product&, int64_t first, int64_t last) = nullptr;
  int64_t code_rows = 0;
};

// Null if the compiler lacks the instructions, or the lesser set's code is as fast.
extern const Unpack portable_unpack, avx2_unpack, avx512_unpack, avx512bf16_unpack, neon_unpack, neonbf16_unpack,
    amx_unpack;

#endif  // MODELS_CPU_KERNELS_PACKED_H_
