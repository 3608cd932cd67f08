// Handlers that XLA calls for steps of recurrences.

#include <cstdint>
#include <string>

#include "recurrent_step_call.h"
#include "shared/handler.h"
#include "shared/lane_rows.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Steps of an instruction set, for checks with their own buffers and threads.
EXPORTED Advance hybridlm_advance(int64_t instructions) {
  return cpu_kernels::form_for(instructions, portable_advance, avx2_advance, avx512_advance, neon_advance);
}

namespace {

using Numbers = ffi::Buffer<ffi::F32, 4>;
using PerHead = ffi::Buffer<ffi::F32, 3>;
using Lanes = ffi::Buffer<ffi::S32, 1>;
using Marks = ffi::Buffer<ffi::PRED, 1>;

ffi::Error invalid(const std::string& said) { return ffi::Error::InvalidArgument("recurrent_step: " + said); }

ffi::Error run(ffi::ThreadPool& pool, Lanes slots, Lanes lengths, Marks fresh, ffi::AnyBuffer decay, PerHead beta,
               Numbers query, Numbers key, Numbers value, Numbers state, float* out, float* after, int64_t instructions) {
  using cpu_kernels::has_sizes;
  if (!hybridlm_can_run(instructions)) return invalid("the step was compiled for another machine");
  const auto sizes = value.dimensions(), kept = state.dimensions(), keys = key.dimensions();
  const int64_t lanes = sizes[0], tokens = sizes[1], heads = sizes[2], values = sizes[3];
  const int32_t* const rows = cpu_kernels::slots_of(slots);
  const bool by_channel = decay.dimensions().size() == 4, corrects = beta.dimensions()[2] != 0;
  const bool fits =
      has_sizes(lengths, {lanes}) && has_sizes(fresh, {lanes}) && has_sizes(beta, {lanes, tokens, corrects ? heads : 0}) &&
      has_sizes(key, {lanes, tokens, keys[2], keys[3]}) && has_sizes(query, {lanes, tokens, keys[2], keys[3]}) &&
      has_sizes(state, {kept[0], heads, values, keys[3]}) && keys[2] > 0 && heads % keys[2] == 0 &&
      decay.element_type() == ffi::F32 && (corrects || !by_channel) &&
      (by_channel ? has_sizes(decay, {lanes, tokens, heads, keys[3]}) : has_sizes(decay, {lanes, tokens, heads})) &&
      (rows == nullptr ? kept[0] == lanes : has_sizes(slots, {lanes}));
  if (!fits) return invalid("the shapes of tokens and states do not fit each other");
  if (keys[3] > MAX_STEP_KEYS) return invalid("more channels of the key than it takes");
  if (after == nullptr && tokens > BLOCK_TOKENS) return invalid("more tokens than a step that keeps its state takes");
  // The call asks XLA to give the state's memory to the result.
  if (after != nullptr && after != state.typed_data()) return invalid("the states are not updated in place");
  const RecurrentStep step{rows,
                           lengths.typed_data(),
                           fresh.typed_data(),
                           static_cast<const float*>(decay.untyped_data()),
                           corrects ? beta.typed_data() : nullptr,
                           query.typed_data(),
                           key.typed_data(),
                           value.typed_data(),
                           state.typed_data(),
                           out,
                           lanes,
                           tokens,
                           heads,
                           keys[2],
                           values,
                           keys[3],
                           by_channel,
                           after == nullptr};
  const std::string fault = cpu_kernels::fault_of_lanes(step.slots, step.lengths, lanes, tokens, kept[0]);
  if (!fault.empty()) return invalid(fault);
  cpu_kernels::recurrent_step(pool, hybridlm_advance(instructions), step);
  return ffi::Error::Success();
}

ffi::Error Step(ffi::ThreadPool pool, Lanes slots, Lanes lengths, Marks fresh, ffi::AnyBuffer decay, PerHead beta,
                Numbers query, Numbers key, Numbers value, Numbers state, ffi::Result<Numbers> out,
                ffi::Result<Numbers> after, int64_t instructions) {
  return run(pool, slots, lengths, fresh, decay, beta, query, key, value, state, out->typed_data(), after->typed_data(),
             instructions);
}

ffi::Error Read(ffi::ThreadPool pool, Lanes slots, Lanes lengths, Marks fresh, ffi::AnyBuffer decay, PerHead beta,
                Numbers query, Numbers key, Numbers value, Numbers state, ffi::Result<Numbers> out,
                int64_t instructions) {
  return run(pool, slots, lengths, fresh, decay, beta, query, key, value, state, out->typed_data(), nullptr,
             instructions);
}

}  // namespace

#define OF_A_STEP                                                                                                \
  Arg<Lanes>().Arg<Lanes>().Arg<Marks>().Arg<ffi::AnyBuffer>().Arg<PerHead>().Arg<Numbers>().Arg<Numbers>() \
      .Arg<Numbers>().Arg<Numbers>().Ret<Numbers>()

EXPORTED XLA_FFI_Error* hybridlm_recurrent_step(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_recurrent_step, Step,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().OF_A_STEP.Ret<Numbers>().Attr<int64_t>("instructions"));

EXPORTED XLA_FFI_Error* hybridlm_recurrent_read(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_recurrent_read, Read,
                              ffi::Ffi::Bind().Ctx<ffi::ThreadPool>().OF_A_STEP.Attr<int64_t>("instructions"));
