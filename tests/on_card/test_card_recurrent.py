"""The recurrent scans on a card: RNN, GRU, LSTM and the attention GRU. (Second gradients: `test_engine.py`, on their samples.)"""
import numpy as np
import pytest
from agreement import TIGHT

from tinyattn import Tensor, cuda, grad, no_grad
from tinyattn.ops.attention_gru import AttentionGRUScan
from tinyattn.ops.gru import GRUScan
from tinyattn.ops.lstm import LSTMScan
from tinyattn.ops.recurrent_cuda import ROWS, rows_for
from tinyattn.ops.rnn import RNNScan

CONVENTIONS = [(r, u) for r in ("after", "before") for u in ("keep", "write")]
SCANS = {"tanh": lambda reverse: RNNScan(reverse), "relu": lambda reverse: RNNScan(reverse, "relu"),
         "lstm": lambda reverse: LSTMScan(reverse)}
SCANS |= {f"gru-{r}-{u}": lambda reverse, r=r, u=u: GRUScan(reverse, r, u) for r, u in CONVENTIONS}
SCANS |= {f"replace-{r}": lambda reverse, r=r: AttentionGRUScan("replace", r, None, reverse) for r in ("after", "before")}
SCANS |= {f"blend-{r}-{u}": lambda reverse, r=r, u=u: AttentionGRUScan("blend", r, u, reverse) for r, u in CONVENTIONS}


@pytest.fixture
def launched(monkeypatch):
    """The names of the kernels of scans that were launched."""
    names = []

    def launch(kernel, grid, arguments, before=cuda.CudaKernel._launch):
        names.append(kernel.name)
        before(kernel, grid, arguments)

    monkeypatch.setattr(cuda.CudaKernel, "_launch", launch)
    return names


def inputs_of(op, b, t, d, lengths=None, dtype="float64", seed=0):
    """Arrays for every input of a scan; the lengths last."""
    rng = np.random.default_rng(seed)
    g = op.gates
    x, states = rng.normal(size=(b, t, g * d)), [rng.normal(size=(b, d)) for _ in range(1 + (op.name == "lstm"))]
    alpha = [rng.uniform(size=(b, t))] if op.name == "attention_gru" else []
    arrays = [x, *alpha, *states, rng.normal(size=(g * d, d)) / np.sqrt(d), rng.normal(size=g * d)]
    return [a.astype(dtype) for a in arrays] + [None if lengths is None else np.array(lengths)]


def run(op, arrays, device, wanted=None):
    """Outputs, and gradients of the inputs (or of those with the numbers `wanted`), by loops."""
    xs = [None if a is None else Tensor(a, device=device, requires_grad=a.dtype.kind == "f" and (wanted is None or i in wanted))
          for i, a in enumerate(arrays)]
    outs = op(*xs)
    rng = np.random.default_rng(9)
    g = [Tensor(rng.normal(size=out.shape).astype(out.dtype), device=device) for out in outs]
    ends = [x for x in xs if x is not None and x.requires_grad]
    grads = grad(list(outs), ends, g)
    assert all(t.device == device for t in (*outs, *grads))
    return [t.numpy() for t in (*outs, *grads)]


def close(found, expected, dtype="float64", **tolerance):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, **(tolerance or TIGHT[dtype]))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("kind", SCANS)
def test_scan_with_padding_agrees(kind, reverse, launched):
    """A last block of fewer sequences than the others, an empty sequence, more units than one pass of the block computes
    and more than are near at a time."""
    arrays = inputs_of(SCANS[kind](reverse), 3, 3, 5, [2, 3, 0])
    here = run(SCANS[kind](reverse), arrays, "cpu")
    assert not launched
    close(run(SCANS[kind](reverse), arrays, "cuda"), here)
    scans = [name for name in launched if name.startswith("recurrent.")]
    name = "recurrent." + SCANS[kind](reverse).name.replace("attention_", "")
    assert scans == [name, name + "_back"]


@pytest.mark.parametrize("kind", ["relu", "lstm", "gru-before-write", "gru-after-keep", "blend-before-keep", "replace-after"])
def test_scan_in_float32(kind):
    arrays = inputs_of(SCANS[kind](False), 2, 3, 4, [3, 2], "float32")
    close(run(SCANS[kind](False), arrays, "cuda"), run(SCANS[kind](False), arrays, "cpu"), rtol=2e-5, atol=2e-6)
    gold = run(SCANS[kind](False), [a.astype("float64") if a.dtype.kind == "f" else a for a in arrays], "cpu")
    far = [max(np.abs(a - b).max() for a, b in zip(run(SCANS[kind](False), arrays, where), gold, strict=True))
           for where in ("cuda", "cpu")]
    assert far[0] <= 3 * far[1] + 4 * np.finfo("f").eps


@pytest.mark.parametrize("kind", SCANS)
def test_sizes_at_the_edge(kind):
    for b, t, d, lengths in [(1, 1, 1, None), (1, 2, 1, [1]), (0, 2, 2, None), (2, 0, 2, None), (2, 0, 1, [0, 0]),
                             (2, 2, 2, [0, 0])]:
        arrays = inputs_of(SCANS[kind](False), b, t, d, lengths)
        close(run(SCANS[kind](False), arrays, "cuda"), run(SCANS[kind](False), arrays, "cpu"))
        arrays[-2] = None  # no bias
        close(run(SCANS[kind](True), arrays, "cuda"), run(SCANS[kind](True), arrays, "cpu"))


@pytest.mark.parametrize("kind", ["tanh", "lstm", "gru-after-keep", "gru-before-write", "blend-after-write"])
def test_each_gradient_alone(kind):
    op = SCANS[kind](False)
    arrays = inputs_of(op, 2, 2, 2, [2, 1])
    whole, outputs = run(op, arrays, "cpu"), 3 if kind == "lstm" else 2
    for i in range(len(arrays) - 1):
        found = run(SCANS[kind](False), arrays, "cuda", {i})
        close(found, [*whole[:outputs], whole[outputs + i]])


@pytest.mark.parametrize("kind", SCANS)
def test_without_a_backward_pass(kind):
    """Then one step's gates are used again and again."""
    arrays = inputs_of(SCANS[kind](True), 3, 3, 3, [3, 1, 2])
    with no_grad():
        here, there = [SCANS[kind](True)(*[Tensor(a, device=device) for a in arrays]) for device in ("cpu", "cuda")]
    close([t.numpy() for t in there], [t.numpy() for t in here])


@pytest.mark.parametrize("kind", ["lstm", "gru-after-keep", "gru-before-keep"])
def test_a_batch_is_each_sequence_alone_to_the_bit(kind):
    """Whatever stands in the same block, and twice the same; padding is not even read."""
    lengths = [3, 1, 2, 0, 3]
    arrays = inputs_of(SCANS[kind](False), 5, 3, 3, lengths)
    for row, n in enumerate(lengths):
        arrays[0][row, n:] = np.nan
    found, again = [run(SCANS[kind](False), arrays, "cuda") for _ in range(2)]
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
        assert np.isfinite(a).all()
    outs = 1 + (kind == "lstm") + 1  # as many as x and the states are
    assert rows_for(5) == (ROWS, -(-5 // ROWS))
    for row in (0, 4):
        alone = [a[row:row + 1] for a in arrays[:outs]] + arrays[outs:-1] + [np.array(lengths[row:row + 1])]
        for one, whole in zip(SCANS[kind](False)(*[Tensor(a, device="cuda") for a in alone]), found[:outs], strict=True):
            np.testing.assert_array_equal(one.numpy(), whole[row:row + 1])
    for row, n in enumerate(lengths):
        assert (found[0][row, n:] == 0).all() and (found[outs][row, n:] == 0).all()


def test_a_nan_stays_in_its_sequence():
    arrays = inputs_of(GRUScan(), 2, 2, 3)
    arrays[0][0, 0, 1] = np.nan
    hs, _ = GRUScan()(*[None if a is None else Tensor(a, device="cuda") for a in arrays])
    assert np.isnan(hs.numpy()[0, 1]).all() and np.isfinite(hs.numpy()[1]).all()
    arrays = inputs_of(RNNScan(), 1, 1, 2)
    arrays[0][0, 0, 0] = np.nan
    hs, _ = RNNScan(nonlinearity="relu")(*[None if a is None else Tensor(a, device="cuda") for a in arrays])
    assert np.isnan(hs.numpy()[0, 0, 0])


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_attention_of_1_is_the_gru_and_of_0_changes_nothing(convention):
    arrays = inputs_of(GRUScan(), 2, 3, 3)
    x, *rest = [None if a is None else Tensor(a, device="cuda") for a in arrays]
    alpha = Tensor(np.ones((2, 3)), device="cuda")
    whole = GRUScan(False, *convention)(x, *rest)
    for a, b in zip(AttentionGRUScan("blend", *convention)(x, alpha, *rest), whole, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    _, h = AttentionGRUScan("blend", *convention)(x, alpha * 0, *rest)
    np.testing.assert_array_equal(h.numpy(), arrays[1])


def test_a_scan_is_one_launch_whatever_its_length(launched):
    counts = []
    for t in (1, 4):
        run(GRUScan(), inputs_of(GRUScan(), 2, t, 2, [t, 1]), "cuda")
        counts.append(len(launched))
        launched.clear()
    assert counts[0] == counts[1]


def test_lengths_of_another_integer_type():
    arrays = inputs_of(LSTMScan(), 2, 3, 2, [1, 3])
    expected = run(LSTMScan(), arrays, "cpu")
    arrays[-1] = arrays[-1].astype(np.int32)
    close(run(LSTMScan(), arrays, "cuda"), expected)


def test_errors_read_as_on_the_cpu():
    arrays = inputs_of(GRUScan(), 2, 3, 2, [3, 1])
    def fail(error, what, i, value, op=GRUScan, arrays=arrays):
        changed = [*arrays[:i], value, *arrays[i + 1:]]
        with pytest.raises(error, match=what):
            op()(*[Tensor(a, device="cuda") for a in changed])
    fail(ValueError, "gru: expected lengths between 0 and T = 3, got -1 to 4", 4, np.array([4, -1]))
    fail(ValueError, r"gru: expected x \(B,T,3D\).*got x \(2, 3, 6\), h0 \(2, 3\)", 1, np.ones((2, 3)))
    fail(TypeError, "gru: expected integer lengths", 4, np.ones(2))
    fail(TypeError, "gru: expected floats of one type, got x float64, h0 float32", 1, np.ones((2, 2), "f"))
    arrays = inputs_of(AttentionGRUScan(), 2, 3, 2, [3, 1])
    fail(ValueError, r"attention_gru: expected alpha \(B,T\) = \(2, 3\)", 1, np.ones((2, 2)), AttentionGRUScan, arrays)


def test_as_many_blocks_as_pay():
    for b in range(40):
        rows, blocks = rows_for(b)
        assert rows * blocks >= b and rows * (blocks - 1) < max(b, 1) and rows <= ROWS
    assert rows_for(0)[1] == 0 and rows_for(1) == (1, 1)
