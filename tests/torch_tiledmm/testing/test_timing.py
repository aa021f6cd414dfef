"""What is called how often; never how long it takes."""

import pytest

from torch_tiledmm.testing import timing


@pytest.fixture
def events(monkeypatch):
    """Calls and rests in order, on a clock that nothing else moves; events.call(name, seconds) is an arm."""

    class Events(list):
        now = 0.0

        def call(self, name, seconds):
            self.append(name)
            self.now += seconds

    events = Events()
    monkeypatch.setattr(timing.time, "perf_counter", lambda: events.now)
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: events.call("rest", seconds))
    return events


def test_arms_take_turns_of_a_tenth_of_a_second_after_a_rest_and_the_first_one_rotates(events):
    arms = {name: lambda name=name: events.call(name, 1 / 64) for name in "abc"}
    timings = timing.time_arms(arms, seconds=0.5)
    assert list(timings) == ["a", "b", "c"]
    turns = events[3 * 5 :]  # a first call and four to find the number of calls
    expected = [event for name in "abcbcacab" for event in ("rest", *name * 7)]  # two calls are untimed
    assert turns == expected
    assert all(result.num_samples == 15 for result in timings.values())


def test_rests_are_no_part_of_the_time_and_one_arm_has_none(events):
    timing.time_arms({name: lambda name=name: events.call(name, 1 / 64) for name in "ab"}, seconds=1.5)
    assert events.count("rest") == 2 * 7  # turns of 0.11 s
    events.clear()
    timing.time_arms({"a": lambda: events.call("a", 1 / 64)}, seconds=0.1)
    assert events == ["a"] * (5 + 3 * 7)


def test_a_slow_arm_is_sampled_once(events):
    arms = {"slow": lambda: events.call("slow", 10.0), "fast": lambda: events.call("fast", 0.01)}
    timings = timing.time_arms(arms, seconds=0.5)
    assert events.count("slow") == 2
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
