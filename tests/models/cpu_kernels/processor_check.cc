// Checks of how instruction sets are told from what a processor says, with words of processors that are not here. Exit
// status 1 and a line for each fault.

#include <cstdio>
#include <initializer_list>
#include <string>

#include "checks.h"
#include "shared/processor.h"

namespace {

using cpu_kernels::Cpuid;

// Sapphire Rapids under Linux: of each word, the bits that are looked at and some of their neighbours.
constexpr Cpuid SAPPHIRE_RAPIDS = {0x7FFEFBFFu, 0x602E7u, 0xF3BFBFEFu, 0x1B415F7Eu, 0xFFC94432u, 0x1C30u};

struct Found {
  std::string sets;
  int asked = 0;
};

Found found(const Cpuid& said, bool permits) {
  Found all;
  const auto processor = cpu_kernels::processor_of(said, [&] {
    ++all.asked;
    return permits;
  });
  const bool has[] = {processor.avx2, processor.avx512, processor.avx512bf16, processor.amx};
  for (int set = 0; set < 4; ++set) all.sets += has[set] ? "1" : "0";
  check(!processor.neon && !processor.neonbf16, "NEON on x86-64");
  return all;
}

void expect(const std::string& what, const Cpuid& said, const std::string& sets, int asked, bool permits = true) {
  const Found all = found(said, permits);
  check(all.sets == sets, what + ": sets " + all.sets + " for " + sets);
  check(all.asked == asked, what + ": asked " + std::to_string(all.asked) + " times");
}

Cpuid without(uint32_t Cpuid::*word, int bit) {
  Cpuid said = SAPPHIRE_RAPIDS;
  said.*word &= ~(1u << bit);
  return said;
}

}  // namespace

int main() {
  expect("all", SAPPHIRE_RAPIDS, "1111", 1);
  expect("not permitted", SAPPHIRE_RAPIDS, "1110", 1, false);
  expect("nothing", {}, "0000", 0);
  for (const int state : {17, 18}) expect("tiles are not kept", without(&Cpuid::kept, state), "1110", 0);
  for (const int flag : {22, 24}) expect("no tiles", without(&Cpuid::d, flag), "1110", 0);
  expect("no VBMI", without(&Cpuid::c, 1), "1100", 0);
  expect("no bfloat16", without(&Cpuid::a_of_next, 5), "1100", 0);
  for (const int flag : {16, 17, 30, 31}) expect("no AVX-512", without(&Cpuid::b, flag), "1000", 0);
  for (const int state : {5, 6, 7}) expect("AVX-512 is not kept", without(&Cpuid::kept, state), "1000", 0);
  for (const int state : {1, 2}) expect("AVX is not kept", without(&Cpuid::kept, state), "0000", 0);
  expect("no AVX2", without(&Cpuid::b, 5), "0000", 0);
  for (const int flag : {12, 28, 29}) expect("no AVX, FMA or F16C", without(&Cpuid::basic, flag), "0000", 0);
  std::printf("processors, %d faults\n", faults);
  return faults != 0;
}
