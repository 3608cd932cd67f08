// Sampling of one token for each row of logits on the threads of a pool.
//
// temperature, then top_k, then top_p of the remaining tokens, then min_p, then the Gumbel-max trick:
// `hybridlm.sampling` defines them. Maxima of groups of tokens select candidates before a sort, and only candidates get
// random numbers. A row's token depends neither on other rows, the thread nor the instruction set.

#ifndef MODELS_CPU_KERNELS_SAMPLE_ROWS_CALL_H_
#define MODELS_CPU_KERNELS_SAMPLE_ROWS_CALL_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "sample_rows.h"
#include "shared/parallel.h"

namespace cpu_kernels {

// Logits and settings of N rows, in row-major order.
struct SampledRows {
  const float* logits;       // [row, vocab]
  const float* temperature;  // [row]; 0 for the most likely token
  const int32_t* top_k;      // [row]; 0 keeps all
  const float* top_p;        // [row]; 1 keeps all
  const float* min_p;        // [row]; 0 keeps all
  const uint32_t* keys;      // [row, 2], of threefry2x32
  int32_t* tokens;           // [row], `vocab` for a row with NaN
  int64_t rows, vocab;
};

// One row of logits divided by its temperature, with the maxima of its groups.
class ScaledRow {
 public:
  ScaledRow(const RowPasses& passes, const float* logits, int64_t vocab, float temperature, const uint32_t* key)
      : passes_(passes), logits_(logits), vocab_(vocab), temperature_(temperature), key_(key) {
    maxima_.resize((vocab + GROUP_TOKENS - 1) / GROUP_TOKENS);
    has_nan_ = passes.group_maxima(logits, vocab, maxima_.data());
    if (has_nan_) return;
    const auto group = std::max_element(maxima_.begin(), maxima_.end());
    const int64_t start = (group - maxima_.begin()) * GROUP_TOKENS;
    first_ = std::find(logits + start, logits + std::min(start + GROUP_TOKENS, vocab), *group) - logits;
    highest_ = *group / temperature;
  }

  bool has_nan() const { return has_nan_; }
  int64_t most_likely() const { return first_; }

  // Every filter keeps the tokens above a number, so one cutoff is enough.
  int64_t sample(int64_t top_k, float top_p, float min_p) const {
    float cutoff = -std::numeric_limits<float>::infinity();
    const bool by_k = top_k > 0 && top_k < vocab_;
    if (by_k) cutoff = cutoff_of_rank(top_k);
    if (top_p < 1.0f && by_k) {
      double total = 0.0;
      for_each_weight(cutoff, [&](float, float weight) { total += weight; });
      cutoff = std::max(cutoff, cutoff_of_weight(cutoff, top_p, total));
    } else if (top_p < 1.0f) {
      // The first candidate that top_p keeps is the winner. A sort is needed only if top_p keeps no candidate, or if the
      // weights above one are too near to top_p.
      const Risers risers = risers_of(best_tokens<CANDIDATES>(cutoff, min_p));
      const Weights sums = passes_.weights(logits_, maxima_.data(), vocab_, temperature_, highest_, risers.scaled);
      const double enough = top_p * sums.all;
      for (int64_t k = 0; k < risers.count; ++k) {
        if (sums.above[k] < enough * (1.0 - 1e-5)) return risers.tokens[k];
        if (sums.above[k] < enough * (1.0 + 1e-5)) break;
      }
      cutoff = cutoff_of_weight(cutoff, top_p, sums.all);
    }
    return best_tokens<1>(cutoff, min_p)[0].token;
  }

 private:
  // A token and the sum of its scaled logit and its noise. Better candidates are first in order.
  struct Candidate {
    float noisy;
    int64_t token;
    bool operator<(const Candidate& other) const {
      return noisy > other.noisy || (noisy == other.noisy && token < other.token);
    }
  };
  static constexpr int CANDIDATES = 8;
  // Candidates are at most this much worse than the best: with few likely tokens, more would cost more than a sort.
  static constexpr float SPREAD = 3.0f;

  // Candidates with larger logits than all better ones: top_p drops the others if it drops these.
  struct Risers {
    int64_t count = 0, tokens[THRESHOLDS];
    float scaled[THRESHOLDS];  // infinite where unused
  };

  Risers risers_of(const std::array<Candidate, CANDIDATES>& candidates) const {
    Risers risers;
    std::fill_n(risers.scaled, THRESHOLDS, std::numeric_limits<float>::infinity());
    for (const Candidate& candidate : candidates) {
      if (candidate.token == vocab_ || risers.count == THRESHOLDS) break;
      const float value = scaled(candidate.token);
      if (risers.count > 0 && value <= risers.scaled[risers.count - 1]) continue;
      risers.tokens[risers.count] = candidate.token;
      risers.scaled[risers.count++] = value;
    }
    return risers;
  }

  int64_t groups() const { return static_cast<int64_t>(maxima_.size()); }
  int64_t tokens_of(int64_t group) const { return std::min(GROUP_TOKENS, vocab_ - group * GROUP_TOKENS); }
  float scaled(int64_t token) const { return logits_[token] / temperature_; }

  // In units of the most likely token's probability, whose logit may be infinite.
  float weight_of(float scaled) const { return scaled == highest_ ? 1.0f : std::exp(scaled - highest_); }

  // A lower bound of all scaled logits of at least this weight.
  float at_least_weight(double weight) const {
    if (!std::isfinite(highest_)) return highest_;
    const double distance = std::log(weight);
    return static_cast<float>(highest_ + distance - 1e-4 * (1.0 + std::fabs(highest_) + std::fabs(distance)));
  }

  // Call `visit(scaled, weight)` for each token of at least `least`.
  template <typename Visit>
  void for_each_weight(float least, const Visit& visit) const {
    float weights[GROUP_TOKENS];
    for (int64_t group = 0; group < groups(); ++group) {
      if (maxima_[group] / temperature_ < least) continue;
      const float* logits = logits_ + group * GROUP_TOKENS;
      const int64_t count = tokens_of(group);
      passes_.exponentials(logits, count, temperature_, highest_, weights);
      for (int64_t k = 0; k < count; ++k) {
        const float scaled = logits[k] / temperature_;
        if (scaled >= least) visit(scaled, weights[k]);
      }
    }
  }

  // The scaled logit of the token of a rank, from 1.
  float cutoff_of_rank(int64_t rank) const {
    // Each of `rank` groups has a token not below their least maximum.
    float least = -std::numeric_limits<float>::infinity();
    if (rank <= groups()) {
      std::vector<float> sorted = maxima_;
      std::nth_element(sorted.begin(), sorted.begin() + (rank - 1), sorted.end(), std::greater<float>());
      least = sorted[rank - 1] / temperature_;
    }
    std::vector<float> values;
    for (int64_t group = 0; group < groups(); ++group) {
      if (maxima_[group] / temperature_ < least) continue;
      for (int64_t k = 0; k < tokens_of(group); ++k) {
        const float value = scaled(group * GROUP_TOKENS + k);
        if (value >= least) values.push_back(value);
      }
    }
    std::nth_element(values.begin(), values.begin() + (rank - 1), values.end(), std::greater<float>());
    return values[rank - 1];
  }

  // The least scaled logit, among those of at least `least`, such that all larger ones weigh less than top_p of
  // `total`.
  float cutoff_of_weight(float least, float top_p, double total) const {
    if (!std::isfinite(highest_)) return highest_;
    const double enough = static_cast<double>(top_p) * total;
    // Tokens below this weight have together less than 1 - top_p: the others are enough.
    least = std::max(least, at_least_weight((1.0 - static_cast<double>(top_p)) * total / static_cast<double>(vocab_)));
    // Weights by the distance from the highest logit, then a sort of the tokens at the cutoff's distance.
    const float steps = (DISTANCES - 1) / std::max(highest_ - least, std::numeric_limits<float>::min());
    const auto distance_of = [&](float scaled) {
      return std::min(static_cast<int64_t>((highest_ - scaled) * steps), DISTANCES - 1);
    };
    std::vector<double> sums(DISTANCES);
    for_each_weight(least, [&](float scaled, float weight) { sums[distance_of(scaled)] += weight; });
    double above = 0.0;
    int64_t distance = 0;
    while (distance < DISTANCES - 1 && above + sums[distance] < enough) above += sums[distance++];
    std::vector<std::pair<float, float>> tokens;
    for_each_weight(least, [&](float scaled, float weight) {
      if (distance_of(scaled) == distance) tokens.emplace_back(scaled, weight);
    });
    std::sort(tokens.begin(), tokens.end(), std::greater<>());
    float cutoff = highest_;
    for (std::size_t k = 0; k < tokens.size(); ++k) {
      // Equally likely tokens are kept together.
      if ((k == 0 || tokens[k].first != tokens[k - 1].first) && above >= enough && (above > 0.0 || k > 0)) break;
      cutoff = tokens[k].first;
      above += tokens[k].second;
    }
    return cutoff;
  }
  static constexpr int64_t DISTANCES = 4096;

  // Gumbel noise of a random word, as in jax.random.gumbel: 23 bits are a number in [0, 1), with the least normal float
  // for 0.
  static float noise(uint32_t word) {
    const uint32_t mantissa = word >> 9;
    const double uniform = mantissa ? mantissa * 0x1p-23 : std::numeric_limits<float>::min();
    const float inner = static_cast<float>(-std::log(uniform));
    return static_cast<float>(-std::log(static_cast<double>(inner)));
  }
  // Upper bound of the noise.
  static constexpr float MAX_NOISE = 16.0f;

  // The tokens with the largest sums of scaled logit and noise, all within SPREAD, among those of at least `least` and
  // `min_p` and the most likely token; a missing one is `vocab_`. Groups are skipped if none of their tokens can win with the largest noise,
  // tokens if their random word is too small to win.
  template <int COUNT>
  std::array<Candidate, COUNT> best_tokens(float least, float min_p) const {
    if (min_p > 0.0f) least = std::max(least, at_least_weight(min_p));
    uint32_t words[GROUP_TOKENS];
    std::array<Candidate, COUNT> best;
    best.fill({-std::numeric_limits<float>::infinity(), vocab_});
    passes_.random_words(key_, first_, 1, words);
    best[0] = {highest_ + noise(words[0]), first_};
    for (int64_t group = 0; group < groups(); ++group) {
      const float top = maxima_[group] / temperature_;
      const float most = std::max(best[COUNT - 1].noisy, best[0].noisy - SPREAD);
      // In float64, with a margin for the rounding of float32 sums.
      const double spare = 1e-3 + 1e-6 * std::fabs(most);
      if (top < least || top + MAX_NOISE + spare < most) continue;
      const double needed = std::exp(-std::exp(top + spare - most));
      const uint32_t lowest = static_cast<uint32_t>(std::max(0.0, needed * 0x1p23 - 2.0));
      const int64_t start = group * GROUP_TOKENS, count = tokens_of(group);
      passes_.random_words(key_, start, count, words);
      for (int64_t k = 0; k < count; ++k) {
        if ((words[k] >> 9) < lowest || start + k == first_) continue;
        const float value = scaled(start + k);
        if (value < least || (min_p > 0.0f && weight_of(value) < min_p)) continue;
        const Candidate candidate = {value + noise(words[k]), start + k};
        if (!(candidate < best[COUNT - 1])) continue;
        int place = COUNT - 1;
        for (; place > 0 && candidate < best[place - 1]; --place) best[place] = best[place - 1];
        best[place] = candidate;
      }
    }
    for (Candidate& candidate : best)
      if (candidate.noisy < best[0].noisy - SPREAD) candidate.token = vocab_;
    return best;
  }

  const RowPasses& passes_;
  const float* logits_;
  int64_t vocab_;
  float temperature_;
  const uint32_t* key_;
  std::vector<float> maxima_;
  bool has_nan_ = false;
  int64_t first_ = 0;
  float highest_ = 0.0f;
};

inline int32_t sample_row(const RowPasses& passes, const SampledRows& rows, int64_t row) {
  const bool sampled = rows.temperature[row] > 0.0f;
  const ScaledRow scaled(passes, rows.logits + row * rows.vocab, rows.vocab, sampled ? rows.temperature[row] : 1.0f,
                         rows.keys + row * 2);
  if (scaled.has_nan()) return static_cast<int32_t>(rows.vocab);
  if (!sampled) return static_cast<int32_t>(scaled.most_likely());
  return static_cast<int32_t>(scaled.sample(rows.top_k[row], rows.top_p[row], rows.min_p[row]));
}

// Bytes of logits for another thread (`parts_of`).
constexpr int64_t MIN_SAMPLED_BYTES = 128 * 1024;

template <typename Pool>
void sample_rows(Pool& pool, const RowPasses& passes, const SampledRows& rows) {
  const int64_t bytes = rows.rows * rows.vocab * static_cast<int64_t>(sizeof(float));
  const int64_t parts = parts_of(pool, rows.rows, bytes, MIN_SAMPLED_BYTES);
  in_parallel(pool, parts, [&](int64_t part) {
    for (int64_t row = part * rows.rows / parts; row < (part + 1) * rows.rows / parts; ++row)
      rows.tokens[row] = sample_row(passes, rows, row);
  });
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_SAMPLE_ROWS_CALL_H_
