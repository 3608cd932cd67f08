// Checks of steps of recurrences in every instruction set that this processor runs: numbers beside float64, equal bits of a
// lane alone and in any batch and of tokens together and one by one, every lane disturbed, idle lanes and rows of nobody
// left alone, and no byte read or written outside of the buffers, behind and in front of which there is no memory. Exit
// status 1 and a line for each fault.
//
//   recurrent_step_check [brief]

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "recurrent_steps/recurrent_step_call.h"

extern "C" Advance hybridlm_advance(int64_t instructions);

namespace {

enum class Kind { head, channel, ssd };

struct Sizes {
  int64_t lanes, tokens, heads, key_heads, values, keys;
};

constexpr int64_t SPARE_ROWS = 2;

// The operands of a step; `disturbed` lane holds numbers that would show in any other.
class Case : public LaneCase<Case> {
 public:
  friend LaneCase;
  Case(std::string name, Advance advance, Kind kind, const Sizes& s, bool by_slot, bool at_end)
      : LaneCase(std::move(name), s.lanes, s.tokens, at_end),
        advance_(advance),
        kind_(kind),
        s_(s),
        rows_(by_slot ? s.lanes + SPARE_ROWS : s.lanes),
        by_slot_(by_slot),
        slots_(s.lanes, at_end),
        fresh_(s.lanes, at_end),
        decay_(s.lanes * s.tokens * s.heads * (kind == Kind::channel ? s.keys : 1), at_end),
        beta_(s.lanes * s.tokens * s.heads, at_end),
        query_(s.lanes * s.tokens * s.key_heads * s.keys, at_end),
        key_(query_.size(), at_end),
        value_(s.lanes * s.tokens * s.heads * s.values, at_end),
        out_(value_.size(), at_end),
        state_(rows_ * s.heads * s.values * s.keys, at_end) {
    std::mt19937 random(static_cast<unsigned>(s.keys * 1000 + s.values * 10 + s.tokens));
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> share(0.05f, 0.95f);
    for (int64_t lane = 0; lane < s.lanes; ++lane) {
      // All, none, one, and so on; an idle lane names a row of another lane.
      lengths_[lane] = static_cast<int32_t>(lane % 4 == 1 ? 0 : lane % 4 == 2 ? 1 : lane % 4 == 3 ? (s.tokens + 1) / 2 : s.tokens);
      fresh_[lane] = lane % 3 == 2;
      slots_[lane] = static_cast<int32_t>(lane % 4 == 1 ? slots_[lane - 1] : rows_ - 1 - lane);
    }
    for (auto* one : {&query_, &key_, &value_})
      for (int64_t k = 0; k < one->size(); ++k) (*one)[k] = normal(random);
    for (int64_t k = 0; k < key_.size(); ++k) key_[k] /= std::sqrt(static_cast<float>(s.keys));
    for (auto* one : {&decay_, &beta_})
      for (int64_t k = 0; k < one->size(); ++k) (*one)[k] = share(random);
    start_.resize(static_cast<size_t>(state_.size()));
    for (auto& one : start_) one = normal(random);
    for (int64_t lane = 0; lane < s.lanes; ++lane) {
      fill_tokens(lane, lengths_[lane], NOT_A_NUMBER);
      if (fresh_[lane] && lengths_[lane]) fill_state(lane, NOT_A_NUMBER);
    }
  }

  RecurrentStep step(bool keeps_state = false) {
    return {by_slot_ ? slots_.data() : nullptr, lengths_.data(), fresh_.data(), decay_.data(),
            kind_ == Kind::ssd ? nullptr : beta_.data(), query_.data(), key_.data(), value_.data(), state_.data(),
            out_.data(), s_.lanes, s_.tokens, s_.heads, s_.key_heads, s_.values, s_.keys, kind_ == Kind::channel,
            keeps_state};
  }

  struct Result {
    std::vector<float> out, state;
  };

  template <typename Pool>
  Result run(Pool& pool, bool keeps_state = false) {
    restore();
    std::memset(out_.data(), 0xFF, static_cast<size_t>(out_.size()) * sizeof(float));
    if (keeps_state) state_.allow(PROT_READ);
    run(pool, step(keeps_state));
    state_.allow(PROT_READ | PROT_WRITE);
    return result();
  }

  template <typename Pool>
  void run(Pool& pool, const RecurrentStep& one) {
    cpu_kernels::recurrent_step(pool, advance_, one);
  }

  Result result() {
    return {std::vector<float>(out_.data(), out_.data() + out_.size()),
            std::vector<float>(state_.data(), state_.data() + state_.size())};
  }

  void all() {
    Alone alone;
    const Result whole = run(alone);
    numbers(whole);
    untouched(whole.out, whole.state, rows_);
    {
      OwnThreads threads;
      same(run(threads), whole, "on several threads");
    }
    if (s_.tokens <= BLOCK_TOKENS) {
      const Result kept = run(alone, true);
      check(kept.out.size() == whole.out.size() && bits(kept.out.data(), whole.out.data(), out_.size()),
            name_ + ": other outputs where the state is kept");
    }
    in_parts(whole, fresh_);
  }

 private:
  int64_t row_size() const { return s_.heads * s_.values * s_.keys; }
  int64_t row_of(int64_t lane) { return by_slot_ ? slots_[lane] : lane; }
  static bool bits(const float* one, const float* other, int64_t count) {
    return std::memcmp(one, other, static_cast<size_t>(count) * sizeof(float)) == 0;
  }
  void restore() { std::memcpy(state_.data(), start_.data(), start_.size() * sizeof(float)); }
  void fill_state(int64_t lane, float number) {
    std::fill_n(start_.begin() + row_of(lane) * row_size(), row_size(), number);
  }
  std::vector<Guarded<float>*> tokens() { return {&decay_, &beta_, &query_, &key_, &value_}; }
  void forbid() {
    for (auto* one : {&out_, &state_}) one->allow(PROT_NONE);
  }
  bool same_lane(const Result& one, const Result& other, int64_t lane) {
    const int64_t shown = out_.size() / s_.lanes, row = row_of(lane) * row_size();
    return bits(one.out.data() + lane * shown, other.out.data() + lane * shown, shown) &&
           (lengths_[lane] == 0 || bits(one.state.data() + row, other.state.data() + row, row_size()));
  }
  void same(const Result& one, const Result& other, const std::string& how) {
    check(bits(one.out.data(), other.out.data(), out_.size()) && bits(one.state.data(), other.state.data(), state_.size()),
          name_ + ": other bits " + how);
  }

  // A lane by itself, from a token on.
  RecurrentStep part_of(int64_t lane, int64_t token) {
    RecurrentStep one = step();
    const int64_t at = lane * s_.tokens + token;
    one.slots = nullptr;
    one.lengths += lane;
    one.fresh += lane;
    one.decay += at * s_.heads * (one.by_channel ? s_.keys : 1);
    if (one.beta) one.beta += at * s_.heads;
    one.query += at * s_.key_heads * s_.keys;
    one.key += at * s_.key_heads * s_.keys;
    one.value += at * s_.heads * s_.values;
    one.out += at * s_.heads * s_.values;
    one.state += row_of(lane) * row_size();
    one.lanes = 1;
    return one;
  }

  void numbers(const Result& found) {
    for (int64_t lane = 0; lane < s_.lanes; ++lane)
      for (int64_t head = 0; head < s_.heads; ++head)
        for (int64_t v = 0; v < s_.values; ++v) {
          const int64_t at = (row_of(lane) * s_.heads + head) * s_.values * s_.keys + v * s_.keys;
          if (lengths_[lane]) row_numbers(found, lane, head, v, at);
        }
  }

  // One row of a state beside float64; `size` bounds what is added up.
  void row_numbers(const Result& found, int64_t lane, int64_t head, int64_t v, int64_t at) {
    std::vector<double> row(static_cast<size_t>(s_.keys)), size(row.size());
    for (int64_t k = 0; k < s_.keys; ++k) {
      row[k] = fresh_[lane] ? 0.0 : static_cast<double>(start_[at + k]);
      size[k] = std::fabs(row[k]);
    }
    for (int64_t token = 0; token < lengths_[lane]; ++token) {
      const int64_t of_head = (lane * s_.tokens + token) * s_.heads + head;
      const int64_t key_head = (lane * s_.tokens + token) * s_.key_heads + head / (s_.heads / s_.key_heads);
      const auto key = [&](int64_t k) { return static_cast<double>(key_[key_head * s_.keys + k]); };
      const auto query = [&](int64_t k) { return static_cast<double>(query_[key_head * s_.keys + k]); };
      double delta = value_[of_head * s_.values + v], of_delta = std::fabs(delta), out = 0, of_out = 0;
      for (int64_t k = 0; k < s_.keys; ++k) {
        const double decay = decay_[kind_ == Kind::channel ? of_head * s_.keys + k : of_head];
        row[k] *= decay;
        size[k] *= decay;
        if (kind_ == Kind::ssd) continue;
        delta -= row[k] * key(k);
        of_delta += size[k] * std::fabs(key(k));
      }
      if (kind_ != Kind::ssd) delta *= beta_[of_head], of_delta *= beta_[of_head];
      for (int64_t k = 0; k < s_.keys; ++k) {
        row[k] += delta * key(k);
        size[k] += of_delta * std::fabs(key(k));
        out += row[k] * query(k);
        of_out += size[k] * std::fabs(query(k));
      }
      const double shown = found.out[of_head * s_.values + v];
      check(std::fabs(shown - out) <= 4e-6 * of_out, name_ + ": " + std::to_string(shown) + " for " + std::to_string(out));
    }
    for (int64_t k = 0; k < s_.keys; ++k)
      check(std::fabs(found.state[at + k] - row[k]) <= 4e-6 * size[k] + 1e-30, name_ + ": another state than that of float64");
  }

  Advance advance_;
  Kind kind_;
  Sizes s_;
  int64_t rows_;
  bool by_slot_;
  Guarded<int32_t> slots_;
  Guarded<bool> fresh_;
  Guarded<float> decay_, beta_, query_, key_, value_, out_, state_;
  std::vector<float> start_;
};

void check_form(const std::string& set, Advance advance, Kind kind, const std::string& form, bool brief) {
  const auto name = [&](const Sizes& s) {
    return set + " " + form + " " + std::to_string(s.tokens) + " x " + std::to_string(s.values) + " x " + std::to_string(s.keys);
  };
  int number = 0;
  for (const int64_t keys : {1, 3, 4, 7, 8, 9, 15, 16, 17, 31, 33, 64, 130})
    for (const int64_t values : {1, 2, 3, 5, 8, 9, 17, 34})
      for (const int64_t tokens : {1, 2, 5}) {
        if (++number % (brief ? 5 : 1)) continue;
        const Sizes sizes{5, tokens, 4, kind == Kind::ssd ? 2 : 4, values, keys};
        Case one(name(sizes), advance, kind, sizes, number % 2, number % 4 < 2);
        one.all();
        if (values == 9 && (keys == 1 || keys == 33)) one.every_lane_disturbed();
      }
  // Whole blocks of tokens, and one token more or less.
  for (const int64_t tokens : {BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 2 * BLOCK_TOKENS + 1}) {
    const Sizes sizes{5, tokens, 2, kind == Kind::ssd ? 1 : 2, 9, 17};
    Case blocks(name(sizes), advance, kind, sizes, true, true);
    blocks.all();
    if (tokens == BLOCK_TOKENS + 1) blocks.every_lane_disturbed();
  }
  for (const Sizes& sizes : {Sizes{9, 1, 2, 2, 128, 128}, Sizes{5, 16, 2, 1, 40, 512}}) {
    Case large(name(sizes), advance, kind, sizes, true, true);
    large.all();
    if (!brief) large.every_lane_disturbed();
    large.late_threads();
  }
}

}  // namespace

int main(int count, char** arguments) {
  return check_sets(count, arguments, [](const std::string& name, int64_t set, bool brief) {
    check_form(name, hybridlm_advance(set), Kind::head, "delta rule", brief);
    check_form(name, hybridlm_advance(set), Kind::channel, "delta rule by channel", brief);
    check_form(name, hybridlm_advance(set), Kind::ssd, "ssd", brief);
  });
}
