// Checks of attention over a KV cache in every instruction set that this processor runs: numbers beside float64, equal bits
// of a lane alone and in any batch and of tokens together and one by one, every lane disturbed, positions behind the end of
// a lane and pages of no lane left alone, and no byte read or written outside of the buffers, behind and in front of which
// there is no memory; page tables with faults. Exit status 1 and a line for each fault.
//
//   decode_attention_check [brief]

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "checks.h"
#include "decode_attention/decode_attention_call.h"

extern "C" const AttendForms* hybridlm_attend(int64_t instructions);

namespace {

struct Sizes {
  int64_t lanes, tokens, heads, kv_heads, key, value, blocks, window;

  int64_t context() const { return blocks * PAGE_POSITIONS; }
};

float number_of(float x) { return x; }
float number_of(uint16_t x) { return float_of(static_cast<uint32_t>(x) << 16); }

// A lane by itself, and some of its tokens, of a step whose arrays have those of all lanes.
DecodeAttention part_of(DecodeAttention step, int64_t lane, int64_t token) {
  const int64_t at = lane * step.tokens + token;
  step.query += at * step.heads * step.key;
  step.new_keys += at * step.kv_heads * step.key;
  if (step.new_values) step.new_values += at * step.kv_heads * step.value;
  step.out += at * step.heads * step.value;
  step.pages += lane * step.blocks;
  step.lengths += lane;
  step.positions += lane;
  step.lanes = 1;
  return step;
}

template <typename Number>
class Case : public LaneCase<Case<Number>> {
  using Lanes = LaneCase<Case>;
  friend Lanes;
  using Lanes::lengths_;
  using Lanes::name_;

 public:
  Case(std::string name, const AttendForms& forms, const Sizes& s, bool shared, bool at_end)
      : Lanes(std::move(name), s.lanes, s.tokens, at_end),
        forms_(forms),
        s_(s),
        shared_(shared),
        pool_(1 + s.lanes * s.blocks + 3),
        pages_(s.lanes * s.blocks, at_end),
        positions_(s.lanes, at_end),
        query_(s.lanes * s.tokens * s.heads * s.key, at_end),
        new_keys_(s.lanes * s.tokens * s.kv_heads * s.key, at_end),
        new_values_(s.lanes * s.tokens * s.kv_heads * (shared ? 0 : s.value), at_end),
        keys_(pool_ * s.kv_heads * PAGE_POSITIONS * s.key, at_end),
        values_(shared ? 0 : pool_ * s.kv_heads * PAGE_POSITIONS * s.value, at_end),
        out_(s.lanes * s.tokens * s.heads * s.value, at_end) {
    std::mt19937 random(static_cast<unsigned>(s.key * 1000 + s.value * 10 + s.tokens));
    std::normal_distribution<float> normal;
    for (auto* one : {&query_, &new_keys_, &new_values_})
      for (int64_t k = 0; k < one->size(); ++k) (*one)[k] = normal(random);
    for (int64_t k = 0; k < query_.size(); ++k) query_[k] *= 3 / std::sqrt(static_cast<float>(s.key));
    // Ends around those of blocks, of a page, and of the context, behind which tokens are not written.
    const int64_t ends[] = {1,  7, ATTENTION - 1, ATTENTION, ATTENTION + 1, PAGE_POSITIONS + (s.blocks > 1), s.context(),
                            s.context() + 1};
    for (auto* one : {&keys_, &values_})
      for (int64_t page = 0; page < pool_; ++page) fill_page(*one, page, 0, PAGE_POSITIONS, NOT_A_NUMBER);
    for (int64_t lane = 0; lane < s.lanes; ++lane) {
      lengths_[lane] = static_cast<int32_t>(lane % 4 == 1 ? 0 : lane % 4 == 2 ? 1 : lane % 4 == 3 ? (s.tokens + 1) / 2 : s.tokens);
      const int64_t first = ends[lane % 8] - lengths_[lane];
      positions_[lane] = static_cast<int32_t>(first < 0 ? 0 : first);
      this->fill_tokens(lane, lengths_[lane], NOT_A_NUMBER);
      // Pages in an order of their own; those of no lane, the null page among them, are NaN.
      for (int64_t block = 0; block < s.blocks; ++block) {
        const int64_t page = 1 + ((lane + block * s.lanes) * 5 + 2) % (s.lanes * s.blocks + 3);
        pages_[lane * s.blocks + block] = static_cast<int32_t>(lengths_[lane] ? page : 0);
        if (!lengths_[lane]) continue;
        // Those in front of the window of the first token stay NaN.
        const auto in_block = [&](int64_t at) { return std::min(std::max<int64_t>(at - block * PAGE_POSITIONS, 0), PAGE_POSITIONS); };
        const int64_t seen = in_block(positions_[lane]), unseen = in_block(unseen_by(positions_[lane]));
        for (auto* one : {&keys_, &values_}) {
          const int64_t size = numbers_of(*one);
          for (int64_t head = 0; head < s.kv_heads; ++head)
            for (int64_t k = unseen * size; k < seen * size; ++k)
              cpu_kernels::keep(normal(random), one->data() + (page * s.kv_heads + head) * PAGE_POSITIONS * size + k);
        }
      }
    }
    keep_start();
  }

  DecodeAttention step() {
    return {pages_.data(), lengths_.data(), positions_.data(), query_.data(), new_keys_.data(),
            shared_ ? nullptr : new_values_.data(), keys_.data(), shared_ ? keys_.data() : values_.data(), out_.data(),
            s_.lanes, s_.tokens, s_.heads, s_.kv_heads, s_.key, s_.value, s_.blocks, s_.window};
  }

  struct Result {
    std::vector<float> out;
    std::vector<Number> keys, values;
  };

  void begin() {
    std::memcpy(keys_.data(), start_.first.data(), start_.first.size() * sizeof(Number));
    if (!shared_) std::memcpy(values_.data(), start_.second.data(), start_.second.size() * sizeof(Number));
    std::memset(out_.data(), 0xFF, static_cast<size_t>(out_.size()) * sizeof(float));
  }

  template <typename Pool>
  Result run(Pool& pool) {
    begin();
    run(pool, step());
    return result();
  }

  template <typename Pool>
  void run(Pool& pool, const DecodeAttention& step) {
    cpu_kernels::decode_attention(pool, forms_, std::is_same<Number, uint16_t>::value, step);
  }

  Result result() {
    return {copied(out_), copied(keys_), copied(values_)};
  }

  void all() {
    Alone alone;
    const Result whole = run(alone);
    numbers(whole);
    written(whole);
    {
      OwnThreads threads;
      same(run(threads), whole, "on several threads");
    }
    begin();
    for (int64_t lane = 0; lane < s_.lanes; ++lane) run(alone, part_of(step(), lane, 0));
    same(result(), whole, "of lanes by themselves");
    token_by_token(whole);
  }

 private:
  // Positions of a block (ATTENTION_BLOCK).
  static constexpr int64_t ATTENTION = 32;

  // Number of positions in front of the window of the token at a position.
  int64_t unseen_by(int64_t position) const {
    return s_.window && position + 1 > s_.window ? position + 1 - s_.window : 0;
  }
  int64_t page_of(int64_t lane, int64_t block) { return pages_[lane * s_.blocks + block]; }
  // Place of a position among those of all pages and heads.
  int64_t place_of(int64_t lane, int64_t kv_head, int64_t position) {
    const int64_t page = page_of(lane, position / PAGE_POSITIONS);
    return (page * s_.kv_heads + kv_head) * PAGE_POSITIONS + position % PAGE_POSITIONS;
  }
  // Numbers of a key or of a value.
  int64_t numbers_of(const Guarded<Number>& one) { return one.size() / (pool_ * s_.kv_heads * PAGE_POSITIONS); }

  template <typename T>
  static std::vector<T> copied(Guarded<T>& one) {
    return std::vector<T>(one.data(), one.data() + one.size());
  }
  template <typename T>
  static bool bits(const std::vector<T>& one, const std::vector<T>& other, int64_t first, int64_t count) {
    return count == 0 || std::memcmp(&one[static_cast<size_t>(first)], &other[static_cast<size_t>(first)],
                                     static_cast<size_t>(count) * sizeof(T)) == 0;
  }
  void keep_start() { start_ = {copied(keys_), copied(values_)}; }
  void fill_page(Guarded<Number>& one, int64_t page, int64_t first, int64_t last, float number) {
    const int64_t size = numbers_of(one);
    for (int64_t head = page * s_.kv_heads; head < (page + 1) * s_.kv_heads; ++head)
      for (int64_t k = first * size; k < last * size; ++k)
        cpu_kernels::keep(number, one.data() + head * PAGE_POSITIONS * size + k);
  }
  void fill_state(int64_t lane, float number) {
    begin();
    for (int64_t block = 0; block < s_.blocks; ++block)
      for (auto* one : {&keys_, &values_})
        if (page_of(lane, block)) fill_page(*one, page_of(lane, block), 0, PAGE_POSITIONS, number);
    keep_start();
  }
  std::vector<Guarded<float>*> tokens() { return {&query_, &new_keys_, &new_values_}; }
  void forbid() {
    out_.allow(PROT_NONE);
    for (auto* one : {&keys_, &values_}) one->allow(PROT_NONE);
    for (auto* one : {&pages_, &positions_}) one->allow(PROT_NONE);
  }
  bool same_lane(const Result& one, const Result& other, int64_t lane) {
    const auto equal = [&](const auto& a, const auto& b, int64_t row, int64_t rows) {
      const int64_t size = static_cast<int64_t>(a.size()) / rows;
      return bits(a, b, row * size, size);
    };
    bool good = equal(one.out, other.out, lane, s_.lanes);
    for (int64_t block = 0; block < s_.blocks && lengths_[lane]; ++block) {
      const int64_t page = page_of(lane, block);
      good = good && equal(one.keys, other.keys, page, pool_) && equal(one.values, other.values, page, pool_);
    }
    return good;
  }
  void same(const Result& one, const Result& other, const std::string& how) {
    check(bits(one.out, other.out, 0, out_.size()) && bits(one.keys, other.keys, 0, keys_.size()) &&
              bits(one.values, other.values, 0, values_.size()),
          name_ + ": other bits " + how);
  }

  // As many steps of one token have the bits of one step.
  void token_by_token(const Result& whole) {
    begin();
    std::memset(out_.data(), 0, static_cast<size_t>(out_.size()) * sizeof(float));
    Alone alone;
    for (int64_t token = 0; token < s_.tokens; ++token)
      for (int64_t lane = 0; lane < s_.lanes; ++lane) {
        const int32_t length = token < lengths_[lane], position = positions_[lane] + static_cast<int32_t>(token);
        DecodeAttention one = part_of(step(), lane, token);
        one.lengths = &length;
        one.positions = &position;
        one.tokens = 1;
        run(alone, one);
      }
    same(result(), whole, "token by token");
  }

  // The caches have the rounded keys and values of real tokens at their positions, and are else as they were.
  void written(const Result& found) {
    cache_written(start_.first, found.keys, new_keys_, s_.key);
    if (!shared_) cache_written(start_.second, found.values, new_values_, s_.value);
  }
  void cache_written(std::vector<Number> expected, const std::vector<Number>& found, Guarded<float>& fresh, int64_t size) {
    for (int64_t lane = 0; lane < s_.lanes; ++lane)
      for (int64_t token = 0; token < lengths_[lane] && positions_[lane] + token < s_.context(); ++token)
        for (int64_t k = 0; k < s_.kv_heads * size; ++k) {
          const int64_t row = place_of(lane, k / size, positions_[lane] + token);
          cpu_kernels::keep(fresh[(lane * s_.tokens + token) * s_.kv_heads * size + k], &expected[row * size + k % size]);
        }
    check(bits(expected, found, 0, static_cast<int64_t>(found.size())), name_ + ": other keys or values are written");
  }

  void numbers(const Result& found) {
    const int64_t groups = s_.heads / s_.kv_heads;
    for (int64_t lane = 0; lane < s_.lanes; ++lane)
      for (int64_t token = 0; token < s_.tokens; ++token)
        for (int64_t head = 0; head < s_.heads; ++head) {
          const int64_t row = (lane * s_.tokens + token) * s_.heads + head;
          const float* const out = &found.out[static_cast<size_t>(row * s_.value)];
          if (token < lengths_[lane])
            row_numbers(found, lane, head / groups, positions_[lane] + token, row, out);
          else
            for (int64_t k = 0; k < s_.value; ++k) check(out[k] == 0, name_ + ": padding is not zero");
        }
  }

  // The row of the token at a position beside float64; `size` bounds what is added up.
  void row_numbers(const Result& found, int64_t lane, int64_t kv_head, int64_t position, int64_t row, const float* out) {
    const int64_t seen = std::min(position + 1, s_.context()), unseen = unseen_by(position);
    std::vector<double> weight(static_cast<size_t>(seen), -std::numeric_limits<double>::infinity());
    double top = -std::numeric_limits<double>::infinity(), total = 0, of_score = 0;
    for (int64_t at = unseen; at < seen; ++at) {
      double score = 0, size = 0;
      for (int64_t k = 0; k < s_.key; ++k) {
        const double one = static_cast<double>(query_[row * s_.key + k]) *
                           number_of(found.keys[place_of(lane, kv_head, at) * s_.key + k]);
        score += one;
        size += std::fabs(one);
      }
      weight[at] = score;
      top = std::max(top, score);
      of_score = std::max(of_score, size);
    }
    for (double& one : weight) total += one = std::exp(one - top);
    const std::vector<Number>& values = shared_ ? found.keys : found.values;
    const int64_t stride = shared_ ? s_.key : s_.value;
    for (int64_t k = 0; k < s_.value; ++k) {
      double sum = 0, size = 0;
      for (int64_t at = unseen; at < seen; ++at) {
        const double one = weight[at] / total * number_of(values[place_of(lane, kv_head, at) * stride + k]);
        sum += one;
        size += std::fabs(one);
      }
      // A score's error is one of its exponential.
      check(std::fabs(out[k] - sum) <= (2e-6 + 4e-7 * of_score) * size,
            name_ + ": " + std::to_string(out[k]) + " for " + std::to_string(sum));
    }
  }

  const AttendForms& forms_;
  Sizes s_;
  bool shared_;
  int64_t pool_;
  Guarded<int32_t> pages_, positions_;
  Guarded<float> query_, new_keys_, new_values_;
  Guarded<Number> keys_, values_;
  Guarded<float> out_;
  std::pair<std::vector<Number>, std::vector<Number>> start_;
};

template <typename Number>
void check_form(const std::string& set, const AttendForms& forms, const std::string& dtype, bool brief) {
  const auto name = [&](const Sizes& s, bool shared) {
    return set + " " + dtype + (shared ? " latent " : " ") + std::to_string(s.tokens) + " x " + std::to_string(s.heads) +
           "/" + std::to_string(s.kv_heads) + " x " + std::to_string(s.key) + " x " + std::to_string(s.value) +
           " window " + std::to_string(s.window);
  };
  const int64_t windows[] = {0, 2, 31, 32, 0, 40, 129, 1000};
  const int64_t heads[][2] = {{1, 1}, {2, 2}, {3, 1}, {6, 2}, {5, 1}, {8, 1}, {7, 7}};
  int number = 0;
  for (const int64_t key : {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 130})
    for (const int64_t value : {1, 5, 16, 33, 72, 130})
      for (const int64_t tokens : {1, 2, 5}) {
        if (++number % (brief ? 7 : 2)) continue;
        const auto& [all, kv] = heads[number % 7];
        const bool shared = value <= key && number % 3 == 0;
        const Sizes sizes{8, tokens, all, kv, key, value, 1 + number % 2, windows[number % 8]};
        Case<Number> one(name(sizes, shared), forms, sizes, shared, number % 4 < 2);
        one.all();
        if (number % 11 == 0) one.every_lane_disturbed();
      }
  for (const bool shared : {false, true})
    for (const Sizes& sizes : {Sizes{9, 1, 6, 2, 128, 128, 2, 0}, Sizes{5, 16, 6, 1, 80, 64, 3, 0}, Sizes{5, 16, 6, 1, 80, 64, 3, 100}}) {
      Case<Number> large(name(sizes, shared), forms, sizes, shared, !shared);
      large.all();
      if (!brief) large.every_lane_disturbed();
      large.late_threads();
    }
}

void check_tables() {
  int32_t pages[] = {1, 2, 3, 0}, lengths[] = {1, 2}, positions[] = {128, 126};
  const DecodeAttention step{pages,   lengths, positions, nullptr, nullptr, nullptr, nullptr,
                             nullptr, nullptr, 2,         2,       1,       1,       1, 1, 2, 0};
  const auto refused = [&](int32_t& changed, int32_t other, const char* about) {
    const int32_t before = changed;
    changed = other;
    check(cpu_kernels::fault_of_pages(step, 4).find(about) != std::string::npos, std::string("no fault: ") + about);
    changed = before;
  };
  check(cpu_kernels::fault_of_pages(step, 4).empty(), "a right page table is refused");
  refused(pages[0], 4, "lane 0 is on page 4");
  refused(pages[2], -1, "lane 1 is on page -1");
  refused(pages[1], 3, "writes to page 3, which is named twice");
  refused(pages[0], 2, "writes to page 2, which is named twice");
  refused(lengths[1], 3, "lane 1 has 3 tokens");
  // A page that is only read may be shared; behind the last token nothing counts, and idle lanes have no pages.
  pages[0] = 2, pages[1] = 1, lengths[1] = 0, pages[2] = 2;
  check(cpu_kernels::fault_of_pages(step, 4).empty(), "an idle lane has pages");
  lengths[1] = 1, positions[1] = 200, pages[3] = 3;
  check(cpu_kernels::fault_of_pages(step, 4).empty(), "a page that is only read is refused");
}

}  // namespace

int main(int count, char** arguments) {
  check_tables();
  return check_sets(count, arguments, [](const std::string& name, int64_t set, bool brief) {
    check_form<uint16_t>(name, *hybridlm_attend(set), "bfloat16", brief);
    check_form<float>(name, *hybridlm_attend(set), "float32", brief);
  });
}
