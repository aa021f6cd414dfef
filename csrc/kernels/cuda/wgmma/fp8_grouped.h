// wgmma_fp8_grouped: groups of rows by wgmma_grouped's blocks, which walk through the tiles of all groups (grouped.h),
// with wgmma_fp8's main loop (fp8.h). The factors of A are those of its rows, whatever their group; each group has
// factors of its own B.
#pragma once

#include "kernels/cuda/wgmma/fp8.h"
#include "kernels/cuda/wgmma/fp8_grouped_task.h"
#include "kernels/cuda/wgmma/grouped.h"

namespace tiledmm::cuda {
namespace {

// One block tile. A C in fp32 goes from registers to memory: groups end within tiles, and then threads store.
template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
struct Fp8GroupedTile : Fp8Config<TYPE_A, TYPE_B, C, TILE, FACTORS> {
  using Base = Fp8Config<TYPE_A, TYPE_B, C, TILE, FACTORS>;
  static constexpr bool kStoresDirectly = Base::kStoresDirectly || sizeof(C) == 4;
  static_assert(FACTORS != Factors::columns, "groups have no factors of columns of B");
};

template <DType TYPE_A, DType TYPE_B, class C, int TILE, Factors FACTORS>
using Fp8GroupedConfig =
    WithGroups<Fp8GroupedTile<TYPE_A, TYPE_B, C, TILE, FACTORS>, Fp8GroupedTile<TYPE_A, TYPE_B, C, TILE, FACTORS>,
               Grouping::rows, /*IS_GATED=*/false>;

template <DType TYPE_A, DType TYPE_B, class C, Factors FACTORS>
const char* launch_fp8_grouped_tile(const GroupedTask& task) {
  return visit_number<0, kNumFp8Tiles>(task.plan.tile, "no such tile", [&](auto number) -> const char* {
    constexpr int kTile = decltype(number)::value;
    constexpr bool kIsUsual = is_usual_fp8(TYPE_A, TYPE_B, std::is_same_v<C, float>);
    if constexpr (serves_groups(kFp8Tiles[kTile], FACTORS, kIsUsual))
      return launch_grouped_config<Fp8GroupedConfig<TYPE_A, TYPE_B, C, kTile, FACTORS>>(task);
    else
      return "this tile does not serve such groups";
  });
}

}  // namespace

template <int INSTANCE>
const char* launch_fp8_grouped_instance(const GroupedTask& task) {
  constexpr Fp8Instance kOwn = kFp8GroupedInstances[INSTANCE];
  using C = std::conditional_t<kOwn.is_c_f32, float, AnyShort>;
  return launch_fp8_grouped_tile<kOwn.a, kOwn.b, C, kOwn.factors>(task);
}

}  // namespace tiledmm::cuda
