// Numbers of packed weights for x86-64 with AVX-512: the plain loops, in vectors of sixteen.

#include "unpack.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
extern const Unpack avx512_unpack = {unpack_rows<uint16_t>, unpack_rows<float>};
#else
extern const Unpack avx512_unpack = {};
#endif
