// What the checks of all kernels share: the count of faults, buffers at the edges of memory, and pools of threads.

#ifndef TESTS_MODELS_CPU_KERNELS_CHECKS_H_
#define TESTS_MODELS_CPU_KERNELS_CHECKS_H_

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

extern "C" int32_t hybridlm_can_run(int64_t instructions);
extern "C" int64_t hybridlm_sets();

namespace {

constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

int faults = 0;

void check(bool good, const std::string& what) {
  if (!good && ++faults <= 20) std::printf("%s\n", what.c_str());
}

inline float widened(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float found;
  std::memcpy(&found, &wide, sizeof found);
  return found;
}

// The nearest number of bfloat16, by the two beside it.
inline uint16_t narrowed(float x) {
  uint32_t wide;
  std::memcpy(&wide, &x, sizeof wide);
  if (std::isnan(x)) return static_cast<uint16_t>(wide >> 16 | 0x40);
  const uint16_t below = static_cast<uint16_t>(wide >> 16);
  const uint32_t rest = wide & 0xffff;
  return static_cast<uint16_t>(below + (rest > 0x8000 || (rest == 0x8000 && below % 2)));
}

// Numbers whose end, or whose beginning, is that of the memory that the process may touch.
template <typename T>
class Guarded {
 public:
  Guarded(int64_t count, bool at_end) : count_(count), page_(sysconf(_SC_PAGESIZE)), at_end_(at_end) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    inside_ = (bytes + page_ - 1) / page_ * page_;
    memory_ = static_cast<char*>(mmap(nullptr, inside_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) std::abort();
    allow(PROT_READ | PROT_WRITE);
    data_ = reinterpret_cast<T*>(memory_ + page_ + (at_end ? inside_ - bytes : 0));
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(memory_, inside_ + 2 * page_); }
  // What may be done with it from now on, as for `mprotect`.
  void allow(int protection) {
    if (inside_ && mprotect(memory_ + page_, inside_, protection)) std::abort();
  }
  T* data() { return data_; }
  // So many numbers at the guarded side.
  T* data(int64_t count) { return at_end_ ? data_ + count_ - count : data_; }
  template <typename U>
  U* as() {
    return reinterpret_cast<U*>(data_);
  }
  T& operator[](int64_t k) { return data_[k]; }
  int64_t size() const { return count_; }

 private:
  char* memory_;
  T* data_;
  int64_t count_, inside_, page_;
  bool at_end_;
};

struct Alone {
  int64_t num_threads() const { return 1; }
  template <typename F>
  void Schedule(F&&) {
    std::abort();
  }
};

// One thread for each scheduled task, which begins when it likes.
struct OwnThreads {
  std::vector<std::thread> running;
  int64_t num_threads() const { return 3; }
  template <typename F>
  void Schedule(F&& work) {
    if (running.size() == 64) join();
    running.emplace_back(std::forward<F>(work));
  }
  void join() {
    for (auto& one : running) one.join();
    running.clear();
  }
  ~OwnThreads() { join(); }
};

// Begins nothing until it is told to: tasks that come after the call has returned.
struct Late {
  std::vector<std::function<void()>> waiting;
  int64_t num_threads() const { return 4; }
  template <typename F>
  void Schedule(F&& work) {
    waiting.emplace_back(std::forward<F>(work));
  }
};

// What the checks of steps on lanes share. `Own` has `run(pool)`, `same(one, other, how)`, `same_lane(one, other, lane)`,
// `fill_state(lane, number)` in what it has at the `start_`, `tokens()`: its arrays with numbers for each token, and
// `forbid()`: nobody may touch its other arrays. Where rows begin fresh, `restore()` puts the start back, and
// `part_of(lane, token)` is a lane by itself.
template <typename Own>
class LaneCase {
 public:
  // Each lane is replaced by numbers that would show in any other.
  void every_lane_disturbed() {
    Alone alone;
    const auto whole = own().run(alone);
    const auto start = own().start_;
    for (int64_t lane = 0; lane < lanes_; ++lane)
      for (const float other : {NOT_A_NUMBER, std::numeric_limits<float>::infinity(), 3e38f}) {
        std::vector<std::vector<float>> before;
        for (auto* one : own().tokens()) before.emplace_back(one->data(), one->data() + one->size());
        fill_tokens(lane, 0, other);
        if (lengths_[lane]) own().fill_state(lane, other);
        const auto found = own().run(alone);
        for (int64_t one = 0; one < lanes_; ++one) {
          const bool equal = own().same_lane(found, whole, one);
          if (one != lane) check(equal, name_ + ": lane " + std::to_string(lane) + " reaches another");
          if (one == lane && lengths_[lane]) check(!equal, name_ + ": lane " + std::to_string(lane) + " is not read");
        }
        own().start_ = start;
        size_t k = 0;
        for (auto* one : own().tokens()) std::copy(before[k].begin(), before[k].end(), one->data()), ++k;
      }
  }

  // Threads that begin after the call has returned touch nothing of it. The last check of a case.
  void late_threads() {
    Alone alone;
    Late late;
    const auto whole = own().run(alone);
    own().same(own().run(late), whole, "without threads");
    check(!late.waiting.empty(), name_ + ": too small for threads");
    for (auto* one : own().tokens()) one->allow(PROT_NONE);
    lengths_.allow(PROT_NONE);
    own().forbid();
    for (auto& work : late.waiting) work();
  }

 protected:
  LaneCase(std::string name, int64_t lanes, int64_t tokens, bool at_end)
      : name_(std::move(name)), lanes_(lanes), tokens_(tokens), lengths_(lanes, at_end) {}

  void fill_tokens(int64_t lane, int64_t first, float number) {
    for (auto* one : own().tokens()) {
      const int64_t size = one->size() / (lanes_ * tokens_);
      std::fill_n(one->data() + (lane * tokens_ + first) * size, (tokens_ - first) * size, number);
    }
  }

  // Rows of idle lanes and of nobody keep their bits; padding is zero.
  template <typename Number>
  void untouched(const std::vector<float>& out, const std::vector<Number>& state, int64_t rows) {
    std::vector<bool> written(static_cast<size_t>(rows));
    for (int64_t lane = 0; lane < lanes_; ++lane)
      if (lengths_[lane]) written[static_cast<size_t>(own().row_of(lane))] = true;
    const int64_t size = static_cast<int64_t>(state.size()) / rows;
    for (int64_t row = 0; row < rows; ++row)
      check(written[static_cast<size_t>(row)] || !std::memcmp(state.data() + row * size, own().start_.data() + row * size,
                                                              static_cast<size_t>(size) * sizeof(Number)),
            name_ + ": row " + std::to_string(row) + " belongs to nobody and changed");
    const int64_t shown = static_cast<int64_t>(out.size()) / (lanes_ * tokens_);
    for (int64_t lane = 0; lane < lanes_; ++lane)
      for (int64_t k = lengths_[lane] * shown; k < tokens_ * shown; ++k)
        check(out[static_cast<size_t>(lane * tokens_ * shown + k)] == 0, name_ + ": padding is not zero");
  }

  // Each lane by itself, and as many steps of one token, have the bits of one step.
  template <typename Result>
  void in_parts(const Result& whole, Guarded<bool>& fresh) {
    Alone alone;
    for (int64_t lane = 0; lane < lanes_; ++lane) {
      own().restore();
      own().run(alone, own().part_of(lane, 0));
      check(own().same_lane(own().result(), whole, lane), name_ + ": other bits of lane " + std::to_string(lane) + " alone");
    }
    own().restore();
    for (int64_t token = 0; token < tokens_; ++token)
      for (int64_t lane = 0; lane < lanes_; ++lane) {
        const int32_t length = token < lengths_[lane];
        const bool begins = fresh[lane] && token == 0;
        auto one = own().part_of(lane, token);
        one.lengths = &length;
        one.fresh = &begins;
        one.tokens = 1;
        own().run(alone, one);
      }
    own().same(own().result(), whole, "token by token");
  }

  std::string name_;
  int64_t lanes_, tokens_;
  Guarded<int32_t> lengths_;

 private:
  Own& own() { return static_cast<Own&>(*this); }
};

// Call `check_set(name, set, brief)` for each instruction set that this processor runs, without `narrow` only for those of
// float32; return the exit status.
template <typename CheckSet>
int check_sets(int count, char** arguments, const CheckSet& check_set, bool narrow = false) {
  const bool brief = count > 1 && std::string(arguments[1]) == "brief";
  const char* const names[] = {"portable", "avx2", "avx512", "avx512bf16", "neon", "neonbf16", "amx"};
  int sets = 0;
  for (int64_t set = 0; set < hybridlm_sets(); ++set) {
    if ((!narrow && (set == 3 || set > 4)) || !hybridlm_can_run(set)) continue;
    ++sets;
    check_set(names[set], set, brief);
  }
  std::printf("%d instruction sets, %d faults\n", sets, faults);
  return faults || !sets;
}

}  // namespace

#endif  // TESTS_MODELS_CPU_KERNELS_CHECKS_H_
