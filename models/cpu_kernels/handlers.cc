// What XLA calls: handlers of its foreign function interface, and what the library says of itself.

#include <cstdint>
#include <string>

#include "row_product_call.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Rows = ffi::Buffer<ffi::F32, 2>;

// In the order of INSTRUCTIONS in library.py.
const Forms* const FORMS[] = {&portable_forms, &avx2_forms, &avx512_forms, &avx512bf16_forms};
constexpr int64_t SETS = sizeof FORMS / sizeof FORMS[0];

bool can_run(int64_t instructions) {
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool can[SETS] = {true, __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"), avx512,
                          avx512 && __builtin_cpu_supports("avx512bf16")};
#else
  const bool can[SETS] = {true};
#endif
  return instructions >= 0 && instructions < SETS && can[instructions] &&
         FORMS[instructions]->bfloat16.product != nullptr;
}

// The form of an instruction set, or of the next lesser one that has one for this dtype.
const Form* form_of(int64_t instructions, ffi::DataType dtype) {
  if (dtype != ffi::BF16 && dtype != ffi::F32) return nullptr;
  for (int64_t set = instructions; set >= 0; --set) {
    const Form& form = dtype == ffi::BF16 ? FORMS[set]->bfloat16 : FORMS[set]->float32;
    if (form.product != nullptr && can_run(set)) return &form;
  }
  return nullptr;
}

ffi::Error RowProduct(ffi::ThreadPool pool, Rows x, ffi::AnyBuffer weight, ffi::Result<Rows> y, int64_t instructions) {
  if (!can_run(instructions))
    return ffi::Error::InvalidArgument("row_product: this processor cannot run instruction set " +
                                       std::to_string(instructions) + "; the step was compiled for another machine");
  const auto sizes = weight.dimensions();
  const Form* const form = form_of(instructions, weight.element_type());
  if (form == nullptr || sizes.size() != 2)
    return ffi::Error::InvalidArgument("row_product: expected a matrix of bfloat16 or float32 numbers");
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1];
  if (sizes[1] != inputs || y->dimensions()[0] != rows || y->dimensions()[1] != sizes[0])
    return ffi::Error::InvalidArgument("row_product: the shapes of rows, weight and result do not fit each other");
  cpu_kernels::row_product(pool, *form, x.typed_data(), weight.untyped_data(), y->typed_data(), rows, inputs, sizes[0],
                           static_cast<int64_t>(ffi::ByteWidth(weight.element_type())));
  return ffi::Error::Success();
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED XLA_FFI_Error* hybridlm_row_product(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_row_product, RowProduct, 
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Rows>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<Rows>()
                                  .Attr<int64_t>("instructions"));

// Hash of the sources that the library was built from, which build.py looks for in the file.
EXPORTED const char hybridlm_sources[] = HYBRIDLM_SOURCES;

// Whether this processor runs an instruction set, and the library has code for it.
EXPORTED int32_t hybridlm_can_run(int64_t instructions) { return can_run(instructions); }

// The forms of an instruction set, for checks that bring buffers and threads of their own.
EXPORTED const Forms* hybridlm_forms(int64_t instructions) { return FORMS[instructions]; }
