"""The forgetful RNN: reach against closed forms and finite differences; what training changes; the command."""
import json

import numpy as np
import pytest

import tinyattn as ta
from tinyattn import InputError, Tensor, forgetting
from tinyattn.autograd import no_grad
from tinyattn.cli import main
from tinyattn.forgetting import Recall, measure, reach, sequences

F64 = np.float64


def net(cell="rnn", attention=None, width=3, seed=2):
    ta.manual_seed(seed)
    return Recall(cell, attention, width).to(F64)


def everywhere(length, samples=1, seed=0):
    ids, _ = sequences(np.random.default_rng(seed), length * samples, length)
    return ids, np.repeat(np.arange(length), samples)


def put(model, **values):
    for name, value in values.items():
        with no_grad():
            getattr(model.rnn, name).copy_(np.broadcast_to(value, getattr(model.rnn, name).shape).copy())


@pytest.mark.parametrize("factor", [1.0, 0.5, 1.25])
def test_a_linear_rnn_in_closed_form(factor):
    """relu of positive numbers with U = factor I: the Jacobian of a step is factor I, so reach(d) = factor^d."""
    model = net()
    model.rnn.nonlinearity = "relu"
    put(model, weight_ih_l0=0.1, weight_hh_l0=factor * np.eye(3), bias_ih_l0=5.0, bias_hh_l0=0.0)
    np.testing.assert_allclose(reach(model, *everywhere(6)), factor ** np.arange(6), rtol=1e-12)


def test_a_gru_whose_gate_keeps_everything():
    """z = 1 keeps the old state: reach 1 at every distance."""
    model = net("gru")
    put(model, weight_ih_l0=0.0, weight_hh_l0=0.0, bias_ih_l0=np.repeat([0.0, 50.0, 0.0], 3), bias_hh_l0=0.0)
    np.testing.assert_allclose(reach(model, *everywhere(5)), np.ones(5), rtol=1e-12)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_reach_by_finite_differences(cell):
    """Change h_t (and the LSTM's cell) by a little, run on from there, and look at the last state."""
    model, length = net(cell), 4
    ids, place = everywhere(length)
    found = reach(model, ids, place)
    with no_grad():
        for b, t in enumerate(place):
            x = model.inputs(ids[b:b + 1], place[b:b + 1])
            _, state = model.rnn(x[:, :t + 1])
            kinds = state if cell == "lstm" else (state,)

            def last(flat, x=x, t=t, kinds=kinds):
                parts = [Tensor(part.reshape(1, 1, -1)) for part in np.split(flat, len(kinds))]
                if t + 1 == length:
                    return flat
                _, end = model.rnn(x[:, t + 1:], parts[0] if len(parts) == 1 else tuple(parts))
                return np.concatenate([e.numpy().ravel() for e in (end if cell == "lstm" else (end,))])

            flat = np.concatenate([k.numpy().ravel() for k in kinds])
            J = [(last(flat + e) - last(flat - e)) / 2e-6 for e in np.eye(len(flat)) * 1e-6]
            np.testing.assert_allclose(found[length - 1 - t], np.linalg.norm(J) / np.sqrt(len(flat)), rtol=1e-6)


def test_through_attention_every_state_is_one_step_away():
    """With equal scores each of T states has weight 1/T, and reach 1/T."""
    model = net("gru", "additive")
    with no_grad():
        model.attention["v_a"].copy_(np.zeros(3))
    put(model, weight_hh_l0=0.0, bias_ih_l0=np.repeat([0.0, -50.0, 0.0], 3))     # h_t forgets h_{t-1} completely
    found = reach(model, *everywhere(5))
    np.testing.assert_allclose(found, np.full(5, 1 / 5), rtol=1e-9)


def test_what_training_changes():
    """Attention learns to bring the marked symbol to the end from anywhere; the plain RNN does not."""
    rnn, attention = measure(["rnn", "attention"], length=24, width=16, steps=250, seed=1, samples=1)
    assert rnn.before[23] < 1e-4 * rnn.before[1] and attention.before[23] > 0.2 * attention.before[1]
    assert attention.accuracy > 0.9 and rnn.accuracy < 0.6
    assert attention.after[18:].mean() > 0.5 and rnn.after[18:].mean() < 0.1
    assert [high for high, _ in rnn.right] == [5, 11, 17, 23] and rnn.right[0][1] > rnn.right[-1][1] + 0.1
    again, = measure(["rnn"], length=24, width=16, steps=250, seed=1, samples=1)
    np.testing.assert_array_equal(again.after, rnn.after)


def test_bad_input():
    with pytest.raises(InputError, match="got 'transformer'"):
        measure(["transformer"])
    with pytest.raises(InputError, match="length of at least 4, got 3"):
        measure(["rnn"], length=3)


def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    call = ["forget", "--length", "8", "--width", "4", "--steps", "5", "--cells", "rnn,attention"]
    assert main([*call, "-o", "f.svg"]) == 0
    out = capsys.readouterr().out
    assert "rnn" in out and "recalled" in out and "<svg" in (tmp_path / "f.svg").read_text()
    assert main([*call, "--json", "-o", "g.png"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [f["network"] for f in found] == ["rnn", "attention"] and len(found[0]["trained_reach"]) == 8
    assert main(["forget", "--cells", "rnm"]) == 2 and "got 'rnm'" in capsys.readouterr().err
    assert main(["forget", "-o", "f.bmp"]) == 2 and "f.bmp" in capsys.readouterr().err


def test_the_picture_shows_every_curve():
    pytest.importorskip("matplotlib")
    from viz import reach as draw
    curves = measure(["rnn", "gru"], length=6, width=3, steps=0)
    fig = draw(curves)
    assert [line.get_label() for line in fig.axes[0].get_lines()] == ["rnn", "gru"] and len(fig.axes) == 1
    np.testing.assert_allclose(fig.axes[0].get_lines()[0].get_ydata(), curves[0].before)
    assert [ax.get_ylabel() for ax in fig.axes] == ["|dh(T) / dh(T - d)|"]
    with pytest.raises(InputError, match="at least one curve"):
        draw([])
    assert forgetting.LAYERS.keys() == {"rnn", "gru", "lstm"}


def test_a_line_ends_where_it_falls_below_the_floor():
    pytest.importorskip("matplotlib")
    from viz import reach as draw
    fading, steady = 10.0 ** -np.arange(0, 12), np.full(12, 0.3)
    fig = draw([forgetting.Curve("rnn", fading, steady, [], 0.5, 0.0),
                forgetting.Curve("attention", steady, steady, [], 1.0, 0.0)])
    rnn, attention = (line.get_ydata() for line in fig.axes[0].get_lines())
    np.testing.assert_allclose(rnn, [*fading[:9], np.nan, np.nan, np.nan])
    np.testing.assert_array_equal(attention, steady)
    assert fig.axes[0].get_ylim()[0] == 1e-8
    assert [[t.get_text() for t in ax.get_legend().get_texts()] for ax in fig.axes] == [
        ["rnn", "attention: |dc / dh(T - d)|"], ["rnn, 50 % recalled", "attention, 100 % recalled"]]
