// Common parts of float32 steps' handlers: their export, and the code for an instruction set.

#ifndef MODELS_CPU_KERNELS_HANDLER_H_
#define MODELS_CPU_KERNELS_HANDLER_H_

#include <cstdint>

#define EXPORTED extern "C" __attribute__((visibility("default")))

// Whether this processor runs an instruction set, by its place in INSTRUCTIONS in library.py.
EXPORTED int32_t hybridlm_can_run(int64_t instructions);

namespace cpu_kernels {

// The form for an instruction set; sets beyond AVX-512 and NEON add nothing for float32.
template <typename Form>
const Form& form_for([[maybe_unused]] int64_t instructions, const Form& portable, [[maybe_unused]] const Form& avx2,
                     [[maybe_unused]] const Form& avx512, [[maybe_unused]] const Form& neon) {
#if defined(__x86_64__)
  if (instructions >= 2) return avx512;
  if (instructions == 1) return avx2;
#elif defined(__aarch64__)
  if (instructions > 0) return neon;
#endif
  return portable;
}

}  // namespace cpu_kernels

#endif  // MODELS_CPU_KERNELS_HANDLER_H_
