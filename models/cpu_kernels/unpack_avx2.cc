// Numbers of packed weights for x86-64 with AVX2 and FMA: the plain loops, in vectors of eight.

#include "unpack.h"

#if defined(__AVX2__) && defined(__FMA__)
extern const Unpack avx2_unpack = {unpack_rows<uint16_t>, unpack_rows<float>};
#else
extern const Unpack avx2_unpack = {};
#endif
