"""Memory of the interpreter: global buffers and the LDS of a workgroup, with bounds, alignment and races checked."""

import numpy as np
from instructions import I64, U32, U64

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
            if not is_inside.any():
                continue
            if not is_inside.all():
                outside = int(np.argmin(is_inside))
                raise Fault("access outside of one buffer: " + self.place(int(addresses[outside]), width), outside)
            is_misaligned = addresses & U64(min(width, 4) - 1) != 0
            if is_misaligned.any():
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


class SharedMemory:
    """The LDS of one workgroup, and which waves (bits) read and wrote each byte since the last barrier. What a wave does
    between its signal and its wait for the others counts on both sides of the barrier."""

    def __init__(self, size: int):
        self.data = np.full(-(-size // 4), GARBAGE, U32).view(np.uint8)[:size]
        self.readers, self.writers = np.zeros(size, U32), np.zeros(size, U32)
        self.next_readers, self.next_writers = np.zeros(size, U32), np.zeros(size, U32)
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
        if is_outside.any():
            i = int(np.argmax(is_outside))
            raise Fault(f"{width} bytes of LDS at {int(addresses[i])}, of {self.data.size} bytes", i)
        alignment = width if width in (1, 2, 4, 8, 16) else 4
        if (addresses % alignment).any():
            raise Fault(f"misaligned access to {width} bytes of LDS", int(np.argmax(addresses % alignment != 0)))
        return addresses[:, None] + np.arange(width)

    def load(self, places: np.ndarray, wave: int, text: str = "load") -> np.ndarray:
        if (self.writers[places] & U32(~(1 << wave) & 0xFFFFFFFF)).any():
            raise Fault(f"race: {text} reads LDS that another wave wrote since the last barrier")
        self.readers[places] |= U32(1 << wave)
        if self.signals >> wave & 1:
            self.next_readers[places] |= U32(1 << wave)
        return self.data[places]

    def store(self, places: np.ndarray, values: np.ndarray, wave: int, text: str = "store"):
        if ((self.writers[places] | self.readers[places]) & U32(~(1 << wave) & 0xFFFFFFFF)).any():
            raise Fault(f"race: {text} writes LDS that another wave used since the last barrier")
        self.writers[places] |= U32(1 << wave)
        if self.signals >> wave & 1:
            self.next_writers[places] |= U32(1 << wave)
        self.data[places] = values
