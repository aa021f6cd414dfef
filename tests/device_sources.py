"""What CI leaves out of the sources that it compiles for devices.

A kernel is a template of a tile, dtypes and layouts of its operands. Each of these values is compiled in some instance
of a kernel or of its like, not with all others: code of a dtype or of a layout is the same in each tile. The host
executor runs all instances but Hopper's, of which the emulator runs some. TILEDMM_DEVICE_CODE=1 compiles all.
"""

import shutil
from pathlib import Path

# File, text, what takes its place.
EDITS = [
    # Kernels whose operands have like layouts: what reads an operand knows the layout of its own alone.
    # TILEDMM_LAYOUTS: 1 has A along k and B along n, 2 has A along m and B along k, 3 has both.
    (
        "platform/mma.h",
        """  if (is_a_k_major)
    return is_b_k_major ? launch(std::true_type{}, std::true_type{}) : launch(std::true_type{}, std::false_type{});
  return is_b_k_major ? launch(std::false_type{}, std::true_type{}) : launch(std::false_type{}, std::false_type{});
""",
        """#if !defined(TILEDMM_LAYOUTS) || TILEDMM_LAYOUTS & 1
  if (is_a_k_major && !is_b_k_major) return launch(std::true_type{}, std::false_type{});
#endif
#if !defined(TILEDMM_LAYOUTS) || TILEDMM_LAYOUTS & 2
  if (!is_a_k_major && is_b_k_major) return launch(std::false_type{}, std::true_type{});
#endif
  return Status::unsupported;
""",
    ),
    # One of the dtypes of 16 bits, where a macro says so; beside fp32, the first one that is there.
    (
        "platform/element.h",
        """    case DType::f16:
      return visit(static_cast<Half*>(nullptr));
    default:
      return visit(static_cast<BFloat16*>(nullptr));
""",
        """#ifndef TILEDMM_WITHOUT_F16
    case DType::f16:
      return visit(static_cast<Half*>(nullptr));
#endif
#ifndef TILEDMM_WITHOUT_BF16
    case DType::bf16:
      return visit(static_cast<BFloat16*>(nullptr));
#endif
    default:
      return visit(static_cast<float*>(nullptr));
""",
    ),
    (
        "platform/element.h",
        """             : problem.dtype_b == DType::f16 ? visit(a, static_cast<Half*>(nullptr))
                                             : visit(a, static_cast<BFloat16*>(nullptr));
""",
        """#ifndef TILEDMM_WITHOUT_F16
                                             : visit(a, static_cast<Half*>(nullptr));
#else
                                             : visit(a, static_cast<BFloat16*>(nullptr));
#endif
""",
    ),
    # A tile for each of the results of 04 and 08: the large one for C of another dtype, which takes more registers.
    (
        "kernels/gpu/04_register_tiled.cu",
        """    if constexpr (sizeof(A) > 1 && sizeof(A) < 8) {
      if (plan.as<LadderPlan>().is_large) return launch<Large, A, B, C>(problem, executor);
    }
    return launch<Small, A, B, C>(problem, executor);
""",
        """    constexpr bool kIsLarge = sizeof(A) > 1 && std::is_same_v<C, AnyElement>;
    if (plan.as<LadderPlan>().is_large != kIsLarge) return Status::unsupported;
    return launch<std::conditional_t<kIsLarge, Large, Small>, A, B, C>(problem, executor);
""",
    ),
    (
        "kernels/gpu/mma_tiles.h",
        """      return is_large ? launch_mma_tile<Rung, LargeMmaConfig<T>, T, C>(problem, executor)
                      : launch_mma_tile<Rung, SmallMmaConfig<T>, T, C>(problem, executor);
""",
        """      if constexpr (HAS_WIDE_RESULT && sizeof(T) == 2) {
        using Config = std::conditional_t<std::is_same_v<T, C>, SmallMmaConfig<T>, LargeMmaConfig<T>>;
        return launch_mma_tile<Rung, Config, T, C>(problem, executor);
      } else {
        return is_large ? launch_mma_tile<Rung, LargeMmaConfig<T>, T, C>(problem, executor)
                        : launch_mma_tile<Rung, SmallMmaConfig<T>, T, C>(problem, executor);
      }
""",
    ),
    # Activations of 16 bits take the most registers, fp32 without one the fewest.
    (
        "kernels/gpu/quantize.cu",
        "p.activation == Activation::none ? launch_kind(std::false_type{}) : launch_kind(std::true_type{})",
        "launch_kind(std::bool_constant<sizeof(T) == 2>{})",
    ),
    # Numbers of steps between the fewest and the most.
    (
        "kernels/gpu/reduce.cu",
        """    if (p.k <= kFewSteps * kStep) return launch_steps(std::integral_constant<int, kFewSteps>{}, parts);
    if (p.k <= kChunk / 2) return launch_steps(std::integral_constant<int, kSteps / 2>{}, parts);
""",
        "",
    ),
]
# By chip and file: what is left out that another chip's compilation or another file has.
WITHOUT_F16, WITHOUT_BF16 = "-DTILEDMM_WITHOUT_F16", "-DTILEDMM_WITHOUT_BF16"
MACROS_FOR_AMD = {
    ("gfx942", "04_register_tiled"): [WITHOUT_BF16],
    ("gfx942", "06_mma_cached"): [WITHOUT_BF16, "-DTILEDMM_LAYOUTS=1"],
    ("gfx942", "07_mma_double_buffered"): [WITHOUT_BF16, "-DTILEDMM_LAYOUTS=1"],
    ("gfx942", "quantize"): [WITHOUT_F16],
    ("gfx942", "reduce"): [WITHOUT_F16],
    ("gfx1100", "04_register_tiled"): [WITHOUT_F16],
    ("gfx1100", "08_mma_output_cached"): ["-DTILEDMM_LAYOUTS=1"],
}


def copy_edited(csrc: Path, folder: Path, edits: list[tuple[str, str, str]]) -> None:
    """A copy of the sources in the folder; each text is in its file once."""
    shutil.copytree(csrc, folder / "csrc")
    for name, text, replacement in edits:
        source = (folder / "csrc" / name).read_text()
        assert source.count(text) == 1, f"what CI leaves out has a new place in {name}: {text}"
        (folder / "csrc" / name).write_text(source.replace(text, replacement))
