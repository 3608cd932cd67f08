// AMX for processors without it: each of its instructions is illegal there, and the handler of that signal computes what
// Intel's manual says, so that what compilers made of the code is checked. Included before all else of each source of a
// check or of a library (-include); the processor that runs is taken for one with AMX and nothing else.
//
// What the manual has a fault for ends the process: shapes that are none or do not fit each other, tiles that are used
// without shapes; so does a thread that ends with shapes.

#ifndef TESTS_MODELS_CPU_KERNELS_AMX_EMULATION_H_
#define TESTS_MODELS_CPU_KERNELS_AMX_EMULATION_H_

#include "shared/processor.h"

namespace cpu_kernels {
inline Processor emulated_processor() {
  Processor found;
  found.amx = true;
  return found;
}
}  // namespace cpu_kernels

#define this_processor emulated_processor

#if defined(__AMX_TILE__)
#include <immintrin.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int TILES = 8, MOST_ROWS = 16, MOST_BYTES = 64;

void expect(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "AMX: %s\n", what);
  std::abort();
}

struct Tile {
  int rows = 0, bytes = 0;
  uint8_t data[MOST_ROWS][MOST_BYTES] = {};
};

struct State {
  bool has_shapes = false;
  Tile tiles[TILES];
  Tile& at(int tile) {
    expect(has_shapes, "a tile without shapes");
    expect(tile >= 0 && tile < TILES && tiles[tile].rows > 0, "a tile without a shape");
    expect(tiles[tile].bytes % 4 == 0, "a part of a pair");
    return tiles[tile];
  }
  ~State() { expect(!has_shapes, "a thread ends with tiles in use"); }
};
thread_local State state;

void load_shapes(const void* from) {
  uint8_t given[64];
  std::memcpy(given, from, sizeof given);
  expect(given[0] == 1 && given[1] == 0, "another palette than 1, or a row to begin with");
  for (int k = 2; k < 16; ++k) expect(given[k] == 0, "reserved bytes of the shapes");
  state.has_shapes = true;
  for (int tile = 0; tile < 16; ++tile) {
    const int rows = given[48 + tile], bytes = given[16 + 2 * tile] + 256 * given[17 + 2 * tile];
    expect(tile < TILES || (rows == 0 && bytes == 0), "the shape of a tile that there is not");
    expect(rows <= MOST_ROWS && bytes <= MOST_BYTES && (rows == 0) == (bytes == 0), "a shape that there is not");
    if (tile >= TILES) continue;
    state.tiles[tile] = {};
    state.tiles[tile].rows = rows;
    state.tiles[tile].bytes = bytes;
  }
}

void release() {
  state.has_shapes = false;
  for (Tile& one : state.tiles) one = {};
}

void clear(int tile) { std::memset(state.at(tile).data, 0, sizeof(Tile::data)); }

void load(int tile, const char* from, int64_t stride) {
  Tile& to = state.at(tile);
  std::memset(to.data, 0, sizeof to.data);
  for (int row = 0; row < to.rows; ++row) std::memcpy(to.data[row], from + row * stride, to.bytes);
}

void store_tile(int tile, char* to, int64_t stride) {
  const Tile& from = state.at(tile);
  for (int row = 0; row < from.rows; ++row) std::memcpy(to + row * stride, from.data[row], from.bytes);
}

inline float number(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// Behind a call, so that nothing of it is computed under another control word.
__attribute__((noinline)) void add_products(Tile& c, const Tile& a, const Tile& b) {
  constexpr int COLUMNS = MOST_BYTES / 4;
  for (int m = 0; m < c.rows; ++m) {
    float even[COLUMNS] = {}, odd[COLUMNS] = {}, sums[COLUMNS];
    for (int k = 0; k < a.bytes / 4; ++k) {
      uint32_t one, others[COLUMNS];
      std::memcpy(&one, a.data[m] + 4 * k, sizeof one);
      std::memcpy(others, b.data[k], sizeof others);
      for (int n = 0; n < COLUMNS; ++n) even[n] = __builtin_fmaf(number(one << 16), number(others[n] << 16), even[n]);
      for (int n = 0; n < COLUMNS; ++n)
        odd[n] = __builtin_fmaf(number(one & 0xFFFF0000u), number(others[n] & 0xFFFF0000u), odd[n]);
    }
    std::memcpy(sums, c.data[m], sizeof sums);
    for (int n = 0; n < COLUMNS; ++n) sums[n] += even[n] + odd[n];
    std::memset(c.data[m], 0, sizeof c.data[m]);
    std::memcpy(c.data[m], sums, c.bytes);
  }
}

void multiply(int sums, int left, int right) {
  Tile &c = state.at(sums), &a = state.at(left), &b = state.at(right);
  expect(sums != left && sums != right && left != right, "one tile as two operands");
  expect(c.rows == a.rows && c.bytes == b.bytes && a.bytes / 4 == b.rows, "shapes that do not fit each other");
  // Rounded to nearest, denormal numbers for zero on both sides, whatever the thread's own control word says.
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9FC0);
  add_products(c, a, b);
  _mm_setcsr(before);
}

// An instruction with a prefix of three bytes (VEX), as a processor reads it.
struct Instruction {
  int64_t length = 5;
  int opcode, prefix, reg, third, rm;
  bool in_memory;
  char* base = nullptr;  // with what is added to it
  int64_t index = 0;
  Instruction(const uint8_t* code, const greg_t* registers) {
    static constexpr int ORDER[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                      REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
    const auto content = [&](int one) { return static_cast<int64_t>(registers[ORDER[one]]); };
    opcode = code[0] == 0xC4 && (code[1] & 0x1F) == 2 && (code[2] & 0x84) == 0 ? code[3] : 0;
    prefix = code[2] & 3;
    third = ~(code[2] >> 3) & 15;
    reg = (code[4] >> 3 & 7) | (code[1] & 0x80 ? 0 : 8);
    const int mode = code[4] >> 6, high = code[1] & 0x20 ? 0 : 8;
    rm = (code[4] & 7) | high;
    in_memory = mode != 3;
    if (!in_memory) return;
    int64_t at = 0;
    int number = code[4] & 7;
    const uint8_t* next = code + 5;
    if (number == 4) {
      const int other = (*next >> 3 & 7) | (code[1] & 0x40 ? 0 : 8);
      if (other != 4) index = content(other) << (*next >> 6);
      number = *next++ & 7;
    } else if (mode == 0 && number == 5) {
      at = reinterpret_cast<int64_t>(code) + 9;  // behind the instruction
    }
    const bool has_base = mode != 0 || number != 5;
    if (has_base) at = content(number | high);
    int32_t added = 0;
    if (mode == 1) {
      added = static_cast<int8_t>(*next++);
    } else if (mode == 2 || !has_base) {
      std::memcpy(&added, next, sizeof added);
      next += sizeof added;
    }
    length = next - code;
    base = reinterpret_cast<char*>(at + added);
  }
};

void run_illegal(int, siginfo_t*, void* context) {
  greg_t* const registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const Instruction one(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
  constexpr int NONE = 0, F3 = 2, F2 = 3;
  if (one.opcode == 0x49 && one.prefix == NONE && one.in_memory)
    load_shapes(one.base + one.index);
  else if (one.opcode == 0x49 && one.prefix == NONE)
    release();
  else if (one.opcode == 0x49 && one.prefix == F2 && !one.in_memory)
    clear(one.reg);
  else if (one.opcode == 0x4B && one.prefix == F2 && one.in_memory)
    load(one.reg, one.base, one.index);
  else if (one.opcode == 0x4B && one.prefix == F3 && one.in_memory)
    store_tile(one.reg, one.base, one.index);
  else if (one.opcode == 0x5C && one.prefix == F3 && !one.in_memory)
    multiply(one.reg, one.rm, one.third);
  else
    expect(false, "another instruction than those of tiles");
  registers[REG_RIP] += one.length;
}

const bool is_installed = [] {
  struct sigaction action = {};
  action.sa_sigaction = run_illegal;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, nullptr) == 0;
}();

}  // namespace

#if defined(__SANITIZE_THREAD__)
// The signal comes of an instruction that was about to run, and from within no other call.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() { return "report_signal_unsafe=0"; }
#endif
#endif

#endif  // TESTS_MODELS_CPU_KERNELS_AMX_EMULATION_H_
