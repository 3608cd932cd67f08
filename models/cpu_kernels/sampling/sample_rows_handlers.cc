// The handler that XLA calls to sample a token for each row of logits.

#include <cstdint>
#include <string>

#include "sample_rows_call.h"
#include "shared/handler.h"
#include "shared/lane_rows.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Passes of an instruction set, for checks with their own buffers and threads.
EXPORTED const RowPasses* hybridlm_row_passes(int64_t instructions) {
  return &cpu_kernels::form_for(instructions, portable_row_passes, avx2_row_passes, avx512_row_passes,
                                portable_row_passes);
}

namespace {

using Logits = ffi::Buffer<ffi::F32, 2>;
using Numbers = ffi::Buffer<ffi::F32, 1>;
using Counts = ffi::Buffer<ffi::S32, 1>;
using Keys = ffi::Buffer<ffi::U32, 2>;

ffi::Error Sample(ffi::ThreadPool pool, Logits logits, Numbers temperature, Counts top_k, Numbers top_p, Numbers min_p,
                  Keys keys, ffi::Result<Counts> tokens, int64_t instructions) {
  using cpu_kernels::has_sizes;
  if (!hybridlm_can_run(instructions))
    return ffi::Error::InvalidArgument("sample_rows: the step was compiled for another machine");
  const int64_t rows = logits.dimensions()[0], vocab = logits.dimensions()[1];
  const bool fits = has_sizes(temperature, {rows}) && has_sizes(top_k, {rows}) && has_sizes(top_p, {rows}) &&
                    has_sizes(min_p, {rows}) && has_sizes(keys, {rows, 2}) && has_sizes(*tokens, {rows}) && vocab > 0;
  if (!fits) return ffi::Error::InvalidArgument("sample_rows: the shapes of logits and settings do not fit each other");
  cpu_kernels::sample_rows(
      pool, *hybridlm_row_passes(instructions),
      {logits.typed_data(), temperature.typed_data(), top_k.typed_data(), top_p.typed_data(), min_p.typed_data(),
       keys.typed_data(), tokens->typed_data(), rows, vocab});
  return ffi::Error::Success();
}

}  // namespace

EXPORTED XLA_FFI_Error* hybridlm_sample_rows(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_sample_rows, Sample,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Logits>()
                                  .Arg<Numbers>()
                                  .Arg<Counts>()
                                  .Arg<Numbers>()
                                  .Arg<Numbers>()
                                  .Arg<Keys>()
                                  .Ret<Counts>()
                                  .Attr<int64_t>("instructions"));
