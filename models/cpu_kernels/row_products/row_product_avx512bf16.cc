// Row products, also with packed weights, for x86-64 with AVX-512-BF16: one instruction adds two products of bfloat16
// numbers to each partial sum, with denormal numbers as zero.

#include "packed.h"
#include "products.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "codes/avx512bf16_codes.h"
#include "row_vectors.h"

namespace {

bool product_of_packed(const Packed& given, const Product& all, int64_t first, int64_t last) {
  return with_codes(given, [&](auto codes) { return product_of_codes<Bfloat16, decltype(codes)>(given, all, first, last); });
}

}  // namespace

extern const Forms avx512bf16_forms = {
    {prepare_vectors, product_of_vectors, sizeof(uint16_t), NUMBERS, WRITTEN_OUTPUTS}, {}};
extern const Unpack avx512bf16_unpack = {unpack, nullptr, product_of_packed, Bfloat16::MAX_ROWS};
#else
extern const Forms avx512bf16_forms = {};
extern const Unpack avx512bf16_unpack = {};
#endif
