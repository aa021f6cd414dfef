"""The order of summation as docs/numerics.md tells it, in Python: csrc/core/summation.h is to agree."""


def length_of_chunks(n, k, is_tf32=False):
    """Of k, where matrix instructions multiply 16-bit elements or tf32."""
    least = 512 if is_tf32 else 1024
    chunk_k = max(k, 1)
    if k >= 4 * least:
        if n <= 256:
            chunk_k = least if k < 8192 else max(-(-k // (5120 // max(n, 1)) // 256) * 256, 1024)
        elif n <= 2048 and k >= 5 * n // (2 if is_tf32 else 1):
            chunks = min((4096 if k < 1 << 15 else 8192) // n, k // least, 8)
            chunk_k = -(-k // chunks // 256) * 256
    very_long_k, max_chunk = (1 << 17, 1 << 14) if is_tf32 or n <= 256 else (1 << 16, 1 << 15)
    if k >= very_long_k:
        chunk_k = min(chunk_k, -(-k // -(-k // max_chunk) // 256) * 256)
    return chunk_k


def count_chunks(n, k, is_tf32=False):
    """So many of them, none of k = 0."""
    return -(-k // length_of_chunks(n, k, is_tf32))


def count_chunks_of_fp64(n, k):
    """The same in fp64."""
    columns = max(n, 1)
    least = min(max(n, 320, k // 64, min(k // max(4096 // columns, 4), 4096)), 8192)
    if k < max(1152, min(2 * n + 640, 2688), 2 * least):
        return 1 if k > 0 else 0
    wanted = -(-k // (k // least))
    return -(-k // (-(-wanted // 32) * 32))
