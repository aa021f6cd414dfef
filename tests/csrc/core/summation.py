"""The order of summation as docs/NUMERICS.md tells it, in Python: csrc/core/summation.h is to agree."""


def count_chunks(n, k):
    """Chunks of k where matrix instructions multiply 16-bit elements or tf32."""
    if n <= 256 and k >= 4096:
        chunk_k = 1024
    elif k >= 1 << 17:
        chunk_k = 1 << 14
    elif 256 < n <= 768 and k >= 16 * n:
        chunk_k = -(-k // 4096) * 1024
    else:
        chunk_k = max(k, 1)
    return -(-k // chunk_k)
