// Checks of steps of short convolutions in every instruction set that this processor runs: numbers beside float64, equal
// bits of a lane alone and in any batch, of tokens together and one by one, and of all instruction sets, every lane
// disturbed, idle lanes and rows of nobody left alone, and no byte read or written outside of the buffers, behind and in
// front of which there is no memory. Exit status 1 and a line for each fault.
//
//   conv_step_check [brief]

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "conv_steps/conv_step_call.h"

extern "C" Convolve hybridlm_convolve(int64_t instructions);

namespace {

struct Sizes {
  int64_t lanes, tokens, kernel, channels;
};

struct Kind {
  bool narrow_taps, narrow_state, biased, activated, by_slot, at_end;
};

constexpr int64_t SPARE_ROWS = 2;

// Numbers of float or bfloat16 at the edge of memory.
class Stored {
 public:
  Stored(int64_t count, bool narrow, bool at_end) : narrow_(narrow), count_(count), bytes_(count * (narrow ? 2 : 4), at_end) {}
  float get(int64_t k) { return narrow_ ? widened(bytes_.as<uint16_t>()[k]) : bytes_.as<float>()[k]; }
  void set(int64_t k, float x) {
    if (narrow_)
      bytes_.as<uint16_t>()[k] = narrowed(x);
    else
      bytes_.as<float>()[k] = x;
  }
  char* at(int64_t k) { return bytes_.data() + k * (narrow_ ? 2 : 4); }
  int64_t bytes() const { return bytes_.size(); }
  int64_t size() const { return count_; }
  void allow(int protection) { bytes_.allow(protection); }

 private:
  bool narrow_;
  int64_t count_;
  Guarded<char> bytes_;
};

class Case : public LaneCase<Case> {
 public:
  friend LaneCase;
  Case(std::string name, int64_t set, const Sizes& s, const Kind& kind)
      : LaneCase(std::move(name), s.lanes, s.tokens, kind.at_end),
        convolve_(hybridlm_convolve(set)),
        kind_(kind),
        s_(s),
        rows_(kind.by_slot ? s.lanes + SPARE_ROWS : s.lanes),
        slots_(s.lanes, kind.at_end),
        fresh_(s.lanes, kind.at_end),
        x_(s.lanes * s.tokens * s.channels, kind.at_end),
        bias_(s.channels, kind.at_end),
        out_(x_.size(), kind.at_end),
        taps_(s.channels * s.kernel, kind.narrow_taps, kind.at_end),
        state_(rows_ * (s.kernel - 1) * s.channels, kind.narrow_state, kind.at_end) {
    std::mt19937 random(static_cast<unsigned>(s.channels * 1000 + s.kernel * 100 + s.tokens));
    std::normal_distribution<float> normal;
    // All tokens, none, one, one less than there are taps, as many, one more; an idle lane names a row of another lane.
    const int64_t lengths[] = {s.tokens, 0, 1, s.kernel - 1, s.kernel, s.kernel + 1};
    for (int64_t lane = 0; lane < s.lanes; ++lane) {
      lengths_[lane] = static_cast<int32_t>(std::min(lengths[lane % 6], s.tokens));
      fresh_[lane] = lane % 5 == 2;
      slots_[lane] = static_cast<int32_t>(lane % 6 == 1 ? slots_[lane - 1] : rows_ - 1 - lane);
    }
    // Numbers of bfloat16, so that windows of either dtype hold them as they are.
    for (int64_t k = 0; k < x_.size(); ++k) x_[k] = widened(narrowed(2 * normal(random)));
    for (int64_t k = 0; k < bias_.size(); ++k) bias_[k] = normal(random);
    for (int64_t k = 0; k < taps_.size(); ++k) taps_.set(k, normal(random));
    for (int64_t k = 0; k < state_.size(); ++k) state_.set(k, normal(random));
    for (int64_t lane = 0; lane < s.lanes; ++lane) {
      fill_tokens(lane, lengths_[lane], NOT_A_NUMBER);
      if (fresh_[lane] && lengths_[lane]) fill_row(lane, NOT_A_NUMBER);
    }
    keep();
  }

  struct Result {
    std::vector<float> out;
    std::vector<char> state;
  };

  ConvStep step(bool keeps_state = false) {
    return {kind_.by_slot ? slots_.data() : nullptr, lengths_.data(), fresh_.data(), x_.data(), taps_.at(0),
            kind_.biased ? bias_.data() : nullptr, state_.at(0), out_.data(), s_.lanes, s_.tokens, s_.channels, s_.kernel,
            kind_.narrow_taps, kind_.narrow_state, kind_.activated, keeps_state};
  }

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
  void run(Pool& pool, const ConvStep& one) {
    cpu_kernels::conv_step(pool, convolve_, one);
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
    check(run(alone, true).out == whole.out, name_ + ": other outputs where the windows are kept");
    // No instruction set has bits of its own.
    const Convolve mine = convolve_;
    convolve_ = hybridlm_convolve(0);
    same(run(alone), whole, "in portable code");
    convolve_ = mine;
    in_parts(whole, fresh_);
  }

 private:
  int64_t row_numbers() const { return (s_.kernel - 1) * s_.channels; }
  int64_t row_of(int64_t lane) { return kind_.by_slot ? slots_[lane] : lane; }
  int64_t row_bytes() const { return state_.bytes() / rows_; }
  void keep() { start_.assign(state_.at(0), state_.at(0) + state_.bytes()); }
  void restore() { std::memcpy(state_.at(0), start_.data(), start_.size()); }
  void fill_row(int64_t lane, float number) {
    for (int64_t k = 0; k < row_numbers(); ++k) state_.set(row_of(lane) * row_numbers() + k, number);
  }
  void fill_state(int64_t lane, float number) {
    restore();
    fill_row(lane, number);
    keep();
  }
  std::vector<Guarded<float>*> tokens() { return {&x_}; }
  void forbid() {
    for (auto* one : {&bias_, &out_}) one->allow(PROT_NONE);
    for (auto* one : {&taps_, &state_}) one->allow(PROT_NONE);
  }
  Result result() {
    return {std::vector<float>(out_.data(), out_.data() + out_.size()),
            std::vector<char>(state_.at(0), state_.at(0) + state_.bytes())};
  }
  static bool bits(const void* one, const void* other, int64_t bytes) {
    return std::memcmp(one, other, static_cast<size_t>(bytes)) == 0;
  }
  bool same_lane(const Result& one, const Result& other, int64_t lane) {
    const int64_t shown = out_.size() / s_.lanes, row = row_of(lane) * row_bytes();
    return bits(one.out.data() + lane * shown, other.out.data() + lane * shown, shown * 4) &&
           (lengths_[lane] == 0 || bits(one.state.data() + row, other.state.data() + row, row_bytes()));
  }
  void same(const Result& one, const Result& other, const std::string& how) {
    check(bits(one.out.data(), other.out.data(), out_.size() * 4) && one.state == other.state, name_ + ": other bits " + how);
  }

  // A lane by itself, from a token on.
  ConvStep part_of(int64_t lane, int64_t token) {
    ConvStep one = step();
    one.slots = nullptr;
    one.lengths += lane;
    one.fresh += lane;
    one.x += (lane * s_.tokens + token) * s_.channels;
    one.out += (lane * s_.tokens + token) * s_.channels;
    one.state = state_.at(row_of(lane) * row_numbers());
    one.lanes = 1;
    return one;
  }

  void numbers(const Result& found) {
    const std::vector<float> start = [&] {
      restore();
      std::vector<float> numbers(static_cast<size_t>(state_.size()));
      for (int64_t k = 0; k < state_.size(); ++k) numbers[static_cast<size_t>(k)] = state_.get(k);
      return numbers;
    }();
    std::memcpy(state_.at(0), found.state.data(), found.state.size());
    for (int64_t lane = 0; lane < s_.lanes; ++lane)
      for (int64_t channel = 0; channel < s_.channels && lengths_[lane]; ++channel) {
        const int64_t row = row_of(lane) * row_numbers() + channel;
        std::vector<float> inputs;
        for (int64_t k = 0; k + 1 < s_.kernel; ++k) inputs.push_back(fresh_[lane] ? 0.0f : start[row + k * s_.channels]);
        for (int64_t token = 0; token < lengths_[lane]; ++token) {
          const int64_t at = (lane * s_.tokens + token) * s_.channels + channel;
          inputs.push_back(x_[at]);
          double y = kind_.biased ? bias_[channel] : 0.0, size = std::fabs(y);
          for (int64_t k = 0; k < s_.kernel; ++k) {
            const double product = static_cast<double>(inputs[token + k]) * taps_.get(channel * s_.kernel + k);
            y += product;
            size += std::fabs(product);
          }
          if (kind_.activated) y /= 1.0 + std::exp(-y);
          const double shown = found.out[at];
          check(std::fabs(shown - y) <= 1e-6 * size, name_ + ": " + std::to_string(shown) + " for " + std::to_string(y));
        }
        for (int64_t k = 0; k + 1 < s_.kernel; ++k)
          check(state_.get(row + k * s_.channels) == inputs[lengths_[lane] + k], name_ + ": another window");
      }
  }

  Convolve convolve_;
  Kind kind_;
  Sizes s_;
  int64_t rows_;
  Guarded<int32_t> slots_;
  Guarded<bool> fresh_;
  Guarded<float> x_, bias_, out_;
  Stored taps_, state_;
  std::vector<char> start_;
};

// SiLU of every size of number, by a convolution whose last tap is one: beside float64, and NaN and infinities as there.
void check_activation(const std::string& set, int64_t instructions) {
  std::vector<float> x{0.0f, -0.0f, NOT_A_NUMBER, std::numeric_limits<float>::infinity(), -88.0f, -1e30f, 3e38f, 1e-40f};
  for (float one = 1e-30f; one < 300.0f; one *= 1.0007f) x.insert(x.end(), {one, -one});
  const int64_t channels = static_cast<int64_t>(x.size());
  std::vector<float> taps(static_cast<size_t>(2 * channels)), state(x.size()), out(x.size());
  for (int64_t k = 0; k < channels; ++k) taps[static_cast<size_t>(2 * k + 1)] = 1.0f;
  const int32_t length = 1;
  const bool fresh = true;
  Alone alone;
  cpu_kernels::conv_step(alone, hybridlm_convolve(instructions),
                         {nullptr, &length, &fresh, x.data(), taps.data(), nullptr, state.data(), out.data(), 1, 1,
                          channels, 2, false, false, true, false});
  for (size_t k = 0; k < x.size(); ++k) {
    const double at = std::max<double>(x[k], -80.0), expected = x[k] / (1.0 + std::exp(-at));
    const bool good = std::isnan(x[k]) ? std::isnan(out[k])
                                       : out[k] == expected || std::fabs(out[k] - expected) <= 4e-7 * std::fabs(expected) + 1e-45;
    check(good, set + ": silu(" + std::to_string(x[k]) + ") is " + std::to_string(out[k]));
  }
}

// Windows of bfloat16: the nearest number, of two as near the even one, and NaN whatever its last bits are.
void check_rounding(const std::string& set, int64_t instructions) {
  std::vector<uint32_t> x{0x7f800001, 0xffc00000, 0x7f800000, 0x7f7fffff, 0x00000001, 0x80008000};
  for (uint32_t one = 0x3f800000; one < 0x3f8fffff; one += 0x4001) x.push_back(one);
  for (uint32_t one = 0x3f808000; one < 0x40000000; one += 0x10000) x.insert(x.end(), {one - 1, one, one + 1});
  const int64_t channels = static_cast<int64_t>(x.size());
  std::vector<float> given(x.size()), taps(x.size() * 2), out(x.size());
  std::memcpy(given.data(), x.data(), x.size() * 4);
  std::vector<uint16_t> state(x.size());
  const int32_t length = 1;
  const bool fresh = true;
  Alone alone;
  cpu_kernels::conv_step(alone, hybridlm_convolve(instructions),
                         {nullptr, &length, &fresh, given.data(), taps.data(), nullptr, state.data(), out.data(), 1, 1,
                          channels, 2, false, true, false, false});
  for (size_t k = 0; k < x.size(); ++k)
    check(state[k] == narrowed(given[k]), set + ": " + std::to_string(x[k]) + " is rounded to " + std::to_string(state[k]));
}

void check_set(const std::string& set, int64_t instructions, bool brief) {
  check_activation(set, instructions);
  check_rounding(set, instructions);
  int number = 0;
  for (const int64_t kernel : {2, 3, 4, 5, 6, 7, 8})
    for (const int64_t channels : {1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 48, 255, 256, 257, 300})
      for (const int64_t tokens : {1, 2, 5, 9, 16}) {
        if (++number % (brief ? 7 : 1)) continue;
        const Sizes sizes{7, tokens, kernel, channels};
        const Kind kind{number % 2 == 0, number % 3 == 0, number % 5 < 2, number % 4 < 3, number % 7 < 3, number % 11 < 6};
        Case one(set + " " + std::to_string(tokens) + " x " + std::to_string(channels) + ", taps " + std::to_string(kernel),
                 instructions, sizes, kind);
        one.all();
        if (channels == 17 || channels == 257) one.every_lane_disturbed();
      }
  for (const Sizes& sizes : {Sizes{20, 1, 4, 3000}, Sizes{9, 16, 3, 1025}})
    for (const bool narrow : {false, true}) {
      Case large(set + " large", instructions, sizes, {narrow, narrow, true, true, true, true});
      large.all();
      large.every_lane_disturbed();
      large.late_threads();
    }
}

}  // namespace

int main(int count, char** arguments) {
  return check_sets(count, arguments, check_set);
}
