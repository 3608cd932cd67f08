// Instruction sets of the processor that runs. Not by __builtin_cpu_supports: compiled by zig, it knows none.

#ifndef MODELS_CPU_KERNELS_PROCESSOR_H_
#define MODELS_CPU_KERNELS_PROCESSOR_H_

#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace cpu_kernels {

struct Processor {
  bool avx2 = false, avx512 = false, avx512bf16 = false, neon = false, neonbf16 = false;
};

inline Processor this_processor() {
  Processor found;
#if defined(__x86_64__)
  const auto bit = [](uint32_t word, int place) { return (word >> place & 1u) != 0; };
  uint32_t a, b, c, d, basic, unused;
  if (!__get_cpuid(1, &a, &b, &basic, &d) || !bit(basic, 27)) return found;
  // What the operating system keeps of each thread: bits 1 and 2 for AVX, 5 to 7 for AVX-512.
  uint32_t kept, high;
  __asm__("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
  if ((kept & 0x6u) != 0x6u || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
  found.avx2 = bit(basic, 28) && bit(basic, 12) && bit(b, 5);  // with AVX and FMA
  found.avx512 = found.avx2 && (kept & 0xE6u) == 0xE6u && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  // The largest leaf below leaf 7 is in a.
  found.avx512bf16 = found.avx512 && a >= 1 && bit(c, 1) && __get_cpuid_count(7, 1, &a, &b, &unused, &d) && bit(a, 5);
#elif defined(__aarch64__)
  found.neon = true;
#if defined(__linux__)
  found.neonbf16 = (getauxval(AT_HWCAP2) & (1UL << 14)) != 0;  // HWCAP2_BF16, which older headers have not
#endif
#endif
  return found;
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_PROCESSOR_H_
