// Instruction sets of this processor. __builtin_cpu_supports, compiled by zig, knows none of them.

#ifndef MODELS_CPU_KERNELS_PROCESSOR_H_
#define MODELS_CPU_KERNELS_PROCESSOR_H_

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace cpu_kernels {

struct Processor {
  bool avx2 = false, avx512 = false, avx512bf16 = false, neon = false, neonbf16 = false, amx = false;
};

// An x86-64 processor's features, and the states that the operating system saves for each thread; 0 for absent words.
struct Cpuid {
  uint32_t basic = 0;              // leaf 1, register c
  uint32_t kept = 0;               // by xgetbv
  uint32_t b = 0, c = 0, d = 0;    // leaf 7
  uint32_t a_of_next = 0;          // its first subleaf
};

// The instruction sets of such a processor. `permits_tiles` asks the operating system, only if all else is present.
template <typename Permits>
Processor processor_of(const Cpuid& said, const Permits& permits_tiles) {
  const auto bit = [](uint32_t word, int place) { return (word >> place & 1u) != 0; };
  const auto keeps = [&](uint32_t states) { return (said.kept & states) == states; };
  Processor found;
  // Of AVX, states 1 and 2, FMA and F16C.
  found.avx2 = keeps(0x6) && bit(said.basic, 28) && bit(said.basic, 12) && bit(said.basic, 29) && bit(said.b, 5);
  // States 5 to 7.
  found.avx512 = found.avx2 && keeps(0xE0) && bit(said.b, 16) && bit(said.b, 17) && bit(said.b, 30) && bit(said.b, 31);
  found.avx512bf16 = found.avx512 && bit(said.c, 1) && bit(said.a_of_next, 5);  // with VBMI
  // States 17 and 18; tiles, and their products of bfloat16 numbers.
  found.amx = found.avx512bf16 && keeps(0x60000) && bit(said.d, 24) && bit(said.d, 22) && permits_tiles();
  return found;
}

#if defined(__x86_64__)
inline Cpuid cpuid_here() {
  Cpuid said;
  uint32_t a, b, c, d, high;
  if (!__get_cpuid(1, &a, &b, &said.basic, &d) || (said.basic >> 27 & 1u) == 0) return {};  // without xgetbv
  __asm__("xgetbv" : "=a"(said.kept), "=d"(high) : "c"(0));
  if (!__get_cpuid_count(7, 0, &a, &said.b, &said.c, &said.d) || a < 1) return said;  // a: the last subleaf
  __get_cpuid_count(7, 1, &said.a_of_next, &b, &c, &d);
  return said;
}

// Linux saves a thread's tiles (state 18) only for a process that requests it. It refuses a process with too small
// stacks for signals.
inline bool may_use_tiles() {
#if defined(__linux__)
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, TILES = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILES) == 0;
#else
  return false;
#endif
}
#endif

inline Processor this_processor() {
#if defined(__x86_64__)
  return processor_of(cpuid_here(), may_use_tiles);
#elif defined(__aarch64__)
  Processor found;
  found.neon = true;
#if defined(__linux__)
  found.neonbf16 = (getauxval(AT_HWCAP2) & (1UL << 14)) != 0;  // HWCAP2_BF16, absent from older headers
#endif
  return found;
#else
  return {};
#endif
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_PROCESSOR_H_
