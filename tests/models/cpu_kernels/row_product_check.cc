// Checks of the row product in every instruction set that this processor runs: numbers beside float64, equal bits of a row
// alone and in any batch, every row disturbed at every count, NaN and infinities, and no byte read or written outside of
// the buffers, behind and in front of which there is no memory. Exit status 1 and a line for each fault.
//
//   row_product_check [brief]

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "checks.h"
#include "row_products/row_product_call.h"

extern "C" const Forms* hybridlm_forms(int64_t instructions);

namespace {

constexpr int64_t MAX_ROWS = 64;

template <typename T>
struct Dtype;
template <>
struct Dtype<float> {
  static float stored(float x) { return x; }
  static float number(float x) { return x; }
};
template <>
struct Dtype<uint16_t> {
  static uint16_t stored(float x) { return narrowed(x); }
  static float number(uint16_t x) { return widened(x); }
};

bool same_bits(const float* one, const float* other, int64_t count) {
  return std::memcmp(one, other, static_cast<size_t>(count) * sizeof(float)) == 0;
}

template <typename T>
class Case {
 public:
  Case(std::string name, const Form& form, int64_t inputs, int64_t outputs, bool at_end, int64_t most = MAX_ROWS)
      : name_(std::move(name)),
        form_(form),
        inputs_(inputs),
        outputs_(outputs),
        most_(most),
        weight_(inputs * outputs, at_end),
        given_(most * inputs, at_end),
        y_(most * outputs, at_end),
        x_(static_cast<size_t>(most * inputs)),
        alone_(static_cast<size_t>(most * outputs)) {
    std::mt19937 random(static_cast<unsigned>(inputs * 1000 + outputs));
    std::normal_distribution<float> normal;
    for (auto& one : x_) one = normal(random);
    for (int64_t k = 0; k < weight_.size(); ++k) weight_[k] = Dtype<T>::stored(normal(random));
    Alone pool;
    for (int64_t row = 0; row < most_; ++row) {
      const auto y = product(pool, x_.data() + row * inputs_, 1);
      std::memcpy(alone_.data() + row * outputs_, y.data(), sizeof(float) * static_cast<size_t>(outputs_));
    }
  }

  template <typename Pool>
  std::vector<float> product(Pool& pool, const float* x, int64_t rows) {
    float* const given = given_.data(rows * inputs_);
    float* const y = y_.data(rows * outputs_);
    std::memcpy(given, x, sizeof(float) * static_cast<size_t>(rows * inputs_));
    std::memset(y, 0xFF, sizeof(float) * static_cast<size_t>(rows * outputs_));
    cpu_kernels::row_product(pool, form_, given, weight_.data(weight_.size()), y, rows, inputs_, outputs_,
                             static_cast<int64_t>(sizeof(T)));
    return std::vector<float>(y, y + rows * outputs_);
  }

  void numbers() {
    for (int64_t row = 0; row < most_; ++row)
      for (int64_t out = 0; out < outputs_; ++out) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < inputs_; ++k) {
          const double one = static_cast<double>(Dtype<T>::number(Dtype<T>::stored(x_[row * inputs_ + k]))) *
                             static_cast<double>(Dtype<T>::number(weight_[out * inputs_ + k]));
          sum += one;
          size += std::fabs(one);
        }
        const double found = alone_[row * outputs_ + out];
        check(std::fabs(found - sum) <= 2e-6 * size, name_ + ": " + std::to_string(found) + " for " + std::to_string(sum));
      }
  }

  template <typename Pool>
  void every_count(Pool& pool, int64_t first = 1, int64_t step = 1) {
    for (int64_t rows = first; rows <= most_; rows += step) count(pool, rows);
  }

  template <typename Pool>
  void count(Pool& pool, int64_t rows) {
    check(same_bits(product(pool, x_.data(), rows).data(), alone_.data(), rows * outputs_),
          name_ + ": other bits among " + std::to_string(rows) + " rows than alone");
  }

  // Each row is replaced by numbers that would show in any other.
  template <typename Pool>
  void every_row_disturbed(Pool& pool) {
    const float others[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f};
    for (int64_t rows = 1; rows <= most_; ++rows)
      for (int64_t row = 0; row < rows; ++row) {
        auto x = x_;
        for (int64_t k = 0; k < inputs_; ++k) x[row * inputs_ + k] = others[(rows + row) % 3];
        const auto y = product(pool, x.data(), rows);
        bool same = same_bits(y.data(), alone_.data(), row * outputs_);
        same &= same_bits(y.data() + (row + 1) * outputs_, alone_.data() + (row + 1) * outputs_, (rows - row - 1) * outputs_);
        check(same, name_ + ": row " + std::to_string(row) + " of " + std::to_string(rows) + " reaches another");
        check(!same_bits(y.data() + row * outputs_, alone_.data() + row * outputs_, outputs_),
              name_ + ": row " + std::to_string(row) + " of " + std::to_string(rows) + " is not read");
      }
  }

  // A number that is no number, at each place of a row and of the weight, is in the results that it belongs to.
  void not_finite() {
    Alone pool;
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (int64_t k = 0; k < inputs_; ++k) {
      auto x = x_;
      x[k] = nan;
      x[inputs_ + k] = -infinity;
      const T before = weight_[(outputs_ - 1) * inputs_ + k];
      for (int64_t out = 0; out + 1 < outputs_; ++out)
        if (Dtype<T>::number(weight_[out * inputs_ + k]) == 0) return;
      const auto y = product(pool, x.data(), 3);
      bool good = true;
      for (int64_t out = 0; out < outputs_; ++out) {
        const float sign = Dtype<T>::number(weight_[out * inputs_ + k]) > 0 ? -infinity : infinity;
        good &= std::isnan(y[out]) && y[outputs_ + out] == sign;
      }
      weight_[(outputs_ - 1) * inputs_ + k] = Dtype<T>::stored(nan);
      const auto z = product(pool, x_.data(), 3);
      for (int64_t row = 0; row < 3; ++row)
        for (int64_t out = 0; out < outputs_; ++out)
          good &= out + 1 < outputs_ ? z[row * outputs_ + out] == alone_[row * outputs_ + out]
                                     : std::isnan(z[row * outputs_ + out]);
      weight_[(outputs_ - 1) * inputs_ + k] = before;
      check(good, name_ + ": NaN or infinity at " + std::to_string(k) + " is lost or spreads");
    }
  }

  // Threads that begin after the call has returned touch nothing of it. The last check of a case.
  void late_threads() {
    Late pool;
    const auto y = product(pool, x_.data(), most_);
    check(same_bits(y.data(), alone_.data(), most_ * outputs_), name_ + ": other bits without threads");
    for (auto* buffer : {&given_, &y_}) buffer->allow(PROT_NONE);
    for (auto& work : pool.waiting) work();
  }

 private:
  std::string name_;
  const Form& form_;
  int64_t inputs_, outputs_, most_;
  Guarded<T> weight_;
  Guarded<float> given_, y_;
  std::vector<float> x_, alone_;
};

template <typename T>
void check_form(const std::string& name, const Form& form, bool brief) {
  if (form.product == nullptr) return;
  OwnThreads three;
  Alone alone;
  for (const int64_t inputs : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 130})
    for (const int64_t outputs : {1, 2, 3, 5, 8, 9, 25}) {
      if (brief && (inputs + outputs) % 3) continue;
      const bool at_end = (inputs + outputs) % 4 != 0;
      const std::string here = name + " " + std::to_string(inputs) + " x " + std::to_string(outputs);
      Case<T> one(here, form, inputs, outputs, at_end);
      one.numbers();
      one.every_count(alone);
      one.not_finite();
      if (outputs == 9 && (inputs == 1 || inputs == 33)) one.every_row_disturbed(alone);
    }
  // Large enough for several threads, and for more than one chunk of the weight.
  for (const int64_t inputs : {1100, 4099}) {
    if (brief && inputs > 1100) continue;
    Case<T> large(name + " " + std::to_string(inputs) + " x 133", form, inputs, 133, true);
    large.numbers();
    large.every_count(three);
    large.late_threads();
  }
  // More rows than tiles hold at a time, which threads prepare.
  Case<T> many(name + " 1100 x 67", form, 1100, 67, true, 150);
  many.every_count(three, 65, 17);
  for (const int64_t rows : {95, 96, 97, 127, 128, 129}) many.count(three, rows);
  many.late_threads();
  Case<T> shared(name + " 515 x 67", form, 515, 67, true);
  if (!brief) shared.every_row_disturbed(three);
}

}  // namespace

int main(int count, char** arguments) {
  return check_sets(count, arguments, [](const std::string& name, int64_t set, bool brief) {
    check_form<uint16_t>(name + " bfloat16", hybridlm_forms(set)->bfloat16, brief);
    check_form<float>(name + " float32", hybridlm_forms(set)->float32, brief);
  }, true);
}
