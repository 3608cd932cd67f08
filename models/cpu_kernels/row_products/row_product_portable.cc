// Row products for any processor: vectors of eight numbers, which compilers make of what there is.

#include "row_product.h"

namespace {

typedef float Vector __attribute__((vector_size(32)));
typedef uint16_t Narrow __attribute__((vector_size(16)));
typedef uint32_t Wide __attribute__((vector_size(32)));

struct Float32 {
  using Row = float;
  using Weight = float;
  using Numbers = Vector;
  using Sums = Vector;
  static constexpr int STEP = 8, SUMS = 6, MAX_ROWS = 4;

  static Sums zero() { return Vector{}; }
  static float prepared(float x) { return x; }
  static Numbers load(const float* from) {
    Vector numbers;
    __builtin_memcpy(&numbers, from, sizeof numbers);
    return numbers;
  }
  static Numbers load_first(const float* from, int64_t count) {
    Vector numbers{};
    for (int64_t k = 0; k < count; ++k) numbers[k] = from[k];
    return numbers;
  }
  static Sums add_product(Sums sums, const float* x, Numbers numbers) { return sums + load(x) * numbers; }
  template <int OUTPUTS>
  static void store_totals(const Sums* sums, float* y) {
    for (int out = 0; out < OUTPUTS; ++out) {
      const Vector& s = sums[out];
      y[out] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
    }
  }
};

struct Bfloat16 : Float32 {
  using Weight = uint16_t;

  static float prepared(float x) { return float_of(rounded_bits(bits_of(x))); }
  static Numbers load(const uint16_t* from) {
    Narrow narrow;
    __builtin_memcpy(&narrow, from, sizeof narrow);
    const Wide wide = __builtin_convertvector(narrow, Wide) << 16;
    Vector numbers;
    __builtin_memcpy(&numbers, &wide, sizeof numbers);
    return numbers;
  }
  static Numbers load_first(const uint16_t* from, int64_t count) {
    Vector numbers{};
    for (int64_t k = 0; k < count; ++k) numbers[k] = float_of(static_cast<uint32_t>(from[k]) << 16);
    return numbers;
  }
};

}  // namespace

extern const Forms portable_forms = {form<Bfloat16>(), form<Float32>()};
