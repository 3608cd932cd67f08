// Products of tiles with AMX: 16 outputs of a weight, 32 numbers of each, with 16 pairs of numbers of 16 rows. Denormal
// numbers count as zero. Included only if a compiler has these instructions.
//
// An instruction sums the 16 products at even places of a tile and the 16 at odd ones in sequence, and adds both to the
// result; vectors, in contrast, keep 16 partial sums. For equal bits in any batch, tiles compute all numbers of rows.
// Few rows wait for memory: a tile of a weight takes 16 cycles, and longer to arrive.

#ifndef MODELS_CPU_KERNELS_AMX_TILES_H_
#define MODELS_CPU_KERNELS_AMX_TILES_H_

#include <immintrin.h>

#include "row_product.h"
#include "shared/avx512_words.h"

namespace {

// Outputs or rows, and pairs of numbers, of a tile.
constexpr int TILE = WORDS;
static_assert(TILE == ROW_TILE);
constexpr int NUMBERS = 2 * TILE;
// Tiles of rows that meet a tile of the weight before the next one. Up to two of them meet two tiles of the weight, so
// that few instructions wait for the previous sum, which takes as long as three.
constexpr int MAX_BLOCKS = 4;

// 16 rows at a time, then the rest: the first pair of numbers of all of them, then the second.
void prepare_tiles(const float* x, const int64_t* order, int64_t rows, int64_t inputs, void* prepared, int64_t x_stride) {
  auto* to = static_cast<uint32_t*>(prepared);
  for (int64_t first = 0; first < rows; first += TILE) {
    const int64_t count = rows - first < TILE ? rows - first : TILE;
    for (int64_t k = 0; k < x_stride; k += NUMBERS) {
      __m512i pairs[TILE] = {};
      for (int64_t row = 0; row < count; ++row) {
        const float* const from = x + (order == nullptr ? first + row : order[first + row]) * inputs + k;
        const __m512 low = _mm512_maskz_loadu_ps(first_of(inputs - k), from);
        const __m512 high = _mm512_maskz_loadu_ps(first_of(inputs - k - TILE), from + TILE);
        pairs[row] = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
      }
      if (count == 1) {  // adjacent pairs
        _mm512_storeu_si512(to, pairs[0]);
        to += TILE;
        continue;
      }
      transpose(pairs);
      for (int pair = 0; pair < TILE; ++pair, to += count) _mm512_mask_storeu_epi32(to, first_of(count), pairs[pair]);
    }
  }
}

// Make writes visible in memory before an instruction on tiles: GCC assumes that tile instructions read nothing.
inline void in_memory(const void* written) { __asm__ volatile("" : : "r"(written) : "memory"); }

struct alignas(64) Shapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};
};

// Rows of a product that are computed together: tiles of 16, the last one of `last`.
struct Block {
  const uint16_t* x;
  int64_t x_stride, inputs, outputs, last;
};

// Tiles 0 to 3 are sums, 4 is the weight's, 6 and 7 are rows', 5 is either. The last rows use tile 7 and sums 3, and
// also 2 if two tiles of the weight are read together.
void set_shapes(int64_t outputs, int64_t blocks, int64_t last) {
  Shapes shapes;
  const auto shape = [&](int tile, int64_t rows, int64_t words) {
    shapes.rows[tile] = static_cast<uint8_t>(rows);
    shapes.bytes[tile] = static_cast<uint16_t>(words * 4);
  };
  shape(0, outputs, TILE);
  shape(1, outputs, TILE);
  shape(2, outputs, blocks > 2 ? TILE : last);
  shape(3, outputs, last);
  shape(4, outputs, TILE);
  shape(5, TILE, TILE);
  shape(6, TILE, TILE);
  shape(7, TILE, last);
  in_memory(&shapes);
  _tile_loadconfig(&shapes);
}

// Write the sums of a tile, `count` outputs of some rows, to y.
inline void put(const float* sums, int64_t count, int64_t rows, float* y, int64_t outputs) {
  __m512i columns[TILE] = {};
  for (int64_t out = 0; out < count; ++out) columns[out] = _mm512_loadu_si512(sums + out * TILE);
  transpose(columns);
  for (int64_t row = 0; row < rows; ++row) _mm512_mask_storeu_epi32(y + row * outputs, first_of(count), columns[row]);
}

template <int COUNT>
struct Count {
  static constexpr int VALUE = COUNT;
};

// Numbers of a tile of a weight, `stride` from one output to the next.
struct Tile {
  const uint16_t* from;
  int64_t stride;
};

// `count` outputs, or 32 if WEIGHTS is two, of the rows in BLOCKS tiles; `weight.tile(k)` has their numbers from place
// k on. For GCC a tile's number is part of the instruction's name, so it must be literal. The loop prefetches the lines
// of y before the stores, which a core completes in order.
template <int WEIGHTS, int BLOCKS, typename Weight>
void tiles(const Block& rows, Weight&& weight, int64_t count, float* y) {
  static_assert(WEIGHTS == 1 ? BLOCKS <= MAX_BLOCKS : WEIGHTS == 2 && BLOCKS <= 2);
  const uint16_t* const last_rows = rows.x + (BLOCKS - 1) * TILE * rows.x_stride;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const float* next = y;
  const float* const end = y + ((BLOCKS - 1) * TILE + rows.last) * rows.outputs;
  for (int64_t k = 0; k < rows.inputs; k += NUMBERS) {
    for (int row = 0; row < BLOCKS && next < end; ++row, next += rows.outputs)
      for (int tile = 0; tile < WEIGHTS; ++tile) __builtin_prefetch(next + tile * TILE, 1, 2);
    const Tile own = weight.tile(k);
    const int64_t bytes = own.stride * 2;
    _tile_loadd(4, own.from, bytes);
    if constexpr (WEIGHTS == 2) {
      _tile_loadd(5, own.from + TILE * own.stride, bytes);
      if constexpr (BLOCKS == 2) {
        _tile_loadd(6, rows.x + k * TILE, 4 * TILE);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 5, 6);
      }
      _tile_loadd(7, last_rows + k * rows.last, 4 * rows.last);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    } else {
      if constexpr (BLOCKS > 1) {
        _tile_loadd(6, rows.x + k * TILE, 4 * TILE);
        _tile_dpbf16ps(0, 4, 6);
      }
      if constexpr (BLOCKS > 2) {
        _tile_loadd(5, rows.x + TILE * rows.x_stride + k * TILE, 4 * TILE);
        _tile_dpbf16ps(1, 4, 5);
      }
      if constexpr (BLOCKS > 3) {
        _tile_loadd(6, rows.x + 2 * TILE * rows.x_stride + k * TILE, 4 * TILE);
        _tile_dpbf16ps(2, 4, 6);
      }
      _tile_loadd(7, last_rows + k * rows.last, 4 * rows.last);
      _tile_dpbf16ps(3, 4, 7);
    }
  }
  alignas(64) float sums[4][TILE * TILE];
  if constexpr (BLOCKS > 1) _tile_stored(0, sums[0], 4 * TILE);
  if constexpr (BLOCKS > 3 - WEIGHTS) _tile_stored(1, sums[1], 4 * TILE);
  if constexpr (BLOCKS > 3 || WEIGHTS == 2) _tile_stored(2, sums[2], 4 * TILE);
  _tile_stored(3, sums[3], 4 * TILE);
  for (int one = 0; one < 4; ++one) {
    const int block = WEIGHTS == 2 ? BLOCKS - 2 + one / 2 : one == 3 ? BLOCKS - 1 : one < BLOCKS - 1 ? one : -1;
    if (block < 0) continue;
    const int64_t outputs_before = WEIGHTS == 2 ? one % 2 * TILE : 0;
    put(sums[one], WEIGHTS == 2 ? TILE : count, block == BLOCKS - 1 ? rows.last : TILE,
        y + block * TILE * rows.outputs + outputs_before, rows.outputs);
  }
}

// Call `use(rows, y, tiles)` for up to 64 rows at a time, without tiles of zeros; `tiles` is a type with their number.
template <typename Use>
void over_rows(const Product& given, const Use& use) {
  const auto computed = [&](int64_t row) {
    return row < given.rows && !only_zeros(given, row, row + TILE < given.rows ? row + TILE : given.rows);
  };
  for (int64_t row = 0, blocks; row < given.rows; row += blocks * TILE) {
    blocks = 1;
    if (!computed(row)) continue;
    while (blocks < MAX_BLOCKS && computed(row + blocks * TILE)) ++blocks;
    const int64_t left = given.rows - row;
    const Block rows{static_cast<const uint16_t*>(given.x) + row * given.x_stride, given.x_stride, given.inputs,
                     given.outputs, left < blocks * TILE ? left - (blocks - 1) * TILE : TILE};
    float* const y = given.y + row * given.outputs;
    switch (blocks) {
      case 1:
        use(rows, y, Count<1>{});
        break;
      case 2:
        use(rows, y, Count<2>{});
        break;
      case 3:
        use(rows, y, Count<3>{});
        break;
      default:
        use(rows, y, Count<4>{});
    }
  }
  _tile_release();
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_AMX_TILES_H_
