// Handlers that XLA calls for attention of a few tokens over a KV cache.

#include <cstdint>
#include <string>

#include "decode_attention_call.h"
#include "shared/handler.h"
#include "shared/lane_rows.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

// Forms of an instruction set, for checks with their own buffers and threads.
EXPORTED const AttendForms* hybridlm_attend(int64_t instructions) {
  return &cpu_kernels::form_for(instructions, portable_attend, avx2_attend, avx512_attend, neon_attend);
}

namespace {

using Numbers = ffi::Buffer<ffi::F32, 4>;
using Lanes = ffi::Buffer<ffi::S32, 1>;
using Number = ffi::Buffer<ffi::S32, 0>;
using Pages = ffi::Buffer<ffi::S32, 2>;

ffi::Error invalid(const std::string& said) { return ffi::Error::InvalidArgument("decode_attention: " + said); }

// Null `value` and `values`: the first numbers of the keys are the values.
ffi::Error run(ffi::ThreadPool& pool, Pages pages, Lanes lengths, Lanes positions, Number window, Numbers query,
               Numbers key, const Numbers* value, ffi::AnyBuffer keys, const ffi::AnyBuffer* values, Numbers out, ffi::AnyBuffer keys_after,
               const ffi::AnyBuffer* values_after, int64_t instructions) {
  using cpu_kernels::has_sizes;
  if (!hybridlm_can_run(instructions)) return invalid("the step was compiled for another machine");
  if (keys.dimensions().size() != 4) return invalid("expected a cache of four dimensions");
  const auto sizes = query.dimensions(), kept = keys.dimensions(), shown = out.dimensions();
  const int64_t lanes = sizes[0], tokens = sizes[1], heads = sizes[2], kv_heads = kept[1];
  const bool bfloat16 = keys.element_type() == ffi::BF16;
  const bool fits =
      has_sizes(lengths, {lanes}) && has_sizes(positions, {lanes}) &&
      has_sizes(query, {lanes, tokens, heads, kept[3]}) && kv_heads > 0 && heads % kv_heads == 0 &&
      has_sizes(key, {lanes, tokens, kv_heads, kept[3]}) &&
      pages.dimensions()[0] == lanes && kept[2] == PAGE_POSITIONS &&
      has_sizes(out, {lanes, tokens, heads, shown[3]}) && (bfloat16 || keys.element_type() == ffi::F32) &&
      (value == nullptr ? shown[3] <= kept[3]
                        : has_sizes(*value, {lanes, tokens, kv_heads, shown[3]}) &&
                              has_sizes(*values, {kept[0], kv_heads, PAGE_POSITIONS, shown[3]}) &&
                              values->element_type() == keys.element_type());
  const int64_t seen = *window.typed_data();
  if (seen < 0) return invalid("a window of " + std::to_string(seen) + " positions: expected at least one, or 0 for all");
  if (!fits) return invalid("the shapes or dtypes of tokens and caches do not fit each other");
  // The call asks XLA to give the caches' memory to the results.
  if (keys_after.untyped_data() != keys.untyped_data() ||
      (values != nullptr && values_after->untyped_data() != values->untyped_data()))
    return invalid("the caches are not updated in place");
  const DecodeAttention step{pages.typed_data(),
                             lengths.typed_data(),
                             positions.typed_data(),
                             query.typed_data(),
                             key.typed_data(),
                             value == nullptr ? nullptr : value->typed_data(),
                             keys.untyped_data(),
                             values == nullptr ? keys.untyped_data() : values->untyped_data(),
                             out.typed_data(),
                             lanes,
                             tokens,
                             heads,
                             kv_heads,
                             kept[3],
                             shown[3],
                             pages.dimensions()[1],
                             seen};
  const std::string fault = cpu_kernels::fault_of_pages(step, kept[0]);
  if (!fault.empty()) return invalid(fault);
  cpu_kernels::decode_attention(pool, *hybridlm_attend(instructions), bfloat16, step);
  return ffi::Error::Success();
}

ffi::Error Attention(ffi::ThreadPool pool, Pages pages, Lanes lengths, Lanes positions, Number window, Numbers query,
                     Numbers key, Numbers value, ffi::AnyBuffer keys, ffi::AnyBuffer values, ffi::Result<Numbers> out,
                     ffi::Result<ffi::AnyBuffer> keys_after, ffi::Result<ffi::AnyBuffer> values_after,
                     int64_t instructions) {
  const ffi::AnyBuffer after = *values_after;
  return run(pool, pages, lengths, positions, window, query, key, &value, keys, &values, *out, *keys_after, &after,
             instructions);
}

ffi::Error Latent(ffi::ThreadPool pool, Pages pages, Lanes lengths, Lanes positions, Number window, Numbers query,
                  Numbers row,
                  ffi::AnyBuffer rows, ffi::Result<Numbers> out, ffi::Result<ffi::AnyBuffer> rows_after,
                  int64_t instructions) {
  return run(pool, pages, lengths, positions, window, query, row, nullptr, rows, nullptr, *out, *rows_after, nullptr,
             instructions);
}

}  // namespace

EXPORTED XLA_FFI_Error* hybridlm_decode_attention(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_decode_attention, Attention,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Pages>()
                                  .Arg<Lanes>()
                                  .Arg<Lanes>()
                                  .Arg<Number>()
                                  .Arg<Numbers>()
                                  .Arg<Numbers>()
                                  .Arg<Numbers>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<Numbers>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("instructions"));

EXPORTED XLA_FFI_Error* hybridlm_latent_decode_attention(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_latent_decode_attention, Latent,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Pages>()
                                  .Arg<Lanes>()
                                  .Arg<Lanes>()
                                  .Arg<Number>()
                                  .Arg<Numbers>()
                                  .Arg<Numbers>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<Numbers>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("instructions"));
