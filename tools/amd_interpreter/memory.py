"""Memory of the interpreter: global buffers and the LDS of a workgroup, with bounds, alignment and races checked.

np.count_nonzero takes a fraction of the time of any().
"""

import numpy as np

from .instructions import I64, U32, U64

GARBAGE = 0x7FF5FFF5  # nan as fp64, fp32, fp16 and bf16; out of bounds as an offset


class Fault(Exception):
    """What hardware would do wrongly, or not at all."""


class Memory:
    """Named buffers at addresses of their own, far apart. Each lies across a multiple of 4 GiB, where a carry from the
    lower half of an address is needed."""

    def __init__(self):
        self.buffers = []

    def add(self, name: str, array: np.ndarray, *, writable: bool = False) -> int:
        """The address of the array, which is used in place."""
        if not array.flags.c_contiguous:
            raise ValueError(f"{name} is not contiguous")
        data = array.reshape(-1).view(np.uint8)
        address = ((0x7E00 + 16 * len(self.buffers)) << 32) - data.size // 2 // 256 * 256
        self.buffers.append((name, address, data, writable))
        return address

    def place(self, address: int, width: int) -> str:
        for name, start, data, _ in self.buffers:
            if start - (1 << 32) < address < start + data.size + (1 << 32):
                return f"{width} bytes at {address:#x}, {address - start} bytes into {name} of {data.size} bytes"
        return f"{width} bytes at {address:#x}, near no buffer"

    def locate(self, addresses: np.ndarray, width: int, is_store: bool):
        """The buffer of all addresses and their offsets in it; Fault(text, index) if there is none."""
        for name, start, data, writable in self.buffers:
            offsets = (addresses - U64(start)).view(I64)
            is_inside = (offsets >= 0) & (offsets <= data.size - width)
            if not np.count_nonzero(is_inside):
                continue
            if not is_inside.all():
                outside = int(np.argmin(is_inside))
                raise Fault("access outside of one buffer: " + self.place(int(addresses[outside]), width), outside)
            is_misaligned = addresses & U64(min(width, 4) - 1) != 0
            if np.count_nonzero(is_misaligned):
                raise Fault(f"misaligned access to {name}", int(np.argmax(is_misaligned)))
            if is_store and not writable:
                raise Fault(f"store to the read-only buffer {name}", 0)
            return data, offsets
        raise Fault("access outside of all buffers: " + self.place(int(addresses[0]), width), 0)

    def load(self, addresses: np.ndarray, width: int) -> np.ndarray:
        data, offsets = self.locate(addresses, width, False)
        return data[offsets[:, None] + np.arange(width)]

    def store(self, addresses: np.ndarray, values: np.ndarray):
        data, offsets = self.locate(addresses, values.shape[1], True)
        data[offsets[:, None] + np.arange(values.shape[1])] = values


COPY = 32  # the copies of wave w from global memory to LDS are agent COPY + w


class SharedMemory:
    """The LDS of one workgroup, and which waves (bits) read and wrote each byte since the last barrier.

    An access that is outstanding may happen at any time until it is waited for: it is marked when it is issued and
    again after each barrier that it outlasts. What a wave does between its signal and its wait for the others counts on
    both sides of the barrier. A copy from global memory is its wave's own access only when it has been waited for.
    """

    def __init__(self, size: int):
        self.data = np.full(-(-size // 4), GARBAGE, U32).view(np.uint8)[:size]
        self.readers, self.writers = np.zeros(size, U64), np.zeros(size, U64)
        self.next_readers, self.next_writers = np.zeros(size, U64), np.zeros(size, U64)
        self.signals = 0  # one bit for each wave

    def signal(self, wave: int):
        self.signals |= 1 << wave

    def check_signal(self, wave: int):
        if not self.signals >> wave & 1:
            raise Fault("waits at a barrier without having signalled")

    def forget(self):
        """The barrier is passed."""
        self.readers, self.next_readers = self.next_readers, self.readers
        self.writers, self.next_writers = self.next_writers, self.writers
        self.next_readers[:] = 0
        self.next_writers[:] = 0
        self.signals = 0

    def places(self, addresses: np.ndarray, width: int) -> np.ndarray:
        is_outside = (addresses < 0) | (addresses > self.data.size - width)
        if np.count_nonzero(is_outside):
            i = int(np.argmax(is_outside))
            raise Fault(f"{width} bytes of LDS at {int(addresses[i])}, of {self.data.size} bytes", i)
        alignment = width if width in (1, 2, 4, 8, 16) else 4
        if np.count_nonzero(addresses % alignment):
            raise Fault(f"misaligned access to {width} bytes of LDS", int(np.argmax(addresses % alignment != 0)))
        return addresses[:, None] + np.arange(width)

    def mark(self, places: np.ndarray, agent: int, is_store: bool, text: str = "an access"):
        own = 1 << agent | (1 << agent - COPY if agent >= COPY else 0)
        others = self.writers[places] & U64(~own & (1 << 64) - 1)
        if np.count_nonzero(others):
            if not is_store and int(np.bitwise_or.reduce(others, axis=None)) == 1 << agent + COPY:
                raise Fault(f"{text} reads LDS that a copy is outstanding for")
            verb = "writes LDS that another wave used" if is_store else "reads LDS that another wave wrote"
            raise Fault(f"race: {text} {verb} since the last barrier")
        if is_store and np.count_nonzero(self.readers[places] & U64(~own & (1 << 64) - 1)):
            raise Fault(f"race: {text} writes LDS that another wave used since the last barrier")
        marks, next_marks = (self.writers, self.next_writers) if is_store else (self.readers, self.next_readers)
        marks[places] |= U64(1 << agent)
        if self.signals >> agent % COPY & 1:
            next_marks[places] |= U64(1 << agent)

    def settle(self, places: np.ndarray, wave: int):
        """A copy has been waited for."""
        copy = U64(1 << wave + COPY)
        for marks in (self.writers, self.next_writers):
            old = marks[places]
            marks[places] = np.where(old & copy != 0, old & ~copy | U64(1 << wave), old)
