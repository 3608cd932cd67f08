// Handlers that XLA calls for steps of short convolutions.

#include <cstdint>
#include <string>

#include "conv_step_call.h"
#include "shared/handler.h"
#include "shared/lane_rows.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Steps of an instruction set, for checks with their own buffers and threads.
EXPORTED Convolve hybridlm_convolve(int64_t instructions) {
  return cpu_kernels::form_for(instructions, portable_convolve, avx2_convolve, avx512_convolve, portable_convolve);
}

namespace {

using Numbers = ffi::Buffer<ffi::F32, 3>;
using Channels = ffi::Buffer<ffi::F32, 1>;
using Lanes = ffi::Buffer<ffi::S32, 1>;
using Marks = ffi::Buffer<ffi::PRED, 1>;

ffi::Error invalid(const std::string& said) { return ffi::Error::InvalidArgument("conv_step: " + said); }

bool is_float(const ffi::AnyBuffer& buffer) {
  return buffer.element_type() == ffi::F32 || buffer.element_type() == ffi::BF16;
}

ffi::Error run(ffi::ThreadPool& pool, Lanes slots, Lanes lengths, Marks fresh, Numbers x, ffi::AnyBuffer taps,
               Channels bias, ffi::AnyBuffer state, Numbers& out, ffi::AnyBuffer* after, bool activated,
               int64_t instructions) {
  using cpu_kernels::has_sizes;
  if (!hybridlm_can_run(instructions)) return invalid("the step was compiled for another machine");
  if (taps.dimensions().size() != 2 || state.dimensions().size() != 3 || !is_float(taps) || !is_float(state))
    return invalid("expected taps of two and windows of three dimensions, in float32 or bfloat16");
  const auto sizes = x.dimensions();
  const int64_t lanes = sizes[0], tokens = sizes[1], channels = sizes[2];
  const int64_t kernel = taps.dimensions()[1], rows = state.dimensions()[0];
  const int32_t* const row_of = cpu_kernels::slots_of(slots);
  const bool biased = bias.dimensions()[0] != 0;
  const bool fits = has_sizes(lengths, {lanes}) && has_sizes(fresh, {lanes}) && has_sizes(taps, {channels, kernel}) &&
                    (!biased || has_sizes(bias, {channels})) && has_sizes(state, {rows, kernel - 1, channels}) &&
                    has_sizes(out, {lanes, tokens, channels}) &&
                    (row_of == nullptr ? rows == lanes : has_sizes(slots, {lanes}));
  if (!fits) return invalid("the shapes of tokens, taps and windows do not fit each other");
  if (kernel < MIN_TAPS || kernel > MAX_TAPS) return invalid("fewer or more taps than it takes");
  // The call asks XLA to give the windows' memory to the result.
  if (after != nullptr && after->untyped_data() != state.untyped_data())
    return invalid("the windows are not updated in place");
  const ConvStep step{row_of,
                      lengths.typed_data(),
                      fresh.typed_data(),
                      x.typed_data(),
                      taps.untyped_data(),
                      biased ? bias.typed_data() : nullptr,
                      state.untyped_data(),
                      out.typed_data(),
                      lanes,
                      tokens,
                      channels,
                      kernel,
                      taps.element_type() == ffi::BF16,
                      state.element_type() == ffi::BF16,
                      activated,
                      after == nullptr};
  const std::string fault = cpu_kernels::fault_of_lanes(step.slots, step.lengths, lanes, tokens, rows);
  if (!fault.empty()) return invalid(fault);
  cpu_kernels::conv_step(pool, hybridlm_convolve(instructions), step);
  return ffi::Error::Success();
}

ffi::Error Step(ffi::ThreadPool pool, Lanes slots, Lanes lengths, Marks fresh, Numbers x, ffi::AnyBuffer taps,
                Channels bias, ffi::AnyBuffer state, ffi::Result<Numbers> out, ffi::Result<ffi::AnyBuffer> after,
                bool activated, int64_t instructions) {
  return run(pool, slots, lengths, fresh, x, taps, bias, state, *out, &*after, activated, instructions);
}

ffi::Error Read(ffi::ThreadPool pool, Lanes slots, Lanes lengths, Marks fresh, Numbers x, ffi::AnyBuffer taps,
                Channels bias, ffi::AnyBuffer state, ffi::Result<Numbers> out, bool activated, int64_t instructions) {
  return run(pool, slots, lengths, fresh, x, taps, bias, state, *out, nullptr, activated, instructions);
}

}  // namespace

#define OF_A_STEP                                                                                              \
  Arg<Lanes>().Arg<Lanes>().Arg<Marks>().Arg<Numbers>().Arg<ffi::AnyBuffer>().Arg<Channels>().Arg<ffi::AnyBuffer>() \
      .Ret<Numbers>()
#define SETTINGS Attr<bool>("activated").Attr<int64_t>("instructions")

EXPORTED XLA_FFI_Error* hybridlm_conv_step(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_conv_step, Step,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().OF_A_STEP.Ret<ffi::AnyBuffer>().SETTINGS);

EXPORTED XLA_FFI_Error* hybridlm_conv_read(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_conv_read, Read, ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().OF_A_STEP.SETTINGS);
