"""What is called how often; never how long it takes."""

import pytest

from torch_tiledmm.testing import timing


def test_arms_take_turns_and_the_first_one_rotates(monkeypatch):
    calls = []
    arms = {name: lambda name=name: calls.append(name) for name in "abc"}
    monkeypatch.setattr(timing, "_SAMPLE_SECONDS", 0.0)  # one call per sample
    timings = timing.time_arms(arms, seconds=0.0001)
    assert list(timings) == ["a", "b", "c"]
    rounds = calls[3 * 5 :]  # a first call and four to find the number of calls
    assert rounds[:12] == ["a", "a", "b", "b", "c", "c", "b", "b", "c", "c", "a", "a"]
    assert all(5 <= result.num_samples <= 100 for result in timings.values())


def test_a_slow_arm_is_sampled_once(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])
    calls = {"slow": 0, "fast": 0}

    def call(name, seconds):
        calls[name] += 1
        clock[0] += seconds

    arms = {"slow": lambda: call("slow", 10.0), "fast": lambda: call("fast", 0.01)}
    timings = timing.time_arms(arms, seconds=0.5)
    assert calls["slow"] == 2
    assert timings["slow"].num_samples == 1
    assert timings["slow"].median == 10
    assert timings["fast"].median == pytest.approx(0.01)
    assert timings["fast"].num_samples > 5


def test_summary_is_median_minimum_and_half_the_quartile_distance():
    result = timing._summarize([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (result.median, result.minimum, result.num_samples) == (3.0, 1.0, 5)
    assert result.spread == pytest.approx((4.5 - 1.5) / 2 / 3)
    assert result.to_dict() == {"median_us": 3e6, "minimum_us": 1e6, "spread": 0.5, "num_samples": 5}


def test_bandwidth_is_that_of_the_smallest_set_that_holds_the_bytes():
    rates = {100: 50.0, 1000: 20.0, 10000: 5.0}
    assert [timing.bandwidth_of(n, rates) for n in (1, 100, 101, 9999, 10**6)] == [50, 50, 20, 5, 5]


def test_nearer_memory_is_never_slower():
    rates = timing.copy_bandwidths()
    assert list(rates) == sorted(rates)
    assert list(rates.values()) == sorted(rates.values(), reverse=True)
    assert min(rates.values()) > 0
