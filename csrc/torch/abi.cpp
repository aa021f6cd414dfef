// The version of the kernels' interface that the operators were compiled for. Whoever loads both libraries compares.
#include <cstdint>

#include "api/kernels_api.h"

extern "C" TILEDMM_API int32_t tiledmm_ops_abi_version() { return TILEDMM_ABI_VERSION; }
