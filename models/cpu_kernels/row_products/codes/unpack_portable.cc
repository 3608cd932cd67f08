// Numbers of packed weights for any processor.

#include "unpack.h"

extern const Unpack portable_unpack = {unpack_rows<uint16_t>, unpack_rows<float>};
