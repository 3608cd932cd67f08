// Row products for any processor.

#include "row_product.h"
#include "shared/portable_vectors.h"

namespace {

struct Float32 : PortableVectors {
  using Row = float;
  using Weight = float;
  using Numbers = Vector;
  using Sums = Vector;
  static constexpr int SUMS = 6, MAX_ROWS = 4;

  static Sums zero() { return Vector{}; }
  static float prepared(float x) { return x; }
  static Sums add_product(Sums sums, const float* x, Numbers numbers) { return sums + load(x) * numbers; }
};

struct Bfloat16 : Float32 {
  using Weight = uint16_t;

  static float prepared(float x) { return float_of(rounded_bits(bits_of(x))); }
};

}  // namespace

extern const Forms portable_forms = {form<Bfloat16>(), form<Float32>()};
