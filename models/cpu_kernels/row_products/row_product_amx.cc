// Row products for x86-64 with AMX; for packed weights, from a few tiles of numbers at a time.

#include "packed.h"
#include "products.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512VBMI__) && defined(__AVX512F__)
#include "amx_tiles.h"
#include "codes/avx512bf16_codes.h"

namespace {

// A plain weight, with zeros behind inputs that do not fill a tile.
template <int WEIGHTS>
struct Stored {
  // Prefetch distance within each output; behind the last numbers, the next outputs.
  static constexpr int64_t AHEAD = AHEAD_BYTES / (WEIGHTS * TILE * static_cast<int64_t>(sizeof(uint16_t)));
  const uint16_t* weight;
  int64_t inputs, outputs;  // of one or two tiles
  alignas(64) uint16_t last[WEIGHTS * TILE * NUMBERS];

  Stored(const uint16_t* weight, int64_t inputs, int64_t outputs) : weight(weight), inputs(inputs), outputs(outputs) {}
  Tile tile(int64_t k) {
    if (inputs - k < NUMBERS) {
      const auto some = static_cast<__mmask32>((1u << (inputs - k)) - 1u);
      for (int64_t out = 0; out < outputs; ++out)
        _mm512_store_si512(last + out * NUMBERS, _mm512_maskz_loadu_epi16(some, weight + out * inputs + k));
      in_memory(last);
      return {last, NUMBERS};
    }
    const int64_t streams = WEIGHTS == 2 ? 2 * TILE : outputs, next = k + AHEAD < inputs ? 0 : (streams - 1) * inputs;
    const char* const ahead = reinterpret_cast<const char*>(weight) + (k + AHEAD + next) * 2;
    for (int64_t out = 0; out < streams; ++out) __builtin_prefetch(ahead + out * inputs * 2, 0, 2);
    return {weight + k, inputs};
  }
};

template <int BLOCKS>
void all_outputs(const Block& rows, const uint16_t* weight, int64_t left, float* y) {
  int64_t outputs = 0;
  while (left > 0) {
    const bool two = BLOCKS <= 2 && left >= 2 * TILE;
    const int64_t count = left < TILE ? left : TILE, done = two ? 2 * TILE : count;
    if (count != outputs) set_shapes(outputs = count, BLOCKS, rows.last);
    if constexpr (BLOCKS <= 2)
      if (two) tiles<2, BLOCKS>(rows, Stored<2>{weight, rows.inputs, done}, count, y);
    if (!two) tiles<1, BLOCKS>(rows, Stored<1>{weight, rows.inputs, done}, count, y);
    weight += done * rows.inputs;
    y += done;
    left -= done;
  }
}

// Outputs `first` to before `last` of every row.
void product_of_tiles(const Product& given, int64_t first, int64_t last) {
  const auto* const weight = static_cast<const uint16_t*>(given.weight) + first * given.inputs;
  over_rows(given, [&](const Block& rows, float* y, auto blocks) {
    all_outputs<blocks.VALUE>(rows, weight, last - first, y + first);
  });
}

// Columns of a packed weight with numbers made at a time. While a span is multiplied, tile by tile, the next span is
// made, a part of the outputs at a time: an instruction on tiles waits for its operands to reach the cache.
constexpr int64_t SPAN = 4 * NUMBERS;
// Maximum groups of a row: the scales of 32 outputs are on the stack.
constexpr int64_t MAX_TILE_GROUPS = 1024;

// Codes and scales of `outputs` outputs from `first` on.
struct PackedTiles {
  const Packed& weight;
  const Scales& scales;
  int64_t first, outputs;
};

// Write tiles of columns `from` to before `to` for outputs `begin` to before `end`; a tile has room for all outputs.
template <typename Codes>
void make_tiles(const PackedTiles& some, int64_t from, int64_t to, int64_t begin, int64_t end, uint16_t* numbers) {
  const int64_t groups = some.weight.groups, stored = code_bytes(some.weight), tile = some.outputs * NUMBERS;
  const int64_t width = some.weight.inputs / groups * Codes::GROUPS;
  for (int64_t k = from, next; k < to; k = next) {
    const int64_t group = k / width;
    next = (group + 1) * width < to ? (group + 1) * width : to;
    const uint8_t* row = some.weight.codes + (some.first + begin) * stored + k * Codes::BITS / 8;
    uint16_t* own_numbers = numbers + (k - from) / NUMBERS * tile + begin * NUMBERS;
    for (int64_t out = begin; out < end; ++out, row += stored, own_numbers += NUMBERS) {
      typename Codes::Group own;
      own.start(some.weight, some.scales, static_cast<int>(out), out * groups + group * Codes::GROUPS);
      write_numbers<Bfloat16, Codes, 2>(own, row, next - k, own_numbers, tile);
    }
  }
}

using MakeTiles = void (*)(const PackedTiles&, int64_t from, int64_t to, int64_t begin, int64_t end, uint16_t* numbers);

// For the codes that support a weight, or null.
MakeTiles make_tiles_of(const Packed& given) {
  MakeTiles found = nullptr;
  with_codes(given, [&](auto codes) {
    if (!codes.takes(given, given.inputs / given.groups)) return false;
    found = make_tiles<decltype(codes)>;
    return true;
  });
  return found;
}

template <int WEIGHTS>
struct Made {
  static constexpr int64_t OUTPUTS = WEIGHTS * TILE, PART = OUTPUTS * NUMBERS / SPAN;
  const PackedTiles& some;
  MakeTiles make;
  alignas(64) uint16_t numbers[2][OUTPUTS * SPAN];

  Made(const PackedTiles& some, MakeTiles make) : some(some), make(make) { make_from(0, 0, OUTPUTS); }
  void make_from(int64_t k, int64_t begin, int64_t end) {
    const int64_t inputs = some.weight.inputs;
    if (k < inputs) make(some, k, k + SPAN < inputs ? k + SPAN : inputs, begin, end, numbers[k / SPAN % 2]);
    in_memory(numbers);
  }
  Tile tile(int64_t k) {
    const int64_t place = k % SPAN, part = place / NUMBERS * PART;
    make_from(k - place + SPAN, part, part + PART);
    return {numbers[k / SPAN % 2] + place * OUTPUTS, NUMBERS};
  }
};

// As many outputs at a time as WEIGHTS tiles have. Fewer last outputs are computed with some previous outputs.
template <int WEIGHTS, int BLOCKS>
void packed_outputs(const Packed& given, MakeTiles make, const Block& rows, int64_t first, int64_t last, float* y) {
  constexpr int64_t OUTPUTS = WEIGHTS * TILE;
  alignas(64) float scale[OUTPUTS * MAX_TILE_GROUPS], zero[OUTPUTS * MAX_TILE_GROUPS];
  for (int64_t next = first; next < last; next += OUTPUTS) {
    const int64_t out = next + OUTPUTS <= last ? next : last - OUTPUTS;
    const Scales scales = widened<Bfloat16>(given, out, out * given.groups, OUTPUTS * given.groups, scale, zero);
    const PackedTiles some{given, scales, out, OUTPUTS};
    tiles<WEIGHTS, BLOCKS>(rows, Made<WEIGHTS>{some, make}, TILE, y + out);
  }
}

bool product_of_packed(const Packed& given, const Product& all, int64_t first, int64_t last) {
  const MakeTiles make = make_tiles_of(given);
  if (make == nullptr || given.groups > MAX_TILE_GROUPS || last - first < TILE) return false;
  over_rows(all, [&](const Block& rows, float* y, auto blocks) {
    constexpr int BLOCKS = decltype(blocks)::VALUE;
    set_shapes(TILE, BLOCKS, rows.last);
    if constexpr (BLOCKS <= 2)
      if (last - first >= 2 * TILE) return packed_outputs<2, BLOCKS>(given, make, rows, first, last, y);
    packed_outputs<1, BLOCKS>(given, make, rows, first, last, y);
  });
  return true;
}

}  // namespace

extern const Forms amx_forms = {{prepare_tiles, product_of_tiles, sizeof(uint16_t), NUMBERS, 2 * TILE}, {}};
extern const Unpack amx_unpack = {unpack, nullptr, product_of_packed, MAX_BLOCKS * TILE};
#else
extern const Forms amx_forms = {};
extern const Unpack amx_unpack = {};
#endif
