// Handlers of XLA's foreign function interface, and properties of the library.

#include <cstdint>
#include <string>

#include "row_products/packed_product_call.h"
#include "row_products/row_product_call.h"
#include "shared/processor.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

using Rows = ffi::Buffer<ffi::F32, 2>;
using Experts = ffi::Buffer<ffi::S32, 1>;

// In the order of INSTRUCTIONS in library.py.
const Forms* const FORMS[] = {&portable_forms,   &avx2_forms, &avx512_forms,
                              &avx512bf16_forms, &neon_forms, &neonbf16_forms, &amx_forms};
constexpr int64_t SETS = sizeof FORMS / sizeof FORMS[0];

// Once: a virtual machine may take microseconds to answer.
const cpu_kernels::Processor HERE = cpu_kernels::this_processor();

bool can_run(int64_t instructions) {
  const bool can[SETS] = {true, HERE.avx2, HERE.avx512, HERE.avx512bf16, HERE.neon, HERE.neonbf16, HERE.amx};
  return instructions >= 0 && instructions < SETS && can[instructions] &&
         FORMS[instructions]->bfloat16.product != nullptr;
}

// The form of an instruction set, or of the next lesser set with a form for this dtype.
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

const Unpack* const UNPACKS[SETS] = {&portable_unpack,   &avx2_unpack, &avx512_unpack,
                                     &avx512bf16_unpack, &neon_unpack, &neonbf16_unpack, &amx_unpack};

// Unpacking code of an instruction set, or of the next lesser set with code for this dtype.
const Unpack* unpack_of(int64_t instructions, ffi::DataType dtype) {
  for (int64_t set = instructions; set >= 0; --set) {
    const Unpack& unpack = *UNPACKS[set];
    if ((dtype == ffi::BF16 ? unpack.bfloat16 != nullptr : unpack.float32 != nullptr) && can_run(set)) return &unpack;
  }
  return nullptr;
}

// A packed weight of `experts` matrices from XLA's buffers; `fault` has a message if the parts do not fit.
Packed packed_of(const ffi::AnyBuffer& codes, const ffi::AnyBuffer& scale, const ffi::AnyBuffer& whole,
                 const ffi::AnyBuffer& zero, int64_t kind, int64_t inputs, std::string& fault) {
  Packed found{};
  const auto sizes = codes.dimensions(), groups = scale.dimensions();
  const std::size_t last = sizes.size() - 1;
  if (kind < 0 || kind > 3 || sizes.size() < 2 || groups.size() != sizes.size()) {
    fault = "expected codes and scales of as many dimensions, of a known kind";
    return found;
  }
  found.kind = static_cast<Kind>(kind);
  const bool four = is_four_bits(found.kind);
  found.inputs = inputs;
  found.groups = groups[last];
  int64_t outputs = 1;
  for (std::size_t one = 0; one < last; ++one) {
    outputs *= sizes[one];
    if (groups[one] != sizes[one]) fault = "expected scales for each row of the codes";
  }
  const int64_t width = found.groups > 0 ? inputs / found.groups : 0;
  if (sizes[last] * (four ? 2 : 1) != inputs || found.groups < 1 || width * found.groups != inputs || (four && width % 2))
    fault = "the groups of the scales do not divide the codes";
  const auto byte = found.kind == Kind::int8 ? ffi::S8 : ffi::U8;
  if (codes.element_type() != byte) fault = "the codes have another dtype than their kind";
  if (scale.element_type() == ffi::F32)
    found.scale_dtype = ScaleDtype::float32;
  else if (scale.element_type() == ffi::BF16)
    found.scale_dtype = ScaleDtype::bfloat16;
  else if (scale.element_type() == ffi::F16)
    found.scale_dtype = ScaleDtype::float16;
  else
    fault = "expected scales of float32, bfloat16 or float16";
  const int64_t wholes = static_cast<int64_t>(whole.element_count()), zeros = static_cast<int64_t>(zero.element_count());
  if (wholes && (wholes != outputs || whole.element_type() != ffi::F32)) fault = "expected one second scale for each row";
  const bool offsets = zeros && zero.element_type() == ffi::F32;
  if (zeros && (zeros != outputs * found.groups || !(offsets || (zero.element_type() == byte && (four || byte == ffi::S8)))))
    fault = "expected one zero point for each scale";
  if (zeros && (found.kind == Kind::e4m3 || found.kind == Kind::e2m1)) fault = "floats have no zero points";
  found.codes = static_cast<const uint8_t*>(codes.untyped_data());
  found.scale = scale.untyped_data();
  found.whole = wholes ? static_cast<const float*>(whole.untyped_data()) : nullptr;
  if (offsets && wholes) fault = "offsets are not behind second scales";
  found.zero = zeros && !offsets ? static_cast<const uint8_t*>(zero.untyped_data()) : nullptr;
  found.offset = offsets ? static_cast<const float*>(zero.untyped_data()) : nullptr;
  return found;
}

ffi::Error invalid(const std::string& said) { return ffi::Error::InvalidArgument("packed_product: " + said); }

// Products with numbers of bfloat16 (`dtype` 0) or float32.
cpu_kernels::PackedCall call_of(int64_t instructions, int64_t dtype) {
  const auto numbers = dtype == 0 ? ffi::BF16 : ffi::F32;
  return {*form_of(instructions, numbers), *unpack_of(instructions, numbers), dtype == 0 ? 2 : 4};
}

// Products with packed weights.
ffi::Error PackedProduct(ffi::ThreadPool pool, Rows x, ffi::AnyBuffer codes, ffi::AnyBuffer scale, ffi::AnyBuffer whole,
                         ffi::AnyBuffer zero, ffi::Result<Rows> y, int64_t kind, int64_t dtype, int64_t instructions) {
  if (!can_run(instructions)) return invalid("the step was compiled for another machine");
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1];
  std::string fault;
  const Packed weight = packed_of(codes, scale, whole, zero, kind, inputs, fault);
  if (!fault.empty()) return invalid(fault);
  const auto sizes = codes.dimensions();
  if (sizes.size() != 2 || y->dimensions()[0] != rows || y->dimensions()[1] != sizes[0] || dtype < 0 || dtype > 1)
    return invalid("the shapes of rows, weight and result do not fit each other");
  cpu_kernels::packed_product(pool, call_of(instructions, dtype), weight, x.typed_data(), y->typed_data(), rows, sizes[0]);
  return ffi::Error::Success();
}

ffi::Error PackedExpertProduct(ffi::ThreadPool pool, Rows x, ffi::AnyBuffer codes, ffi::AnyBuffer scale,
                               ffi::AnyBuffer whole, ffi::AnyBuffer zero, Experts expert,
                               ffi::Result<Rows> y, int64_t kind, int64_t dtype, int64_t instructions) {
  if (!can_run(instructions)) return invalid("the step was compiled for another machine");
  const int64_t rows = x.dimensions()[0], inputs = x.dimensions()[1];
  std::string fault;
  const Packed weight = packed_of(codes, scale, whole, zero, kind, inputs, fault);
  if (!fault.empty()) return invalid(fault);
  const auto sizes = codes.dimensions();
  if (sizes.size() != 3 || y->dimensions()[0] != rows || y->dimensions()[1] != sizes[1] ||
      expert.dimensions()[0] != rows || dtype < 0 || dtype > 1)
    return invalid("the shapes of rows, experts and result do not fit each other");
  cpu_kernels::packed_expert_product(pool, call_of(instructions, dtype), weight, sizes[0], x.typed_data(),
                                     expert.typed_data(), y->typed_data(), rows, sizes[1]);
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

EXPORTED XLA_FFI_Error* hybridlm_packed_product(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_packed_product, PackedProduct,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Rows>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<Rows>()
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("dtype")
                                  .Attr<int64_t>("instructions"));

EXPORTED XLA_FFI_Error* hybridlm_packed_expert_product(XLA_FFI_CallFrame*);
XLA_FFI_DEFINE_HANDLER_SYMBOL(hybridlm_packed_expert_product, PackedExpertProduct,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Rows>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<Experts>()
                                  .Ret<Rows>()
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("dtype")
                                  .Attr<int64_t>("instructions"));

// Hash of the library's sources; build.py searches the file for it.
EXPORTED const char hybridlm_sources[] = HYBRIDLM_SOURCES;
// Version of XLA's interface in the headers: an older jaxlib refuses the handlers.
#define TEXT_OF(number) #number
#define VERSION_OF(major, minor) "XLA_FFI_API " TEXT_OF(major) "." TEXT_OF(minor)
EXPORTED const char hybridlm_interface[] = VERSION_OF(XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR);

// Whether this processor runs an instruction set, and the library has code for it.
EXPORTED int32_t hybridlm_can_run(int64_t instructions) { return can_run(instructions); }

// Number of instruction sets, and the forms of each, for checks with their own buffers and threads.
EXPORTED int64_t hybridlm_sets() { return SETS; }
EXPORTED const Forms* hybridlm_forms(int64_t instructions) { return FORMS[instructions]; }
EXPORTED const Unpack* hybridlm_unpack(int64_t instructions) { return UNPACKS[instructions]; }
