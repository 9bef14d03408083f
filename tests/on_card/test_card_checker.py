"""The checkers of `tinyattn/cuda/checker.py` find what they are there for, and nothing where nothing is wrong."""
import numpy as np
import pytest

from tinyattn import Tensor, device
from tinyattn.cuda import SIMULATED, checker, cuda, cuda_kernel, flat

pytestmark = pytest.mark.skipif(not SIMULATED, reason="watches the simulator; on a card there is compute-sanitizer")
A, B = "float64[::1]", "float64[::1], float64[::1]"


@cuda_kernel(B, ("float64",))
def turned_round(x, out):
    """Right: shared memory, a barrier, an element of another thread."""
    buffer = cuda.shared.array(8, x.dtype)
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    buffer[t] = x[cuda.blockIdx.x * n + t]
    cuda.syncthreads()
    out[cuda.blockIdx.x * n + t] = buffer[n - 1 - t]


@cuda_kernel(B, ("float64",))
def without_a_barrier(x, out):
    buffer = cuda.shared.array(8, x.dtype)
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    buffer[t] = x[cuda.blockIdx.x * n + t]
    out[cuda.blockIdx.x * n + t] = buffer[n - 1 - t]
    cuda.syncthreads()


@cuda_kernel(B, ("float64",))
def overwritten_too_soon(x, out):
    """A loop over tiles that lacks the second barrier."""
    buffer = cuda.shared.array(8, x.dtype)
    t, n = cuda.threadIdx.x, cuda.blockDim.x
    total = 0.0
    for _ in range(2):
        buffer[t] = x[t]
        cuda.syncthreads()
        total += buffer[n - 1 - t]
    out[t] = total


@cuda_kernel(B, ("float64",))
def never_written(x, out):
    buffer = cuda.shared.array(8, x.dtype)
    t = cuda.threadIdx.x
    if t > 0:
        buffer[t] = x[t]
    cuda.syncthreads()
    out[t] = buffer[0]


@cuda_kernel(B, ("float64",))
def before_the_first(x, out):
    i = cuda.grid(1)
    out[i] = x[i - 1]


@cuda_kernel(B, ("float64",))
def past_the_end(x, out):
    i = cuda.grid(1)
    out[i] = x[i + 1]


@cuda_kernel(B, ("float64",))
def added_by_all(x, out):
    out[0] += x[cuda.grid(1)]


@cuda_kernel(A, ("float64",))
def neighbour_of_another_block(x):
    i = cuda.grid(1)
    x[i] = x[(i + cuda.blockDim.x) % x.size]


@cuda_kernel(B, ("float64",))
def written_by_two(x, out):
    out[cuda.threadIdx.x // 2] = x[cuda.threadIdx.x]


@cuda_kernel(B, ("float64",))
def left_before_the_barrier(x, out):
    t = cuda.threadIdx.x
    if t < 2:
        cuda.syncthreads()
    out[cuda.grid(1)] = x[cuda.grid(1)]


def run(kernel):
    x = flat(device.to_device(np.arange(8.0), "cuda"))
    if kernel is neighbour_of_another_block:
        kernel[2, 4](x)
        return x
    out = device.to_device(np.zeros(8), "cuda")
    kernel[2, 4](x, out)
    return out


def test_what_is_right_passes():
    with checker.watch() as found:
        assert run(turned_round).copy_to_host().tolist() == [3, 2, 1, 0, 7, 6, 5, 4]
        assert run(turned_round).copy_to_host().tolist() == [3, 2, 1, 0, 7, 6, 5, 4]
    assert found == {"test_card_checker.turned_round": 2}


@pytest.mark.parametrize("kernel, says", [
    (without_a_barrier, "a shared array.*reads an element that no thread|no barrier"),
    (overwritten_too_soon, "thread . (reads|writes) what thread .* (reads|writes), with no barrier"),
    (never_written, "reads an element that no thread of its block has written"),
    (before_the_first, r"before_the_first: x\[-1\]: outside of its shape \(8,\)"),
    (past_the_end, r"past_the_end: x\[8\]: outside of its shape \(8,\)"),
    (added_by_all, r"added_by_all: out\[0\]: thread 1 .* thread 0 writes, with no barrier"),
    (neighbour_of_another_block, "block 1 .* block 0 (reads|writes) in the same launch"),
    (written_by_two, "thread 1 writes what thread 0 writes"),
    (left_before_the_barrier, "a barrier is reached by 2 of 4 threads of block 0")], ids=lambda x: getattr(x, "name", ""))
def test_what_is_wrong_is_found(kernel, says):
    with pytest.raises(AssertionError, match=says) as found, checker.watch():
        run(kernel)
    if found.type is checker.Fault:
        assert str(found.value).startswith(f"{kernel.name}: ")
    run_after = Tensor(np.ones(3), device="cuda") * 2  # nothing is left behind
    assert run_after.tolist() == [2, 2, 2]


def test_the_simulator_alone_lets_most_of_it_pass():
    for kernel in (before_the_first, added_by_all, overwritten_too_soon, written_by_two, left_before_the_barrier):
        run(kernel)


# ---------------------------------------------------------------------------------------------------------------------
# counting
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], int64", ("float32", "float64"))
def every(x, out, step):
    """Neighbouring threads read elements that are `step` apart, and write neighbours."""
    i = cuda.grid(1)
    out[i] = x[i * step % x.size]


@cuda_kernel("float64[:, ::1], float64[::1]", ("float64",))
def summed(x, out):
    """A block a row; only thread 0 writes."""
    row = cuda.shared.array(8, x.dtype)
    t = cuda.threadIdx.x
    row[t] = x[cuda.blockIdx.x, t]
    cuda.syncthreads()
    if t == 0:
        total = 0.0
        for j in range(8):
            total += row[j]
        out[cuda.blockIdx.x] = total
    cuda.syncthreads()


def test_what_is_counted():
    with checker.count() as found:
        run(turned_round)
        run(turned_round)
        run(added_by_all)
    one = found["test_card_checker.turned_round"]
    assert (one.launches, one.blocks, one.threads, one.barriers) == (2, 4, 16, 4)
    assert one.reads == {"x": 16} and one.writes == {"out": 16} and (one.shared_reads, one.shared_writes) == (16, 16)
    assert one.pieces == {"x": 4, "out": 4}  # 4 elements of 8 bytes are one piece
    other = found["test_card_checker.added_by_all"]
    assert other.reads == {"x": 8, "out": 8} and other.writes == {"out": 8} and other.barriers == 0
    x, out = (device.to_device(np.arange(n, dtype=float).reshape(s), "cuda") for n, s in ((24, (3, 8)), (3, 3)))
    with checker.count() as found:
        summed[3, 8](x, out)
    one = found["test_card_checker.summed"]
    assert out.copy_to_host().tolist() == [28, 92, 156]
    assert (one.barriers, one.shared_reads, one.shared_writes) == (6, 24, 24)
    assert one.pieces == {"x": 6, "out": 3} and one.reads == {"x": 24} and one.writes == {"out": 3}


@pytest.mark.parametrize("dtype, step, pieces", [
    (np.float32, 0, 1), (np.float32, 1, 4), (np.float32, 2, 8), (np.float32, 8, 32), (np.float32, 33, 32),
    (np.float64, 1, 8), (np.float64, 4, 32)])
def test_what_a_warp_asks_for_at_once(dtype, step, pieces):
    x, out = (flat(device.to_device(np.arange(n, dtype=dtype), "cuda")) for n in (4096, 64))
    with checker.count() as found:
        every[1, 64](x, out, step)
    one = found["test_card_checker.every"]
    assert one.pieces == {"x": 2 * pieces, "out": 64 * out.dtype.itemsize // 32} and one.reads["x"] == 64
    assert out.copy_to_host().tolist() == [i * step % 4096 for i in range(64)]


def test_counting_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), checker.count():
        raise ZeroDivisionError
    with checker.count() as found:
        (Tensor(np.ones(3), device="cuda") * 2).tolist()
    before = {name: one.launches for name, one in found.items()}
    run(turned_round)
    assert before == {name: one.launches for name, one in found.items()} and "test_card_checker.turned_round" not in found
