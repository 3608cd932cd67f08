// Attention of a few tokens over a KV cache: one pass over keys and values, by blocks, with the online softmax
// (arXiv:1805.02867).
//
// A file for each instruction set defines `Simd` and includes this header, as row_products/row_product.h explains.
//
// A block is within one page. Blocks begin at multiples of their fixed size, and their sums are in the order of
// positions and channels: the bits of a row depend neither on other lanes, the thread nor the number of tokens of the
// step. A row uses nothing of positions behind its own or in front of its window: their scores are replaced, and their
// values are not multiplied. Blocks in front of the windows of all rows are not read.

#ifndef MODELS_CPU_KERNELS_DECODE_ATTENTION_H_
#define MODELS_CPU_KERNELS_DECODE_ATTENTION_H_

#include "decode_attentions.h"

namespace {

// Positions of a block: their keys and values stay in the first or second cache of a core.
constexpr int64_t ATTENTION_BLOCK = 32;
static_assert(PAGE_POSITIONS % ATTENTION_BLOCK == 0, "a block lies within one page");

// Prefetch distance of keys and values: a core reads 26 GB/s instead of 19 (Zen 5, 2026-11-26), and with four times the
// distance 19 again.
constexpr int64_t ATTENTION_AHEAD_BYTES = 4 * 1024;

// Keys or values of one head in a block and in the page behind the block's page, prefetched as far as a row sees them.
template <typename Number>
struct Stream {
  static constexpr int64_t AHEAD = ATTENTION_AHEAD_BYTES / static_cast<int64_t>(sizeof(Number));
  const Number* from;  // of the block's first position
  const Number* next;  // of the next page
  int64_t size;        // numbers from one position to the next
  int64_t left;        // positions from the block's first to the page's end
  int64_t count;       // visible positions from the block's first, in both pages

  const Number* at(int64_t position) const { return from + position * size; }
  void ask(int64_t first, int64_t last) const {
    last = last < count * size ? last : count * size;
    const int64_t end = left * size;
    for (int64_t k = first; k < last; k += 64 / static_cast<int64_t>(sizeof(Number)))
      __builtin_prefetch(k < end ? from + k : next + (k - end));
  }
  // Prefetch for some positions, at the distance.
  void ask_ahead(int64_t position, int64_t positions) const {
    ask(position * size + AHEAD, (position + positions) * size + AHEAD);
  }
};

// Keys or values of a lane and key/value head in its pages.
template <typename Number>
struct Paged {
  const DecodeAttention& step;
  const Number* pool;
  int64_t lane, kv_head;
  int64_t size;   // numbers from one position to the next
  int64_t count;  // positions that are seen

  const Number* page(int64_t position) const {
    return pool + (step.page_of(lane, position) * step.kv_heads + kv_head) * PAGE_POSITIONS * size;
  }
  // The stream from a block's first position.
  Stream<Number> from(int64_t start) const {
    const int64_t place = start % PAGE_POSITIONS, left = PAGE_POSITIONS - place, more = count - start;
    const Number* const here = page(start);
    const Number* const next = more > left ? page(start + left) : here;
    const int64_t most = left + PAGE_POSITIONS;
    return {here + place * size, next, size, left, more < most ? more : most};
  }
};

// exp of numbers up to 0, or NaN, to about one unit in the last place; 0 below the least normal number.
template <typename Simd>
inline typename Simd::Vector exp_of(typename Simd::Vector x) {
  using Vector = typename Simd::Vector;
  using Integers = typename Simd::Integers;
  const Vector ROUNDER = Simd::all(12582912.0f);  // 1.5 * 2^23: adding it leaves an integer in the last bits
  const Vector rounded = Simd::add_product(ROUNDER, x, Simd::all(1.44269504f));
  const Vector whole = rounded - ROUNDER;
  // ln 2 in two parts; the product of the first with a small integer is exact
  Vector r = Simd::add_product(x, whole, Simd::all(-0.693359375f));
  r = Simd::add_product(r, whole, Simd::all(2.12194440e-4f));
  constexpr float FACTORS[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  Vector sum = Simd::all(1.0f / 5040);
  for (const float factor : FACTORS) sum = Simd::add_product(Simd::all(factor), sum, r);
  const Vector found = sum * (Vector)(((Integers)rounded << 23) + (Integers)Simd::all(1.0f));
  // NaN compares false.
  return (Vector)((Integers)found & ~(Integers)(x < Simd::all(-87.33654f)));
}

// Query rows of one lane and key/value head, with their sums so far.
struct AttentionRows {
  const float* query[MAX_ATTENTION_ROWS];
  float* out[MAX_ATTENTION_ROWS];      // sum of exponentials times values
  int64_t seen[MAX_ATTENTION_ROWS];    // end of its visible positions, at least one
  int64_t unseen[MAX_ATTENTION_ROWS];  // first visible position, behind those in front of its window
  float top[MAX_ATTENTION_ROWS];       // largest score
  float total[MAX_ATTENTION_ROWS];     // sum of exponentials
  // Of the current block: visible positions from `begin` to before `count` (none if `begin` is not less), factor of the
  // earlier sums, and scores, then exponentials.
  int64_t begin[MAX_ATTENTION_ROWS];
  int64_t count[MAX_ATTENTION_ROWS];
  float left[MAX_ATTENTION_ROWS];
  alignas(64) float weight[MAX_ATTENTION_ROWS][ATTENTION_BLOCK];
};

// Call `work` with a constant for each run of at most ROWS rows.
template <int ROWS, typename Work>
inline void over_rows(int64_t rows, const Work& work) {
  int64_t row = 0;
  for (; row + ROWS <= rows; row += ROWS) work.template run<ROWS>(row);
  if constexpr (ROWS > 1)
    if (row < rows) over_rows<ROWS - 1>(rows - row, work.from(row));
}

constexpr int least(int one, int other) { return one < other ? one : other; }

// Scores of a block's positions.
template <typename Simd, typename Number>
struct Score {
  AttentionRows& rows;
  Stream<Number> keys;
  int64_t count;
  int64_t before = 0;

  Score from(int64_t row) const { return {rows, keys, count, before + row}; }

  template <int ROWS>
  void run(int64_t row) const {
    constexpr int POSITIONS = least(8, Simd::SUMS / ROWS);
    int64_t at = 0;
    for (; at + POSITIONS <= count; at += POSITIONS) tile<ROWS, POSITIONS>(before + row, at);
    for (; at < count; ++at) tile<ROWS, 1>(before + row, at);
  }

  template <int ROWS, int POSITIONS>
  void tile(int64_t row, int64_t at) const {
    using Vector = typename Simd::Vector;
    if (row == 0) keys.ask_ahead(at, POSITIONS);
    Vector sums[ROWS * POSITIONS];
    for (auto& one : sums) one = Simd::all(0.0f);
    const Number* const key = keys.at(at);
    const int64_t size = keys.size, whole = size - size % Simd::STEP;
    for (int64_t k = 0; k < whole; k += Simd::STEP) {
      Vector query[ROWS];
      for (int one = 0; one < ROWS; ++one) query[one] = Simd::load(rows.query[row + one] + k);
      for (int position = 0; position < POSITIONS; ++position) {
        const Vector numbers = Simd::load(key + position * size + k);
        for (int one = 0; one < ROWS; ++one)
          sums[one * POSITIONS + position] = Simd::add_product(sums[one * POSITIONS + position], query[one], numbers);
      }
    }
    if (const int64_t more = size - whole)
      for (int one = 0; one < ROWS; ++one) {
        const Vector query = Simd::load_first(rows.query[row + one] + whole, more);
        for (int position = 0; position < POSITIONS; ++position)
          sums[one * POSITIONS + position] = Simd::add_product(sums[one * POSITIONS + position], query,
                                                               Simd::load_first(key + position * size + whole, more));
      }
    float found[ROWS * POSITIONS];
    Simd::template store_totals<ROWS * POSITIONS>(sums, found);
    for (int one = 0; one < ROWS; ++one)
      __builtin_memcpy(&rows.weight[row + one][at], found + one * POSITIONS, POSITIONS * sizeof(float));
  }
};

// Replace a row's scores in a block by exponentials.
template <typename Simd>
inline void exponentials(AttentionRows& rows, int64_t row) {
  using Vector = typename Simd::Vector;
  float* const weight = rows.weight[row];
  const int64_t begin = rows.begin[row], count = rows.count[row];
  rows.left[row] = 1.0f;
  if (begin >= count) return;
  for (int64_t k = 0; k < begin; ++k) weight[k] = -__builtin_inff();
  for (int64_t k = count; k < ATTENTION_BLOCK; ++k) weight[k] = -__builtin_inff();
  Vector most = Simd::load(weight);
  for (int64_t k = Simd::STEP; k < ATTENTION_BLOCK; k += Simd::STEP) most = Simd::larger(most, Simd::load(weight + k));
  float each[Simd::STEP];
  Simd::store(each, most);
  float top = rows.top[row];
  for (const float one : each) top = one > top ? one : top;
  Vector sum = Simd::all(0.0f);
  for (int64_t k = 0; k < ATTENTION_BLOCK; k += Simd::STEP) {
    const Vector found = exp_of<Simd>(Simd::load(weight + k) - Simd::all(top));
    Simd::store(weight + k, found);
    sum = sum + found;
  }
  float total;
  Simd::template store_totals<1>(&sum, &total);
  Simd::store(each, exp_of<Simd>(Simd::all(rows.top[row] - top)));
  rows.left[row] = each[0];
  rows.total[row] = rows.total[row] * each[0] + total;
  rows.top[row] = top;
}

// Sums over the values of a block's positions.
template <typename Simd, typename Number>
struct Add {
  AttentionRows& rows;
  Stream<Number> values;
  int64_t size, count;
  int64_t before = 0;

  Add from(int64_t row) const { return {rows, values, size, count, before + row}; }

  template <int ROWS>
  void run(int64_t row) const {
    constexpr int VECTORS = least(8, Simd::SUMS / ROWS);
    const auto load = [](const auto* from) { return Simd::load(from); };
    const auto store = [](float* to, typename Simd::Vector x) { Simd::store(to, x); };
    int64_t k = 0;
    for (; k + VECTORS * Simd::STEP <= size; k += VECTORS * Simd::STEP) tile<ROWS, VECTORS>(before + row, k, load, store);
    for (; k + Simd::STEP <= size; k += Simd::STEP) tile<ROWS, 1>(before + row, k, load, store);
    if (const int64_t more = size - k)
      tile<ROWS, 1>(before + row, k, [more](const auto* from) { return Simd::load_first(from, more); },
                    [more](float* to, typename Simd::Vector x) { Simd::store_first(to, x, more); });
  }

  template <int ROWS, int VECTORS, typename Load, typename Store>
  void tile(int64_t row, int64_t k, const Load& load, const Store& store) const {
    using Vector = typename Simd::Vector;
    Vector sums[ROWS][VECTORS];
    int64_t begin = 0, all = count;  // positions visible to all of the rows
    for (int one = 0; one < ROWS; ++one) {
      const Vector left = Simd::all(rows.left[row + one]);
      for (int v = 0; v < VECTORS; ++v) sums[one][v] = left * load(rows.out[row + one] + k + v * Simd::STEP);
      begin = rows.begin[row + one] > begin ? rows.begin[row + one] : begin;
      all = rows.count[row + one] < all ? rows.count[row + one] : all;
    }
    const auto add = [&](int one, int64_t from, int64_t to) {
      for (int64_t at = from; at < to; ++at)
        for (int v = 0; v < VECTORS; ++v)
          sums[one][v] = Simd::add_product(sums[one][v], Simd::all(rows.weight[row + one][at]),
                                           load(values.at(at) + k + v * Simd::STEP));
    };
    all = all < begin ? begin : all;
    for (int one = 0; one < ROWS; ++one) {
      const int64_t seen = rows.count[row + one];
      add(one, rows.begin[row + one], seen < begin ? seen : begin);
    }
    for (int64_t at = begin; at < all; ++at) {
      if (row == 0 && k == 0) values.ask_ahead(at, 1);
      Vector numbers[VECTORS];
      for (int v = 0; v < VECTORS; ++v) numbers[v] = load(values.at(at) + k + v * Simd::STEP);
      for (int one = 0; one < ROWS; ++one) {
        const Vector weight = Simd::all(rows.weight[row + one][at]);
        for (int v = 0; v < VECTORS; ++v) sums[one][v] = Simd::add_product(sums[one][v], weight, numbers[v]);
      }
    }
    for (int one = 0; one < ROWS; ++one) add(one, all, rows.count[row + one]);
    for (int one = 0; one < ROWS; ++one)
      for (int v = 0; v < VECTORS; ++v) store(rows.out[row + one] + k + v * Simd::STEP, sums[one][v]);
  }
};

template <typename Simd, typename Number>
void attend(const DecodeAttention& step, int64_t lane, int64_t kv_head, int64_t first, int64_t last) {
  const int64_t groups = step.heads / step.kv_heads, value = step.value, key = step.key, stride = step.value_stride();
  AttentionRows rows;
  int64_t count = 0, most = 0, least_seen = step.context();
  for (int64_t row = first; row < last; ++row) {
    const int64_t token = row / groups;
    const int64_t place = (lane * step.tokens + token) * step.heads + kv_head * groups + row % groups;
    float* const out = step.out + place * value;
    for (int64_t k = 0; k < value; ++k) out[k] = 0.0f;
    const int64_t behind = step.positions[lane] + token + 1;
    if (token >= step.lengths[lane] || behind <= 0) continue;
    rows.query[count] = step.query + place * key;
    rows.out[count] = out;
    rows.seen[count] = behind < step.context() ? behind : step.context();
    rows.unseen[count] = step.unseen(behind);
    least_seen = rows.unseen[count] < least_seen ? rows.unseen[count] : least_seen;
    rows.top[count] = -1e30f;
    rows.total[count] = 0.0f;
    most = rows.seen[count] > most ? rows.seen[count] : most;
    ++count;
  }
  const Paged<Number> keys{step, static_cast<const Number*>(step.keys), lane, kv_head, key, most};
  const Paged<Number> values{step, static_cast<const Number*>(step.values), lane, kv_head, stride, most};
  const int64_t begin = least_seen - least_seen % ATTENTION_BLOCK;
  if (step.new_values != nullptr && most > begin) values.from(begin).ask(0, Stream<Number>::AHEAD);
  for (int64_t start = begin; start < most; start += ATTENTION_BLOCK) {
    const int64_t here = most - start < ATTENTION_BLOCK ? most - start : ATTENTION_BLOCK;
    for (int64_t row = 0; row < count; ++row) {
      const int64_t sees = rows.seen[row] - start, skips = rows.unseen[row] - start;
      rows.count[row] = sees < 0 ? 0 : sees < here ? sees : here;
      rows.begin[row] = skips < 0 ? 0 : skips < here ? skips : here;
    }
    over_rows<Simd::ROWS>(count, Score<Simd, Number>{rows, keys.from(start), here});
    for (int64_t row = 0; row < count; ++row) exponentials<Simd>(rows, row);
    over_rows<Simd::ROWS>(count, Add<Simd, Number>{rows, values.from(start), value, here});
  }
  for (int64_t row = 0; row < count; ++row)
    for (int64_t k = 0; k < value; ++k) rows.out[row][k] /= rows.total[row];
}

template <typename Simd>
constexpr AttendForms attend_forms() {
  return {attend<Simd, uint16_t>, attend<Simd, float>};
}

}  // namespace

#endif  // MODELS_CPU_KERNELS_DECODE_ATTENTION_H_
