// Small kernels for the tests of the interpreter, one technique each; the project's own are in csrc/kernels/gpu.
// Compiled for the device alone, without any header: test_interpreter.py has the command.
#define DEVICE __attribute__((device)) inline __attribute__((always_inline))
#define SHARED __attribute__((shared))
#define KERNEL(num_threads) \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(num_threads, num_threads))) void

using f16x4 = _Float16 __attribute__((ext_vector_type(4)));
using f32x4 = float __attribute__((ext_vector_type(4)));
using f64x4 = double __attribute__((ext_vector_type(4)));
using s16x4 = short __attribute__((ext_vector_type(4)));
using f32x16 = float __attribute__((ext_vector_type(16)));

DEVICE int thread() { return int(__builtin_amdgcn_workitem_id_x()); }
DEVICE int block_x() { return int(__builtin_amdgcn_workgroup_id_x()); }
DEVICE int block_y() { return int(__builtin_amdgcn_workgroup_id_y()); }
DEVICE int block_z() { return int(__builtin_amdgcn_workgroup_id_z()); }
DEVICE const unsigned* hidden() {
  return (const unsigned*)(const __attribute__((address_space(4))) unsigned*)__builtin_amdgcn_implicitarg_ptr();
}
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}
DEVICE float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
DEVICE double fused(double a, double b, double c) { return __builtin_fma(a, b, c); }

struct Problem {
  const void* a;
  const void* b;
  void* c;
  long m, n, k;
};

// One thread an element; the batch is a loop over the third block index.
template <class T, class A>
DEVICE void naive_of(const T* a, const T* b, T* c, int m, int n, int k, int batch) {
  const unsigned blocks_z = hidden()[2];
  const int row = 8 * block_y() + thread() / 16, col = 16 * block_x() + thread() % 16;
  if (row >= m || col >= n) return;
  for (int item = block_z(); item < batch; item += blocks_z) {
    A sum = 0;
    for (int p = 0; p < k; ++p) {
      sum = fused(A(a[(long(item) * m + row) * k + p]), A(b[(long(item) * k + p) * n + col]), sum);
    }
    c[(long(item) * m + row) * n + col] = T(sum);
  }
}
KERNEL(128) naive_f32(const float* a, const float* b, float* c, int m, int n, int k, int batch) {
  naive_of<float, float>(a, b, c, m, n, k, batch);
}
KERNEL(128) naive_f64(const double* a, const double* b, double* c, int m, int n, int k, int batch) {
  naive_of<double, double>(a, b, c, m, n, k, batch);
}
KERNEL(128) naive_f16(const _Float16* a, const _Float16* b, _Float16* c, int m, int n, int k, int batch) {
  naive_of<_Float16, float>(a, b, c, m, n, k, batch);
}
KERNEL(128) naive_bf16(const __bf16* a, const __bf16* b, __bf16* c, int m, int n, int k, int batch) {
  naive_of<__bf16, float>(a, b, c, m, n, k, batch);
}

// 16 x 16 tiles in LDS, two barriers a tile.
#ifndef SECOND_BARRIER
#define SECOND_BARRIER barrier()
#endif
#ifndef K_OFFSET
#define K_OFFSET 0
#endif
KERNEL(256) lds_tiled(Problem problem) {
  SHARED float tile_a[16][17], tile_b[16][16];
  const int i = thread() / 16, j = thread() % 16;
  const long row = 16l * block_y() + i, col = 16l * block_x() + j;
  const auto* a = (const float*)problem.a;
  const auto* b = (const float*)problem.b;
  float sum = 0;
  for (long k = 0; k < problem.k; k += 16) {
    tile_a[i][j] = row < problem.m && k + j < problem.k ? a[row * problem.k + k + j] : 0;
    tile_b[i][j] = col < problem.n && k + i < problem.k ? b[(k + i) * problem.n + col] : 0;
    barrier();
#pragma unroll
    for (int p = 0; p < 16; ++p) sum = fused(tile_a[i][p], tile_b[(p + K_OFFSET) % 16][j], sum);
    SECOND_BARRIER;
  }
  if (row < problem.m && col < problem.n) ((float*)problem.c)[row * problem.n + col] = sum;
}

// 4 x 4 outputs a thread, 64 x 64 a block, rows of LDS padded; 16-byte reads of LDS; two buffers, so one barrier a
// tile.
KERNEL(256) register_tiled(Problem problem) {
  SHARED __attribute__((aligned(16))) float tile_a[2][8][68], tile_b[2][8][68];
  const auto* a = (const float*)problem.a;
  const auto* b = (const float*)problem.b;
  const int i = thread() / 16 * 4, j = thread() % 16 * 4;
  const long row = 64l * block_y(), col = 64l * block_x();
  float staged_a[2], staged_b[2];
  auto load = [&](long k) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int idx = thread() + 256 * part, mn = idx / 8, p = idx % 8, bn = idx % 64, bp = idx / 64;
      staged_a[part] = row + mn < problem.m && k + p < problem.k ? a[(row + mn) * problem.k + k + p] : 0;
      staged_b[part] = col + bn < problem.n && k + bp < problem.k ? b[(k + bp) * problem.n + col + bn] : 0;
    }
  };
  float acc[4][4] = {};
  load(0);
  int stage = 0;
  for (long k = 0; k < problem.k; k += 8, stage ^= 1) {
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int idx = thread() + 256 * part;
      tile_a[stage][idx % 8][idx / 8] = staged_a[part];
      tile_b[stage][idx / 64][idx % 64] = staged_b[part];
    }
    barrier();
    if (k + 8 < problem.k) load(k + 8);
#pragma unroll
    for (int p = 0; p < 8; ++p) {
      const f32x4 frag_a = *(const f32x4*)&tile_a[stage][p][i], frag_b = *(const f32x4*)&tile_b[stage][p][j];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int s = 0; s < 4; ++s) acc[r][s] = fused(frag_a[r], frag_b[s], acc[r][s]);
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 4; ++r) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      if (row + i + r < problem.m && col + j + s < problem.n) {
        ((float*)problem.c)[(row + i + r) * problem.n + col + j + s] = acc[r][s];
      }
    }
  }
}

#if !defined(__GFX11__) && !defined(__GFX12__)
// Matrix instructions through LDS: four waves, 16 rows each of a 64 x 16 block; B lies transposed in LDS.
template <class T, class Frag, class Acc, int K, class Multiply>
DEVICE void mfma_of(const Problem& problem, Multiply multiply) {
  constexpr int kPerLane = sizeof(Frag) / sizeof(T);
  SHARED __attribute__((aligned(16))) T tile_a[64][K + 4], tile_b[16][K + 4];
  const auto* a = (const T*)problem.a;
  const auto* b = (const T*)problem.b;
  const int warp = thread() / 64, lane = thread() % 64;
  const long row = 64l * block_y(), col = 16l * block_x();
  Acc acc = {};
  for (long k = 0; k < problem.k; k += K) {
    for (int idx = thread(); idx < 64 * K; idx += 256) {
      const int i = idx / K, p = idx % K;
      tile_a[i][p] = row + i < problem.m && k + p < problem.k ? a[(row + i) * problem.k + k + p] : T(0);
    }
    for (int idx = thread(); idx < 16 * K; idx += 256) {
      const int j = idx % 16, p = idx / 16;
      tile_b[j][p] = col + j < problem.n && k + p < problem.k ? b[(k + p) * problem.n + col + j] : T(0);
    }
    barrier();
    const int p = kPerLane * (lane / 16);
    const Frag frag_a = *(const Frag*)&tile_a[16 * warp + lane % 16][p], frag_b = *(const Frag*)&tile_b[lane % 16][p];
    acc = multiply(frag_a, frag_b, acc);
    barrier();
  }
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int i = sizeof(T) == 8 ? 4 * e + lane / 16 : 4 * (lane / 16) + e;
    const long to_row = row + 16 * warp + i, to_col = col + lane % 16;
    if (to_row < problem.m && to_col < problem.n) ((T*)problem.c)[to_row * problem.n + to_col] = T(acc[e]);
  }
}
KERNEL(256) mfma_f32(Problem problem) {
  mfma_of<float, float, f32x4, 4>(
      problem, [](float a, float b, f32x4 c) { return __builtin_amdgcn_mfma_f32_16x16x4f32(a, b, c, 0, 0, 0); });
}
KERNEL(256) mfma_f64(Problem problem) {
  mfma_of<double, double, f64x4, 4>(
      problem, [](double a, double b, f64x4 c) { return __builtin_amdgcn_mfma_f64_16x16x4f64(a, b, c, 0, 0, 0); });
}
KERNEL(256) mfma_f16(Problem problem) {
  mfma_of<_Float16, f16x4, f32x4, 16>(
      problem, [](f16x4 a, f16x4 b, f32x4 c) { return __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, 0, 0, 0); });
}
KERNEL(256) mfma_bf16(Problem problem) {
  mfma_of<__bf16, s16x4, f32x4, 16>(
      problem, [](s16x4 a, s16x4 b, f32x4 c) { return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, 0, 0, 0); });
}

// 32 x 32 x 8 straight from registers: one wave, shapes that are multiples.
KERNEL(64) mfma_f16_32x32(Problem problem) {
  const auto* a = (const _Float16*)problem.a;
  const auto* b = (const _Float16*)problem.b;
  const int lane = thread();
  f32x16 acc = {};
  for (long k = 0; k < problem.k; k += 8) {
    f16x4 frag_a, frag_b;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const long p = k + 4 * (lane / 32) + e;
      frag_a[e] = a[(32l * block_y() + lane % 32) * problem.k + p];
      frag_b[e] = b[p * problem.n + 32l * block_x() + lane % 32];
    }
    acc = __builtin_amdgcn_mfma_f32_32x32x8f16(frag_a, frag_b, acc, 0, 0, 0);
  }
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const long row = 32l * block_y() + 8 * (e / 4) + 4 * (lane / 32) + e % 4;
    ((_Float16*)problem.c)[row * problem.n + 32l * block_x() + lane % 32] = _Float16(acc[e]);
  }
}

#else  // RDNA
using f16x8 = _Float16 __attribute__((ext_vector_type(8)));
using s16x8 = short __attribute__((ext_vector_type(8)));
using f16x16 = _Float16 __attribute__((ext_vector_type(16)));
using s16x16 = short __attribute__((ext_vector_type(16)));
using f32x8 = float __attribute__((ext_vector_type(8)));

// The same with four waves of 32 lanes. RDNA3 wants A and B in both halves of the lanes, RDNA4 half of k in each.
template <class T, class Frag, class Multiply>
DEVICE void wmma_of(const Problem& problem, Multiply multiply) {
  constexpr int kPerLane = sizeof(Frag) / sizeof(T), kGroups = 16 / kPerLane;
  SHARED __attribute__((aligned(16))) T tile_a[64][24], tile_b[16][24];
  const auto* a = (const T*)problem.a;
  const auto* b = (const T*)problem.b;
  const int warp = thread() / 32, lane = thread() % 32;
  const long row = 64l * block_y(), col = 16l * block_x();
  f32x8 acc = {};
  for (long k = 0; k < problem.k; k += 16) {
    for (int idx = thread(); idx < 64 * 16; idx += 128) {
      const int i = idx / 16, p = idx % 16;
      tile_a[i][p] = row + i < problem.m && k + p < problem.k ? a[(row + i) * problem.k + k + p] : T(0);
    }
    for (int idx = thread(); idx < 16 * 16; idx += 128) {
      const int j = idx % 16, p = idx / 16;
      tile_b[j][p] = col + j < problem.n && k + p < problem.k ? b[(k + p) * problem.n + col + j] : T(0);
    }
    barrier();
    const int p = kPerLane * (lane / 16 % kGroups);
    const Frag frag_a = *(const Frag*)&tile_a[16 * warp + lane % 16][p], frag_b = *(const Frag*)&tile_b[lane % 16][p];
    acc = multiply(frag_a, frag_b, acc);
    barrier();
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const int i = kGroups == 1 ? 2 * e + lane / 16 : 8 * (lane / 16) + e;
    const long to_row = row + 16 * warp + i, to_col = col + lane % 16;
    if (to_row < problem.m && to_col < problem.n) ((T*)problem.c)[to_row * problem.n + to_col] = T(acc[e]);
  }
}
#if defined(__GFX12__)
KERNEL(128) wmma_f16(Problem problem) {
  wmma_of<_Float16, f16x8>(
      problem, [](f16x8 a, f16x8 b, f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c); });
}
KERNEL(128) wmma_bf16(Problem problem) {
  wmma_of<__bf16, s16x8>(
      problem, [](s16x8 a, s16x8 b, f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(a, b, c); });
}
#else
KERNEL(128) wmma_f16(Problem problem) {
  wmma_of<_Float16, f16x16>(
      problem, [](f16x16 a, f16x16 b, f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c); });
}
KERNEL(128) wmma_bf16(Problem problem) {
  wmma_of<__bf16, s16x16>(
      problem, [](s16x16 a, s16x16 b, f32x8 c) { return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(a, b, c); });
}
#endif
#endif

// Integers and conversions of many kinds, one row of results a thread: compared with the same on the host.
KERNEL(128) integers(const int* x, const int* y, long* to, int count) {
  const int idx = 128 * block_x() + thread();
  if (idx >= count) return;
  const int a = x[idx], b = y[idx];
  const unsigned ua = unsigned(a), ub = unsigned(b);
  const long la = (long(a) << 20) ^ b, lb = long(b) * 3 + (b >= 0 ? 1 : -1);
  long* row = to + 16l * idx;
  row[0] = a / (b ? b : 1);
  row[1] = a % (b ? b : 1);
  row[2] = ua / (ub ? ub : 1);
  row[3] = ua % (ub ? ub : 1);
  row[4] = la / lb;
  row[5] = la % lb;
  row[6] = long((unsigned long)la / (unsigned long)lb);
  row[7] = la * lb;
  row[8] = long((unsigned __int128)(unsigned long)la * (unsigned long)lb >> 64);
  row[9] = (a < b ? a : b) + (ua > ub ? 5 : 7);
  row[10] = __builtin_popcount(ua) + 100 * (a ? __builtin_clz(ua) : 32) + 10000 * (a ? __builtin_ctz(ua) : 32);
  row[11] = long(ua << (ub & 31)) + (a >> (ub & 31)) + long(la >> (ub & 63));
  row[12] = (ua >> 5 & 0x3ff) + (short)a + (signed char)b;
  row[13] = long(double(la)) + long(float(a));
  row[14] = __builtin_bit_cast(long, double(a) / (double(b) + 0.5));
  row[15] = __builtin_bit_cast(int, float(a) / (float(b) + 0.5f));
}

#if defined(__GFX11__) || defined(__GFX12__)
constexpr int kLanes = 32, kBufferFlags = 0x31004000;
#else
constexpr int kLanes = 64, kBufferFlags = 0x27000;
#endif

// The sum over a wave by ds_bpermute, and the first lane's value.
KERNEL(64) across_lanes(const int* x, int* sums, int* firsts) {
  const int value = x[64 * block_x() + thread()];
  int sum = value;
#pragma unroll
  for (int step = kLanes / 2; step; step /= 2) sum += __builtin_amdgcn_ds_bpermute(4 * (thread() ^ step), sum);
  sums[64 * block_x() + thread()] = sum;
  firsts[64 * block_x() + thread()] = __builtin_amdgcn_readfirstlane(value);
}

// Global memory straight to LDS where the chip can, and a buffer descriptor with its range check: each block reverses
// its part of x.
using global_word = __attribute__((address_space(1))) int;
using shared_word = __attribute__((address_space(3))) int;
KERNEL(256) reverse(int* x, int* to, int count) {
  SHARED int tile[256];
  const int idx = 256 * block_x() + thread();
#if defined(__GFX11__) || defined(__GFX12__)
  tile[thread()] = x[idx];
#else
  __builtin_amdgcn_global_load_lds((global_word*)(x + idx), (shared_word*)&tile[thread() / 64 * 64], 4, 0, 0);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");  // waits for vmcnt, too
#endif
  barrier();
  const auto buffer = __builtin_amdgcn_make_buffer_rsrc(to, 0, 4 * count, kBufferFlags);
  const int old = __builtin_amdgcn_raw_buffer_load_b32(buffer, 4 * idx, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b32(1000 * old + tile[255 - thread()], buffer, 4 * idx, 0, 0);
}
