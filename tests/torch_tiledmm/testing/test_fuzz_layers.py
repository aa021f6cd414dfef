"""The fuzzer of layers: it passes, and finds what is planted."""

import pytest

from torch_tiledmm.testing import fuzz_layers


def test_results_have_the_bits_of_plain_products():
    for number in range(60):
        fuzz_layers.check_layer(fuzz_layers.draw_layer(1, number))


def test_one_case_runs_again(capsys):
    assert fuzz_layers.main(["--seed", "1", "--case", "7"]) == 0
    assert capsys.readouterr().out == "0 failures\n"


@pytest.mark.parametrize("name", ["gated_linear", "grouped_matmul", "gated_grouped_matmul"])
def test_a_bias_that_is_read_as_another_one_is_found(name, monkeypatch, capsys):
    product = getattr(fuzz_layers, name)

    def planted(*given, **options):
        names = [own for own in ("bias", "gate_bias", "up_bias") if options.get(own) is not None]
        options |= {own: options[own].flip(-1) for own in names}
        return product(*given[:3], *(own if own is None else own.flip(-1) for own in given[3:]), **options)

    monkeypatch.setattr(fuzz_layers, name, planted)
    assert fuzz_layers.main(["--cases", "40", "--seed", "2"]) == 1
    assert "bits differ" in capsys.readouterr().out
