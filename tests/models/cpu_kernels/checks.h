// What the checks of all kernels share: the count of faults, buffers at the edges of memory, and pools of threads.

#ifndef TESTS_MODELS_CPU_KERNELS_CHECKS_H_
#define TESTS_MODELS_CPU_KERNELS_CHECKS_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

extern "C" int32_t hybridlm_can_run(int64_t instructions);

namespace {

int faults = 0;

void check(bool good, const std::string& what) {
  if (!good && ++faults <= 20) std::printf("%s\n", what.c_str());
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
    running.emplace_back(std::forward<F>(work));
  }
  ~OwnThreads() {
    for (auto& one : running) one.join();
  }
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

// Check that a lane which was disturbed shows it, if it has tokens, and that no other lane does.
template <typename SameLane>
void check_reach(const std::string& name, int64_t lanes, int64_t lane, bool has_tokens, const SameLane& same_lane) {
  for (int64_t one = 0; one < lanes; ++one) {
    const bool equal = same_lane(one);
    if (one != lane) check(equal, name + ": lane " + std::to_string(lane) + " reaches another");
    if (one == lane && has_tokens) check(!equal, name + ": lane " + std::to_string(lane) + " is not read");
  }
}

// Call `check_set(name, set, brief)` for each instruction set for float32 that this processor runs; return the exit status.
template <typename CheckSet>
int check_sets(int count, char** arguments, const CheckSet& check_set) {
  const bool brief = count > 1 && std::string(arguments[1]) == "brief";
  const char* const names[] = {"portable", "avx2", "avx512", nullptr, "neon"};
  int sets = 0;
  for (int64_t set = 0; set < 5; ++set) {
    if (names[set] == nullptr || !hybridlm_can_run(set)) continue;
    ++sets;
    check_set(names[set], set, brief);
  }
  std::printf("%d instruction sets, %d faults\n", sets, faults);
  return faults || !sets;
}

}  // namespace

#endif  // TESTS_MODELS_CPU_KERNELS_CHECKS_H_
