"""Switching the mode: blocks that overlap, other threads, what is decorated, what torch.compile meets.

Planted bugs that these tests caught: a block that ends and restores what it found; settings of Inductor for one thread;
keys of Inductor's caches that stay in other threads; a step back that fails and ends all others; a generator whose
body runs without the mode; a switch that Dynamo traces.
"""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch

import torch_tiledmm
from torch_tiledmm import batch_invariant_ops, enabled, is_enabled, mode

BACKENDS = torch.backends.cuda


@pytest.fixture(autouse=True)
def off_afterwards():
    yield
    torch_tiledmm.disable()


def kernel() -> str:
    """What computes a product."""
    torch.ops.tiledmm._clear_mode_counts()
    torch.randn(7, 33) @ torch.randn(33, 21)
    found = torch_tiledmm.report().served
    return found[0].by.split(":")[0] if found else "torch"


def test_blocks_that_overlap():
    with enabled(cover=["products"]):
        auto = kernel()
    assert "naive" != auto != "torch"
    first, second = enabled("naive", cover=["products"]), enabled(cover=["products"])
    first.__enter__()
    assert kernel() == "naive"
    second.__enter__()
    first.__exit__()
    assert kernel() == auto
    second.__exit__()
    assert kernel() == "torch" and not is_enabled()


def test_blocks_by_other_names_overlap():
    first, second = (batch_invariant_ops.set_batch_invariant_mode() for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert is_enabled()
    second.__exit__(None, None, None)
    assert not is_enabled()
    with enabled("naive", cover=["products"]), batch_invariant_ops.set_batch_invariant_mode(False):
        with batch_invariant_ops.set_batch_invariant_mode():
            assert kernel() != "torch"
        assert kernel() == "torch"
    with enabled("naive", cover=["products"]), batch_invariant_ops.set_batch_invariant_mode():
        assert kernel() == "naive"


def test_enable_and_disable_in_blocks_that_overlap():
    torch_tiledmm.enable("naive", cover=["products"])
    first, second, third = (enabled(cover=["products"]) for _ in range(3))
    first.__enter__()
    second.__enter__()
    torch_tiledmm.disable()
    first.__exit__()
    assert not is_enabled()
    third.__enter__()
    second.__exit__()
    assert is_enabled()
    third.__exit__()
    assert kernel() == "naive"


def test_blocks_of_two_tasks():
    seen = []

    async def task(before: int, inside: int) -> None:
        for _ in range(before):
            await asyncio.sleep(0)
        with enabled(cover=["products"]):
            for _ in range(inside):
                await asyncio.sleep(0)
                seen.append(is_enabled())

    async def both() -> None:
        await asyncio.gather(task(0, 3), task(1, 5))

    asyncio.run(both())
    assert seen == [True] * 8 and not is_enabled()


def test_other_threads():
    """They find every setting changed, and the copies of which Inductor's caches have their keys; they may switch."""
    from torch._inductor import config, decomposition, lowering

    def found() -> tuple:
        mm, mv = torch.ops.aten.mm.default, torch.ops.aten.mv.default
        values = config.shape_padding, config.max_autotune, config.max_autotune_gemm, config.cpp.weight_prepack
        tables = mm in decomposition.decompositions, mv in lowering.lowerings
        flags = BACKENDS.flash_sdp_enabled(), BACKENDS.cudnn_sdp_enabled(), BACKENDS.math_sdp_enabled()
        return *values, *tables, *flags, config.get_hash()

    with ThreadPoolExecutor(1) as pool, config.patch(max_autotune=True):

        def there(function):
            return pool.submit(function).result()

        def here_and_there() -> tuple[tuple, tuple]:
            return found(), there(found)

        before = here_and_there()
        assert before[0][1] and not before[1][1]  # what the program has set in one thread
        for is_here in (True, False):
            torch_tiledmm.enable() if is_here else there(torch_tiledmm.enable)
            for inside, own_before in zip(here_and_there(), before, strict=True):
                assert inside[:-1] == (False, False, False, False, False, True, False, False, True)
                assert inside[-1] != own_before[-1]
            there(torch_tiledmm.disable) if is_here else torch_tiledmm.disable()
            assert not is_enabled() and here_and_there() == before


def test_settings_of_torch_2_11():
    """It keeps them as they are, for all threads, and one word for whether a copy is old."""
    entry = SimpleNamespace(user_override="own")
    config = SimpleNamespace(_config={"padding": entry}, _is_dirty=False)
    with ExitStack() as undo:
        mode._set_in_all_threads(config, {"padding": False}, undo)
        assert entry.user_override is False and config._is_dirty
        config._is_dirty = False
    assert entry.user_override == "own" and config._is_dirty


def test_a_step_back_that_fails(monkeypatch):
    from torch._inductor import config

    def switch(is_on: bool, own=BACKENDS.enable_cudnn_sdp) -> None:
        own(is_on)
        if is_on:
            raise ZeroDivisionError

    monkeypatch.setattr(BACKENDS, "enable_cudnn_sdp", switch)
    torch_tiledmm.enable()
    with pytest.raises(ZeroDivisionError):
        torch_tiledmm.disable()
    assert not is_enabled() and kernel() == "torch" and BACKENDS.flash_sdp_enabled() and config.shape_padding


def test_a_step_that_fails(monkeypatch):
    def switch(is_on: bool) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(BACKENDS, "enable_cudnn_sdp", switch)
    with pytest.raises(ZeroDivisionError):
        torch_tiledmm.enable()
    assert not is_enabled() and kernel() == "torch" and BACKENDS.flash_sdp_enabled()


def test_what_is_decorated():
    @enabled(cover=["products"])
    def generator(x: int):
        """Of itself."""
        assert is_enabled()
        x = yield x
        assert is_enabled()
        yield x
        return 5

    @enabled(cover=["products"])
    async def coroutine(x: int) -> tuple[int, bool]:
        await asyncio.sleep(0)
        return x, is_enabled()

    own = generator(3)
    assert not is_enabled() and generator.__doc__ == "Of itself."
    assert next(own) == 3 and own.send(4) == 4
    with pytest.raises(StopIteration) as end:
        next(own)
    assert end.value.value == 5 and not is_enabled()
    assert asyncio.run(coroutine(3)) == (3, True) and not is_enabled()
    with pytest.raises(TypeError, match="async generator"):

        @enabled()
        async def async_generator():
            yield 3


@pytest.mark.filterwarnings("ignore:torch_tiledmm.enable")
def test_compiled_functions_that_switch():
    """They have the products of eager code under the mode, from the first call on. Nothing of the mode is compiled."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list as compiled_as

    def by_calls(x: torch.Tensor) -> torch.Tensor:
        torch_tiledmm.enable(cover=["products"])
        y = x @ x
        torch_tiledmm.disable()
        return y + x @ x

    def by_block(x: torch.Tensor) -> torch.Tensor:
        with enabled(cover=["products"]):
            y = x @ x
        return y + x @ x

    @enabled(cover=["products"])
    def decorated(x: torch.Tensor) -> tuple:
        return x @ x, torch_tiledmm.report()

    x = torch.randn(33, 33)
    for function in (by_calls, by_block, decorated):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="eager")
        for _ in range(2):
            compiled(x)
            assert not is_enabled()
            assert [(calls.operator, calls.count) for calls in torch_tiledmm.report().served] == [("mm", 1)]
        assert not compiled_as(mode._report.__code__) and not compiled_as(mode._apply.__code__)
    with pytest.warns(UserWarning, match="compiled before") as caught, enabled(cover=["products"]):
        pass
    assert caught[0].filename == __file__
