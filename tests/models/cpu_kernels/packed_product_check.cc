// Checks of products with packed weights in every instruction set that this processor runs: the numbers of the portable
// loops, the bits of the row product with the unpacked weight, equal bits of a row alone and in any batch, and no byte read
// or written outside of the buffers, behind and in front of which there is no memory. Also of the rounding by two products,
// for every number that there is of one size. Exit status 1 and a line for each fault.
//
//   packed_product_check [brief]

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "row_products/packed_product_call.h"
#include "row_products/codes/wide_codes.h"

extern "C" const Forms* hybridlm_forms(int64_t instructions);
extern "C" const Unpack* hybridlm_unpack(int64_t instructions);

namespace {

using Memory = Guarded<char>;

struct Sizes {
  int64_t inputs, groups, outputs;
};

// Experts are matrices one behind the other.
constexpr int64_t EXPERTS = 3;

// What a weight has beside codes and scales.
enum class Beside { nothing, whole, zero, offset };

// Every seventh scale has an exponent larger by `exponent`.
void check_weight(int64_t set, Kind kind, ScaleDtype dtype, Beside beside, const Sizes& sizes, bool at_end, int exponent) {
  const auto [inputs, groups, outputs] = sizes;
  const bool with_whole = beside == Beside::whole, with_zero = beside == Beside::zero, with_offset = beside == Beside::offset;
  const int64_t scale_bytes = dtype == ScaleDtype::float32 ? 4 : 2;
  const bool four = kind == Kind::e2m1 || kind == Kind::int4;
  const int64_t all = EXPERTS * outputs, stored = four ? inputs / 2 : inputs;
  std::mt19937 random(static_cast<unsigned>(inputs * 100 + outputs));
  Memory codes(all * stored, at_end), scale(all * groups * scale_bytes, at_end), whole(all * 4, at_end);
  Memory zero(all * groups, at_end), offset(all * groups * 4, at_end);
  for (int64_t k = 0; k < all * stored; ++k) codes.as<uint8_t>()[k] = static_cast<uint8_t>(random());
  // Numbers of ordinary sizes, both signs, the same for two rows; float16 also of those without a leading bit.
  const uint32_t least = dtype == ScaleDtype::float16 ? 0x0300 : 0x3E00;
  for (int64_t k = 0; k < all * groups; ++k) {
    auto bits = static_cast<uint16_t>(least + random() % 0x200 + (random() % 2 << 15));
    if (k / groups % 2) bits = scale.as<uint16_t>()[(k - groups) * scale_bytes / 2 + scale_bytes / 2 - 1];
    if (k % 7 == 2) bits = static_cast<uint16_t>(bits + exponent * 128);
    // With offsets, a code times a scale is exact.
    if (dtype == ScaleDtype::float32)
      scale.as<uint32_t>()[k] = static_cast<uint32_t>(bits) << 16 | (with_offset ? random() % 4 << 14 : random() % 65536);
    else
      scale.as<uint16_t>()[k] = bits;
    offset.as<float>()[k] = static_cast<float>(random() % 2000) / 64 - 15;
  }
  for (int64_t k = 0; k < all; ++k) whole.as<float>()[k] = 0.25f + static_cast<float>(random() % 100) / 64;
  for (int64_t k = 0; k < all * groups; ++k) zero.as<uint8_t>()[k] = static_cast<uint8_t>(random() % 16);
  const Packed weight{codes.as<uint8_t>(), scale.as<void>(), with_whole ? whole.as<float>() : nullptr,
                      with_zero ? zero.as<uint8_t>() : nullptr, inputs, groups, kind, dtype,
                      with_offset ? offset.as<float>() : nullptr};
  for (const int64_t bytes : {2, 4}) {
    int64_t own = set, product = set;
    while (bytes == 2 ? !hybridlm_unpack(own)->bfloat16 : !hybridlm_unpack(own)->float32) --own;
    while (bytes == 2 ? !hybridlm_forms(product)->bfloat16.product : !hybridlm_forms(product)->float32.product) --product;
    const Form& form = bytes == 2 ? hybridlm_forms(product)->bfloat16 : hybridlm_forms(product)->float32;
    const std::string name = "set " + std::to_string(set) + " kind " + std::to_string(static_cast<int>(kind)) + " bytes " +
                             std::to_string(bytes) + " " + std::to_string(inputs) + " / " + std::to_string(groups) + " x " +
                             std::to_string(outputs) + " scales " + std::to_string(static_cast<int>(dtype)) +
                             (with_whole ? " whole" : "") + (with_zero ? " zero" : "") + (with_offset ? " offset" : "") +
                             " exponent " + std::to_string(exponent);
    Memory numbers(all * inputs * bytes, at_end), expected(all * inputs * bytes, at_end);
    const auto unpack = [&](const Unpack& by, Memory& to) {
      if (bytes == 2)
        by.bfloat16(weight, 0, all, to.as<uint16_t>());
      else
        by.float32(weight, 0, all, to.as<float>());
    };
    unpack(*hybridlm_unpack(own), numbers);
    unpack(*hybridlm_unpack(0), expected);
    bool equal = true;
    for (int64_t k = 0; k < all * inputs; ++k) {
      // Zeros of either sign are equal.
      const uint32_t one = bytes == 2 ? numbers.as<uint16_t>()[k] << 16 : numbers.as<uint32_t>()[k];
      const uint32_t two = bytes == 2 ? expected.as<uint16_t>()[k] << 16 : expected.as<uint32_t>()[k];
      equal &= one == two || !((one | two) & 0x7FFFFFFF);
    }
    check(equal, name + ": other numbers than the portable loops");
    const cpu_kernels::PackedCall call{form, *hybridlm_unpack(own), bytes};
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 64}) {
      Memory x(rows * inputs * 4, at_end), y(rows * outputs * 4, at_end), z(rows * outputs * 4, at_end);
      Memory expert(rows * 4, at_end);
      for (int64_t k = 0; k < rows * inputs; ++k) x.as<float>()[k] = static_cast<float>(random() % 2000) / 1000 - 1;
      Alone alone;
      Late late;
      cpu_kernels::packed_product(late, call, weight, x.as<float>(), y.as<float>(), rows, outputs);
      cpu_kernels::row_product(alone, form, x.as<float>(), numbers.as<void>(), z.as<float>(), rows, inputs, outputs, bytes);
      check(!std::memcmp(y.as<void>(), z.as<void>(), rows * outputs * 4), name + ": other bits than the unpacked weight's");
      for (int64_t row = 0; row < rows; ++row) {
        cpu_kernels::packed_product(alone, call, weight, x.as<float>() + row * inputs, z.as<float>(), 1, outputs);
        check(!std::memcmp(y.as<float>() + row * outputs, z.as<float>(), outputs * 4), name + ": other bits alone");
        expert.as<int32_t>()[row] = static_cast<int32_t>(random() % (EXPERTS + 2)) - 1;
      }
      cpu_kernels::packed_expert_product(late, call, weight, EXPERTS, x.as<float>(), expert.as<int32_t>(), y.as<float>(), rows,
                                         outputs);
      for (int64_t row = 0; row < rows; ++row) {
        const int32_t one = expert.as<int32_t>()[row];
        const float* const found = y.as<float>() + row * outputs;
        if (one < 0 || one >= EXPERTS) {
          for (int64_t out = 0; out < outputs; ++out) check(found[out] != found[out], name + ": a number of no expert");
          continue;
        }
        const Packed own_matrix = cpu_kernels::of_expert(weight, one, outputs);
        cpu_kernels::packed_product(alone, call, own_matrix, x.as<float>() + row * inputs, z.as<float>(), 1, outputs);
        check(!std::memcmp(found, z.as<float>(), outputs * 4), name + ": another expert's bits");
      }
      // Threads that begin after the call has returned find nothing to do.
      for (auto& work : late.waiting) work();
    }
  }
}

// One number at a time, as the vectors of AVX2 and AVX-512 have eight and sixteen.
struct One {
  using Numbers = float;
  static float all(float x) { return x; }
  static float product_less(float x, float y, float z) { return std::fma(x, y, -z); }
};

// All numbers from 1 to 2, where roundings go up to 2, and of the least and the largest size that vectors round so.
void check_rounding() {
  for (const uint32_t first : {0x3F800000u, 0x00800000u, 0x76800000u}) {
    bool equal = true;
    for (uint32_t bits = first; bits < first + 0x800000u; ++bits)
      equal &= bits_of(rounded<One>(float_of(bits))) == rounded_bits(bits);
    check(equal, "numbers are rounded in another way than one by one");
  }
}

}  // namespace

int main(int count, char** arguments) {
  check_rounding();
  return check_sets(count, arguments, [](const std::string&, int64_t set, bool brief) {
    for (const bool at_end : {true, false})
      for (const Sizes& sizes : {Sizes{8, 1, 1}, {32, 2, 3}, {66, 1, 9}, {96, 6, 8}, {192, 1, 5}, {96, 3, 33}, {256, 2, 17},
                                 {320, 10, 19}, {480, 1, 140}, {1024, 8, 101}}) {
        if (brief && sizes.outputs > 40) continue;
        const auto has = [&](Kind kind, ScaleDtype dtype, Beside beside, int exponent = 0) {
          check_weight(set, kind, dtype, beside, sizes, at_end, exponent);
        };
        has(Kind::e4m3, ScaleDtype::bfloat16, Beside::nothing);
        has(Kind::e2m1, ScaleDtype::bfloat16, Beside::whole);
        has(Kind::e2m1, ScaleDtype::float32, Beside::nothing);
        for (const Kind kind : {Kind::int8, Kind::int4}) {
          has(kind, ScaleDtype::bfloat16, Beside::nothing);
          has(kind, ScaleDtype::float16, Beside::zero);
          has(kind, ScaleDtype::float16, Beside::offset);
          has(kind, ScaleDtype::float32, Beside::offset);
        }
        has(Kind::int8, ScaleDtype::float32, Beside::nothing);
        if (sizes.groups != 2 && sizes.groups != 10) continue;
        for (const Kind kind : {Kind::e4m3, Kind::int8, Kind::int4}) has(kind, ScaleDtype::bfloat16, Beside::nothing, 106);
        for (const int exponent : {106, -100}) has(Kind::e4m3, ScaleDtype::float32, Beside::nothing, exponent);
        has(Kind::e2m1, ScaleDtype::bfloat16, Beside::whole, 106);
      }
  }, true);
}
