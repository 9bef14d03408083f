"""How time and memory grow with the length: fitted slopes, peaks of memory by length, the command and its picture."""
import json

import numpy as np
import pytest

from tinyattn import InputError, device, growth
from tinyattn.cli import main
from tinyattn.growth import Curve, lengths_up_to, measure, peak, slope


def test_slopes_of_numbers_that_are_known():
    lengths = [64, 128, 256, 512, 1024]
    assert slope(lengths, [3.0 * T for T in lengths]) == pytest.approx(1)
    assert slope(lengths, [T * T / 7 for T in lengths]) == pytest.approx(2)
    assert slope(lengths, [5.0] * 5) == pytest.approx(0)
    # T + 1e9 at small lengths: the longer half alone counts, three of five
    assert slope(lengths, [1e9, 1e9, 256**2, 512**2, 1024**2]) == pytest.approx(2)
    wavy = [T**1.5 * w for T, w in zip(lengths, (1, 1, 1.1, 0.9, 1.1))]
    assert slope(lengths, wavy) == pytest.approx(np.polyfit(np.log(lengths[-3:]), np.log(wavy[-3:]), 1)[0])
    curve = Curve("x", lengths, [T / 1e3 for T in lengths], [T * T for T in lengths])
    assert curve.slopes == pytest.approx((1, 2)) and growth.line(curve).startswith("x ")


def test_lengths_and_names():
    assert lengths_up_to(256) == [64, 128, 256] and lengths_up_to(1000)[-1] == 512 and lengths_up_to(8192)[-1] == 8192
    with pytest.raises(InputError, match="at least 256, got 255"):
        lengths_up_to(255)
    with pytest.raises(InputError, match="expected one of rnn, gru, .*got 'grv'"):
        measure(["grv"])


@pytest.mark.compiled
@pytest.mark.parametrize("name, lengths", [("rnn", (2048, 4096, 8192)), ("gru", (2048, 4096, 8192)), ("lstm", (2048, 4096, 8192)),
                                           ("attention", (2048, 4096, 8192))])
def test_memory_is_linear_in_the_length(name, lengths):
    """Twice the length takes twice as much: at 8,192 a T x T array alone would be 256 MB."""
    peaks = [peak(*growth.WORKLOADS[name](T)) for T in lengths]
    assert all(1.6 < b / a < 2.4 for a, b in zip(peaks, peaks[1:])), peaks
    assert peaks[-1] < 8192 * 8192 * 4 / 8


@pytest.mark.compiled
def test_memory_that_grows_as_the_square_is_seen_as_such():
    """The readable twin of attention holds T x T arrays: what is linear above is not so by the way of counting."""
    peaks = [peak(*growth.WORKLOADS["attention-twin"](T)) for T in (256, 512)]
    assert peaks[0] > 256 * 256 * 4 and 3.4 < peaks[1] / peaks[0] < 4.4


@pytest.mark.compiled
def test_additive_attention_holds_scores_and_never_their_sums():
    """T^2 numbers a few times over: a (T, T, D) array would be 32 of them."""
    T = 1024
    assert peak(*growth.WORKLOADS["additive"](T)) < 8 * T * T * 4 < growth.WIDTH * T * T * 4


@pytest.mark.compiled
def test_a_curve_ends_before_it_takes_too_much(monkeypatch):
    monkeypatch.setattr(growth, "MOST", 2**20)
    monkeypatch.setattr(growth, "SECONDS", 0)
    seen = []
    curve, = measure(["attention-twin"], [16, 32, 64, 128, 4096], seen.append)
    assert 2 <= len(curve.lengths) < 5 and curve.lengths == [16, 32, 64, 128][:len(curve.lengths)] and len(seen) == 1


def test_threads_are_as_before():
    threads = device.get_num_threads()
    measure(["rnn"], [16, 32, 64])
    assert device.get_num_threads() == threads


@pytest.mark.compiled
def test_the_command(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(growth, "SECONDS", 0.01)
    assert main(["growth", "rnn", "attention", "--longest", "256", "--json"]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert [c["name"] for c in found] == ["rnn", "attention"] and found[0]["lengths"] == [64, 128, 256]
    assert found[0]["memory_grows_as"] == pytest.approx(1, abs=0.2) and "growth.svg" in captured.err
    assert all(len(c["seconds"]) == len(c["bytes"]) == 3 and min(c["seconds"]) > 0 for c in found)
    assert main(["growth", "rnn", "--longest", "256", "-o", "g.png"]) == 0
    assert capsys.readouterr().out.startswith("rnn ") and (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    assert main(["growth", "grv"]) == 2 and "got 'grv'" in capsys.readouterr().err
    assert main(["growth", "--longest", "9"]) == 2 and main(["growth", "-o", "g.bmp"]) == 2


def test_the_picture_says_the_slopes():
    pytest.importorskip("matplotlib")
    from viz import growth as draw
    lengths = [64, 128, 256, 512]
    fig = draw([Curve("line", lengths, [T / 1e3 for T in lengths], [2.0**20 * T for T in lengths]),
                Curve("square", lengths, [T * T / 1e6 for T in lengths], [T**3 for T in lengths])])
    time, memory = fig.axes
    texts = [[t.get_text() for t in axes.get_legend().get_texts()] for axes in (time, memory)]
    assert texts[0][:2] == ["line: T^1.00", "square: T^2.00"] and texts[1][:2] == ["line: T^1.00", "square: T^3.00"]
    np.testing.assert_allclose(time.lines[0].get_ydata(), lengths)         # milliseconds
    np.testing.assert_allclose(memory.lines[0].get_ydata(), lengths)       # megabytes
    with pytest.raises(InputError, match="at least one curve"):
        draw([])
