// Checks of sampling in every instruction set that this processor runs: tokens of filters beside a sort of all tokens, equal
// tokens of a row alone and in any batch and of all instruction sets, every row disturbed, and no byte read or written
// outside of the buffers, behind and in front of which there is no memory. Exit status 1 and a line for each fault.
//
//   sample_rows_check [brief]

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "sampling/sample_rows_call.h"

extern "C" const RowPasses* hybridlm_row_passes(int64_t instructions);

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();

// Rows of every kind of settings.
class Case {
 public:
  Case(std::string name, int64_t rows, int64_t vocab, float spread, bool at_end)
      : name_(std::move(name)),
        rows_(rows),
        vocab_(vocab),
        logits_(rows * vocab, at_end),
        temperature_(rows, at_end),
        top_p_(rows, at_end),
        min_p_(rows, at_end),
        top_k_(rows, at_end),
        tokens_(rows, at_end),
        keys_(rows * 2, at_end) {
    std::mt19937 random(static_cast<unsigned>(vocab * 10 + rows));
    std::normal_distribution<float> normal;
    // Some logits are equal, some have no probability.
    for (int64_t k = 0; k < logits_.size(); ++k) logits_[k] = std::round(spread * normal(random) * 64) / 64;
    for (int64_t k = 0; k < logits_.size(); k += 7) logits_[k] = -INFINITE;
    const int32_t ranks[] = {0, 1, 20, static_cast<int32_t>(vocab / 2), static_cast<int32_t>(vocab), 0, 5, 0};
    const float nuclei[] = {1.0f, 0.95f, 0.5f, 0.0f, 0.999f, 1.0f, 0.9f, 0.7f}, least[] = {0.0f, 0.05f, 0.0f, 0.9f};
    for (int64_t row = 0; row < rows; ++row) {
      temperature_[row] = row % 9 == 8 ? 0.0f : 0.4f + 0.1f * static_cast<float>(row % 8);
      top_k_[row] = ranks[row % 8];
      top_p_[row] = nuclei[row / 8 % 8];
      min_p_[row] = least[row / 3 % 4];
      keys_[2 * row] = random(), keys_[2 * row + 1] = random();
    }
  }

  template <typename Pool>
  std::vector<int32_t> sample(Pool& pool, int64_t set) {
    std::fill_n(tokens_.data(), rows_, -1);
    cpu_kernels::sample_rows(pool, *hybridlm_row_passes(set), rows(0, rows_));
    return {tokens_.data(), tokens_.data() + rows_};
  }

  void check_set(int64_t set) {
    Alone alone;
    OwnThreads threads;
    const std::vector<int32_t> whole = sample(alone, set);
    check(sample(threads, set) == whole, name_ + ": other tokens with threads");
    check(sample(alone, 0) == whole, name_ + ": other tokens than those of the portable passes");
    for (int64_t row = 0; row < rows_; ++row) {
      cpu_kernels::sample_rows(alone, *hybridlm_row_passes(set), rows(row, 1));
      check(tokens_[row] == whole[row], name_ + ": another token of row " + std::to_string(row) + " alone");
      check(allowed(row)[whole[row]], name_ + ": a token that a filter drops in row " + std::to_string(row));
    }
    for (int64_t row = 0; row < rows_; ++row) {
      float& logit = logits_[row * vocab_ + vocab_ / 2];
      const float kept = logit;
      logit = NOT_A_NUMBER;
      const std::vector<int32_t> disturbed = sample(alone, set);
      for (int64_t other = 0; other < rows_; ++other)
        check(disturbed[other] == (other == row ? vocab_ : whole[other]), name_ + ": NaN of row " + std::to_string(row));
      logit = kept;
    }
  }

 private:
  cpu_kernels::SampledRows rows(int64_t first, int64_t count) {
    return {logits_.data() + first * vocab_, temperature_.data() + first, top_k_.data() + first, top_p_.data() + first,
            min_p_.data() + first, keys_.data() + 2 * first, tokens_.data() + first, count, vocab_};
  }

  // Tokens that the filters of a row keep, by a sort; a margin for sums and exponentials that round otherwise.
  std::vector<bool> allowed(int64_t row) {
    const float heat = temperature_[row] > 0.0f ? temperature_[row] : 1.0f;
    std::vector<float> scaled(vocab_);
    for (int64_t k = 0; k < vocab_; ++k) scaled[k] = logits_[row * vocab_ + k] / heat;
    std::vector<float> sorted = scaled;
    std::sort(sorted.begin(), sorted.end(), std::greater<float>());
    std::vector<bool> kept(vocab_);
    const int64_t most_likely = std::max_element(scaled.begin(), scaled.end()) - scaled.begin();
    kept[most_likely] = true;
    if (temperature_[row] <= 0.0f) return kept;
    const int64_t rank = top_k_[row] > 0 ? std::min<int64_t>(top_k_[row], vocab_) : vocab_;
    const float cutoff = sorted[rank - 1];
    double total = 0.0, above = 0.0;
    for (const float value : sorted) total += value >= cutoff ? std::exp(static_cast<double>(value) - sorted[0]) : 0.0;
    float least = cutoff;
    for (int64_t k = 0; k < vocab_ && sorted[k] >= cutoff; ++k) {
      if (k && sorted[k] != sorted[k - 1] && above >= (top_p_[row] + 1e-6) * total) break;
      least = sorted[k];
      above += std::exp(static_cast<double>(sorted[k]) - sorted[0]);
    }
    if (top_p_[row] >= 1.0f) least = cutoff;
    for (int64_t k = 0; k < vocab_; ++k) {
      const double weight = std::exp(static_cast<double>(scaled[k]) - sorted[0]);
      if (scaled[k] >= least && weight >= min_p_[row] * (1 - 1e-6)) kept[k] = true;
    }
    return kept;
  }

  std::string name_;
  int64_t rows_, vocab_;
  Guarded<float> logits_, temperature_, top_p_, min_p_;
  Guarded<int32_t> top_k_, tokens_;
  Guarded<uint32_t> keys_;
};

}  // namespace

int main(int count, char** arguments) {
  return check_sets(count, arguments, [](const std::string& set, int64_t instructions, bool brief) {
    for (const int64_t vocab : {1, 63, 64, 65, 127, 1000, 4096, 5003})
      for (const float spread : {0.01f, 1.0f, 8.0f})
        for (const bool at_end : {true, false}) {
          if (brief && vocab > 1000) continue;
          Case one(set + ", vocabulary of " + std::to_string(vocab), brief ? 24 : 96, vocab, spread, at_end);
          one.check_set(instructions);
        }
  });
}
