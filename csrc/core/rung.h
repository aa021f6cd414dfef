// What the dispatcher knows of one kernel: a row of data and five functions, all of them in the kernel's own folder.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/chip.h"
#include "core/plan.h"
#include "core/problem.h"

namespace tiledmm {

// Orders of summation (docs/numerics.md). Kernels of one order give the same bits, so `auto` compares their costs for
// one problem; an order itself is picked by n, k, dtype and chip, never by m. Later ones are preferred: those of the
// production kernels come after those of the ladder.
enum class Order : int32_t {
  chain,             // multiply-adds in the order of k
  mma_chain,         // matrix instructions in the order of k
  chunks_unfused,    // CPU: chunks of k, each a chain in the order of k; products are rounded
  chunks,            // CPU: the same by fused multiply-add
  chunks_of_pairs,   // CPU: the same, with bf16 multiplied in pairs
  amx_chunks,        // CPU: that of AMX's tile instructions, chunks of k
  simt_chunks,       // multiply-adds, chunks of k (summation.h)
  mma_chunks,        // matrix instructions, chunks of k
  mfma_chunks,       // CDNA: matrix instructions that take k in an order of their own, chunks of k
  split_chunks,      // fp32 by matrix instructions in 16 bits: short sums, added up in chunks of k
  amx_split_chunks,  // CPU: fp32 by six products of bf16 terms, by AMX, chunks of k
  mfma_split_sums,   // CDNA: fp32 by matrix instructions in 16 bits: short sums, added up
  fp8_sums,          // Hopper: sums of 128 products by matrix instructions in 8 bits, added up in fp32
};
inline constexpr const char* kOrderNames[] = {
    "chain",      "mma_chain",   "chunks_unfused", "chunks",           "chunks_of_pairs", "amx_chunks", "simt_chunks",
    "mma_chunks", "mfma_chunks", "split_chunks",   "amx_split_chunks", "mfma_split_sums", "fp8_sums"};
inline constexpr int kNumOrders = int(sizeof kOrderNames / sizeof *kOrderNames);

// A plan in words, for explain.
struct Fields {
  std::vector<std::pair<std::string, std::string>> entries;  // key, JSON value

  void add(const char* key, int64_t value) { entries.emplace_back(key, std::to_string(value)); }
  void add(const char* key, const std::string& value) { entries.emplace_back(key, '"' + value + '"'); }
  // As in "128x256".
  void add_tile(const char* key, int64_t rows, int64_t cols) {
    add(key, std::to_string(rows) + "x" + std::to_string(cols));
  }
  // Parts of k that are computed side by side, and who adds their sums.
  void add_split_k(int64_t num_parts, const char* sums_added_by = "second kernel") {
    add("split_k", num_parts);
    if (num_parts > 1) add("sums_added_by", sums_added_by);
  }
  // Operands that another kernel copies first.
  void add_copies(bool of_a, bool of_b) {
    if (of_a || of_b) add("copies", of_a ? of_b ? "A B" : "A" : "B");
  }
};

// Entries name the fields that they set, as C++20 has it; g++ takes that in C++17 without a word.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wc++20-designator"
#endif

// What of a problem a kernel takes: the dtypes of its operands, and what else it asks for.
struct Takes {
  DType dtypes[kNumDTypes] = {DType::f32, DType::f64, DType::f16, DType::bf16};
  int32_t num_dtypes = 4;
  const char* served = "it serves fp32, fp64, fp16 and bf16";
  bool wide_result = false;        // a C in fp32 of operands in 16 bits
  bool mixed = false;              // fp32 beside one dtype of 16 bits, in any places
  bool alpha = true, bias = true;  // alpha other than 1; a bias, of any strides, and beta
  bool row_sums = false, kept_sum = false, groups = false, gated = false;
  bool fp8 = false;    // operands of 8 bits, which have scales
  bool fp8_b = false;  // a B of e4m3 with a scale for each column, beside an A of one of the dtypes

  constexpr bool has(DType dtype) const {
    for (int32_t i = 0; i < num_dtypes; ++i) {
      if (dtypes[i] == dtype) return true;
    }
    return false;
  }
};
inline constexpr Takes kTakesFp32 = {.dtypes = {DType::f32}, .num_dtypes = 1, .served = "it serves fp32"};
inline constexpr Takes kTakes16Bits = {
    .dtypes = {DType::f16, DType::bf16}, .num_dtypes = 2, .served = "it serves fp16 and bf16"};

struct Rung {
  const char* name;         // as the user names it
  const char* description;  // what this rung adds
  int32_t number = 0;       // its place on the teaching ladder of its device; 0: a production kernel beside it
  bool is_gpu = false;
  bool is_native = false;  // one of those that `native` admits
  Order order;
  Takes takes = {};
  // Why it serves nothing on a chip, and why it cannot serve a problem that it takes on a chip that it is for; null if
  // it can. Without such a function there is no reason against any. Others ask refusal().
  const char* (*refuse_chip)(const Chip& chip) = nullptr;
  const char* (*refuse)(const FoldedProblem& problem, const Chip& chip) = nullptr;
  // Shows the plans that its launcher takes for what it can serve and is not empty, each with its predicted time: at
  // least the one to take. One where there is nothing to choose.
  void (*for_each_plan)(const FoldedProblem& problem, const Chip& chip, PlanSearch& visit);
  void (*describe)(const FoldedProblem& problem, const Chip& chip, const Plan& plan, Fields& fields);
  Launcher* launch;  // null: not compiled
  // One of those that `split` admits, fp32 by products in 16 bits: neither `auto` nor `native` does.
  bool is_split = false;
  // Products with less of k, or fewer of the caller's columns, such a kernel leaves to the chip's native ones.
  int64_t min_k = 0, min_n = 0;

  bool is_for(const Chip& chip) const { return !refuse_chip || !refuse_chip(chip); }
  const char* refusal(const FoldedProblem& problem, const Chip& chip) const;
};

inline bool is_empty(const FoldedProblem& problem) {
  return problem.gemm.m == 0 || problem.gemm.n == 0 || problem.batch_size == 0;
}

// Why a kernel does not take a problem, whatever the chip; null if it does.
inline const char* refuse_kind(const GemmProblem& p, const Rung& rung) {
  const Takes& takes = rung.takes;
  switch (mix_of(p)) {
    case Mix::none:
    case Mix::wide_result:
      if (!takes.has(p.dtype_a)) return takes.served;
      if (p.dtype_c != p.dtype_a && !takes.wide_result) return "its result has the dtype of the operands";
      break;
    case Mix::operands:
      if (!takes.mixed) return "its operands and its result have one dtype";
      break;
    case Mix::fp8:
      if (!takes.fp8) return "it takes no operands of 8 bits";
      if (p.scaling == Scaling::none) return "operands of 8 bits have scales";
      if (p.num_batch_dims > 0 && !is_grouped(p)) return "operands of 8 bits have no batch";
      if (p.grouping == Grouping::k) return "operands of 8 bits have no groups of k";
      break;
    case Mix::fp8_b:
      if (!takes.fp8_b || !takes.has(p.dtype_a)) return "it takes no B of 8 bits beside such an A";
      if (p.dtype_b != DType::e4m3) return "its B of 8 bits is e4m3";
      if (p.scaling != Scaling::rows) return "its B of 8 bits has a scale for each column";
      break;
    case Mix::other:
      return "dtypes that differ: served are fp32 beside one of 16 bits, and a result of more than 8 bits";
  }
  if (p.alpha != 1 && !takes.alpha) return "it does not scale sums";
  if (p.bias && !takes.bias) return "it adds no bias";
  if (p.row_sums && !takes.row_sums) return "it does not sum rows";
  if (p.sum_offset && !takes.kept_sum) return "it does not keep the sum before an activation";
  if (p.scaling != Scaling::none && size_of(p.dtype_b) > 1) return "operands with scales have 8 bits";
  if (is_grouped(p) && !takes.groups) return "it takes no groups";
  if (p.gated_b && !takes.gated) return "it takes no second B";
  if (rung.is_gpu && p.num_batch_dims > kMaxGpuBatchDims) {
    return "more than 6 batch dimensions that do not fold into fewer";
  }
  return nullptr;
}

inline const char* Rung::refusal(const FoldedProblem& problem, const Chip& chip) const {
  if (!is_for(chip)) return refuse_chip(chip);
  if (const char* reason = refuse_kind(problem.gemm, *this)) return reason;
  return refuse ? refuse(problem, chip) : nullptr;
}

// What kernels that multiply fp32 by the matrix instruction refuse.
inline const char* refuse_tf32(const GemmProblem& problem, const Chip& chip) {
  if (problem.dtype_a == DType::f32 && chip.is_mma_fp32_tf32 && !problem.allow_tf32) {
    return "the chip's matrix instruction for fp32 rounds to tf32, which torch.backends.cuda.matmul.fp32_precision = "
           "'tf32' would allow";
  }
  return nullptr;
}

}  // namespace tiledmm
