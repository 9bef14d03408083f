r"""The recurrent scans on a card: kernels for `rnn.py`, `lstm.py`, `gru.py`, `attention_gru.py` and `attention_decoder.py`.

A step needs the state of the step before, and the blocks of a grid cannot wait for each other. So either each step is a
launch or two of its own, which fill the card, and cost the host some tens of us each; or, as here, one block takes some sequences of
the batch through all steps, and the whole scan is one launch:

    block b:                                  sequences b * rows .. b * rows + rows - 1, see `rows_for`
        for t in steps:
            gates = state @ w_hh^T            `product`: all threads of the block together
            the gates, elementwise            thread j the units j, j + threads, ..; the new state
            wait for each other

The block reads w_hh once a step, from the nearest cache that it fits in, and that is the time of a step: by a guess, not yet
measured, 10 us for 1 MB. The few sequences of a block share what it reads. A scan keeps as many multiprocessors busy as it has blocks; where
w_hh has tens of megabytes, a launch a step would be the faster way.

What is saved for the backward pass, and its names, are those of the CPU's loops. The backward kernel runs from the last
step to the first and leaves the gradients at the gates of all steps; the gradient of w_hh is then one product over all of
them. All sums are added in a fixed order: the same bits every time. (All scans stand in this file, since what kernels
call stands in their own file.)
"""
import math

import numpy as np

from ..cuda import SIMULATED, THREADS, cuda, cuda_function, cuda_kernel, threads_for
from ..cuda import exp as cuda_exp
from ..cuda import tanh as cuda_tanh

# A block takes up to ROWS sequences; a thread computes COLUMNS sums of each at a time, and fetches AHEAD rows of the matrix
# before it multiplies; NEAR places of a vector are copied to shared memory at a time. Simulated threads are slow.
ROWS, COLUMNS, AHEAD, NEAR, LANES, GROUP = (2, 2, 2, 4, 8, 2) if SIMULATED else (4, 4, 4, 256, THREADS, 32)
SUMS, READS = ROWS * COLUMNS, AHEAD * COLUMNS
BLOCKS = 1 if SIMULATED else 48  # so many blocks read from the second cache what it can give


def rows_for(b):
    """(sequences a block, blocks) for a batch of b. To share what is read pays as soon as BLOCKS blocks read at once."""
    rows = 1
    while rows < ROWS and b > rows * BLOCKS:
        rows *= 2
    return rows, -(-b // rows)


def lanes_for(columns):
    """Threads of a block for products with so many columns. Where they are few, several threads share a sum."""
    return threads_for(COLUMNS * columns, most=LANES)


# ---------------------------------------------------------------------------------------------------------------------
# what the threads of a block do together. All of them must call it
# ---------------------------------------------------------------------------------------------------------------------
@cuda_function
def product(y, y_first, y_step, x, x_first, x_step, w, w_first, w_step, rows, depth, columns, add, near, parts):
    """y[r, c] = sum_k x[r, k] w[k, c], or y[r, c] += it if `add`, for r < rows, k < depth, c < columns. `first` is the
    place of element (0, 0), `step` that from a row to the next. What others have written before is seen, and so is y after.

    The threads stand in groups of `width`, one column of each COLUMNS * width side by side for each, so that neighbours
    read neighbours of w. Each group takes a share of the depth; `parts` (SUMS, LANES), shared, is where their
    sums meet. x comes by way of `near` (ROWS, NEAR), shared, since every thread wants all of it.
    """
    t, threads, zero = cuda.threadIdx.x, cuda.blockDim.x, x.dtype.type(0)
    width = threads
    while width > 1 and width // 2 * COLUMNS >= columns:
        width //= 2
    groups, group, u = threads // width, t // width, t % width
    sums, read = cuda.local.array(SUMS, x.dtype), cuda.local.array(READS, x.dtype)
    place = cuda.local.array(COLUMNS, np.uint64)  # unsigned: for a signed place Numba asks at each read if it is negative
    one, ahead, down = np.uint64(1), np.uint64(AHEAD), np.uint64(w_step)
    for c in range(u, columns + u, COLUMNS * width):
        for i in range(SUMS):
            sums[i] = zero
        for begin in range(0, depth, NEAR):
            n = NEAR if begin + NEAR < depth else depth - begin
            cuda.syncthreads()  # x is written, and `near` no longer read
            for r in range(ROWS):
                for e in range(t, n, threads):
                    near[r, e] = x[x_first + r * x_step + begin + e] if r < rows else zero
            cuda.syncthreads()
            share = (n + groups - 1) // groups
            start = group * share
            k, end = np.uint64(start), np.uint64(start + share if start + share < n else n)
            for i in range(COLUMNS):  # beyond the edge a thread reads the last column, and adds up what nobody wants
                column = c + i * width if c + i * width < columns else columns - 1
                place[i] = np.uint64(w_first + (begin + start) * w_step + column)
            while k + ahead <= end:
                for m in range(AHEAD):
                    for i in range(COLUMNS):
                        read[m * COLUMNS + i] = w[place[i]]
                        place[i] += down
                for m in range(AHEAD):
                    for r in range(ROWS):
                        for i in range(COLUMNS):
                            sums[i * ROWS + r] += near[r, k] * read[m * COLUMNS + i]
                    k += one
            while k < end:
                for i in range(COLUMNS):
                    for r in range(ROWS):
                        sums[i * ROWS + r] += near[r, k] * w[place[i]]
                    place[i] += down
                k += one
        for i in range(SUMS):
            parts[i, t] = sums[i]
        cuda.syncthreads()
        for i in range(group, SUMS, groups):
            r, column = i % ROWS, c + i // ROWS * width
            if r < rows and column < columns:
                total = zero
                for p in range(u, threads, width):
                    total += parts[i, p]
                at = y_first + r * y_step + column
                y[at] = y[at] + total if add != 0 else total
        cuda.syncthreads()


@cuda_function
def sigmoid(x, one):
    """1 / (1 + e^-x); `one` is 1 in the type of x."""
    return one / (one + cuda_exp(-x))


@cuda_function
def longest(lengths, first, rows):
    """How many steps the longest sequence of the block has: beyond them it need not compute."""
    most = lengths[first]
    for r in range(1, rows):
        most = lengths[first + r] if lengths[first + r] > most else most
    return most


@cuda_function
def rows_here(first, rows, b):
    """The last block may have fewer."""
    return rows if first + rows < b else b - first


# ---------------------------------------------------------------------------------------------------------------------
# the simple network
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64, int64, int64")
def _rnn_cuda(x, h0, w, bias, lengths, hs, h, before, rows, saves, t_end, d, reverse, relu):
    """Block b takes its sequences through all steps; thread j computes the units j, j + threads, ... of each. w is the
    transpose of w_hh (D,D), h the running state, and hs[t] holds the sums until they are complete."""
    near = cuda.shared.array((ROWS, NEAR), x.dtype)
    parts = cuda.shared.array((SUMS, LANES), x.dtype)
    lane, threads, zero, first = cuda.threadIdx.x, cuda.blockDim.x, x.dtype.type(0), cuda.blockIdx.x * rows
    rows = rows_here(first, rows, lengths.size)
    for e in range(first * d + lane, (first + rows) * d, threads):
        h[e] = h0[e]
    cuda.syncthreads()
    most = longest(lengths, first, rows)
    for step in range(t_end):
        t = t_end - 1 - step if reverse != 0 else step
        if t < most:
            product(hs, (first * t_end + t) * d, t_end * d, h, first * d, d, w, 0, d, rows, d, d, 0, near, parts)
        for row in range(first, first + rows):
            alive = t < lengths[row]
            for j in range(lane, d, threads):
                e, at = row * d + j, (row * t_end + t) * d + j
                if saves != 0:
                    before[at] = h[e] if alive else zero
                if alive:
                    s = hs[at] + x[at] + bias[j]
                    if relu != 0:
                        h[e] = s if s > zero or s != s else zero  # a nan stays one
                    else:
                        h[e] = cuda_tanh(s)
                hs[at] = h[e] if alive else zero


@cuda_kernel("T[::1], T[::1], T[::1], int64[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64, int64")
def _rnn_back_cuda(g, g_last, w, lengths, hs, at_x, at_h, rows, t_end, d, reverse, relu):
    """Block and threads as in `_rnn_cuda`, from the last step to the first. at_h, the gradient of the running state,
    begins as that of the last state and ends as that of h0:  at_x[t] = (at_h + g[t]) slope,  at_h = at_x[t] @ w_hh."""
    near = cuda.shared.array((ROWS, NEAR), g.dtype)
    parts = cuda.shared.array((SUMS, LANES), g.dtype)
    lane, threads, first = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * rows
    zero, one = g.dtype.type(0), g.dtype.type(1)
    rows = rows_here(first, rows, lengths.size)
    for e in range(first * d + lane, (first + rows) * d, threads):
        at_h[e] = g_last[e]
    cuda.syncthreads()
    most = longest(lengths, first, rows)
    for step in range(t_end):
        t = step if reverse != 0 else t_end - 1 - step
        for row in range(first, first + rows):
            alive = t < lengths[row]
            for j in range(lane, d, threads):
                e, at = row * d + j, (row * t_end + t) * d + j
                if alive:
                    y = hs[at]
                    if relu != 0:
                        at_x[at] = at_h[e] + g[at] if y > zero else zero
                    else:
                        at_x[at] = (at_h[e] + g[at]) * (one - y * y)
                    at_h[e] = zero  # all of the old state's gradient comes through the product
                else:
                    at_x[at] = zero
        if t < most:
            product(at_h, first * d, d, at_x, (first * t_end + t) * d, t_end * d, w, 0, d, rows, d, d, 1, near, parts)


# ---------------------------------------------------------------------------------------------------------------------
# the long short-term memory: gates i, f, g, o
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], int64[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], int64, "
             "int64, int64, int64, int64")
def _lstm_cuda(x, h0, c0, w, bias, lengths, hs, h, c, gates, before, cells, rows, saves, t_end, d, reverse):
    """Block b takes its sequences through all steps; thread j computes the units j, j + threads, ... of each. w is the
    transpose of w_hh (D,4D); h and c are the running states, and gates[t] holds the sums first. Without a backward pass
    (saves = 0) one step's gates are used again and again."""
    near = cuda.shared.array((ROWS, NEAR), x.dtype)
    parts = cuda.shared.array((SUMS, LANES), x.dtype)
    lane, threads, first = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * rows
    zero, one = x.dtype.type(0), x.dtype.type(1)
    rows, kept = rows_here(first, rows, lengths.size), t_end if saves != 0 else 1
    for e in range(first * d + lane, (first + rows) * d, threads):
        h[e], c[e] = h0[e], c0[e]
    cuda.syncthreads()
    most = longest(lengths, first, rows)
    for step in range(t_end):
        t = t_end - 1 - step if reverse != 0 else step
        s = t if saves != 0 else 0
        if t < most:
            product(gates, (first * kept + s) * 4 * d, kept * 4 * d, h, first * d, d, w, 0, 4 * d, rows, d, 4 * d, 0, near,
                    parts)
        for row in range(first, first + rows):
            place, save, alive = row * t_end + t, row * kept + s, t < lengths[row]
            for j in range(lane, d, threads):
                e, at, to = row * d + j, place * 4 * d + j, save * 4 * d + j
                before[save * d + j] = h[e] if alive else zero
                cells[save * d + j] = c[e]
                if alive:
                    i = sigmoid(gates[to] + x[at] + bias[j], one)
                    f = sigmoid(gates[to + d] + x[at + d] + bias[j + d], one)
                    new = cuda_tanh(gates[to + 2 * d] + x[at + 2 * d] + bias[j + 2 * d])
                    o = sigmoid(gates[to + 3 * d] + x[at + 3 * d] + bias[j + 3 * d], one)
                    gates[to], gates[to + d], gates[to + 2 * d], gates[to + 3 * d] = i, f, new, o
                    c[e] = f * c[e] + i * new
                    h[e] = o * cuda_tanh(c[e])
                hs[place * d + j] = h[e] if alive else zero


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64[::1], T[::1], T[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64")
def _lstm_back_cuda(g, g_h, g_c, w, lengths, gates, cells, at_x, at_h, at_c, rows, t_end, d, reverse):
    """Block and threads as in `_lstm_cuda`, from the last step to the first. at_h and at_c, the gradients of the running
    states, begin as those of the last states and end as those of h0 and c0."""
    near = cuda.shared.array((ROWS, NEAR), g.dtype)
    parts = cuda.shared.array((SUMS, LANES), g.dtype)
    lane, threads, first = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * rows
    zero, one = g.dtype.type(0), g.dtype.type(1)
    rows = rows_here(first, rows, lengths.size)
    for e in range(first * d + lane, (first + rows) * d, threads):
        at_h[e], at_c[e] = g_h[e], g_c[e]
    cuda.syncthreads()
    most = longest(lengths, first, rows)
    for step in range(t_end):
        t = step if reverse != 0 else t_end - 1 - step
        for row in range(first, first + rows):
            place, alive = row * t_end + t, t < lengths[row]
            for j in range(lane, d, threads):
                e, at = row * d + j, place * 4 * d + j
                if alive:
                    i, f, new, o = gates[at], gates[at + d], gates[at + 2 * d], gates[at + 3 * d]
                    old, to_h = cells[place * d + j], at_h[e] + g[place * d + j]
                    y = cuda_tanh(f * old + i * new)
                    to_c = at_c[e] + to_h * o * (one - y * y)
                    at_x[at] = to_c * new * i * (one - i)
                    at_x[at + d] = to_c * old * f * (one - f)
                    at_x[at + 2 * d] = to_c * i * (one - new * new)
                    at_x[at + 3 * d] = to_h * y * o * (one - o)
                    at_c[e], at_h[e] = to_c * f, zero  # all of the old h's gradient comes through the product
                else:
                    at_x[at], at_x[at + d], at_x[at + 2 * d], at_x[at + 3 * d] = zero, zero, zero, zero
        if t < most:
            product(at_h, first * d, d, at_x, (first * t_end + t) * 4 * d, t_end * 4 * d, w, 0, d, rows, 4 * d, d, 1, near,
                    parts)


# ---------------------------------------------------------------------------------------------------------------------
# the gated recurrent unit: gates r, z, n. With attention, alpha around it, also without z: n is always the last one
# ---------------------------------------------------------------------------------------------------------------------
@cuda_kernel("T[::1], T[::1], T[::1], T[::1], T[::1], int64[::1], T[::1], T[::1], T[::1], T[::1], T[::1], int64, int64, "
             "int64, int64, int64, int64, int64, int64, int64")
def _gru_cuda(x, alpha, h0, w, bias, lengths, hs, h, gates, inner, before, rows, saves, t_end, d, n, attends, reverse, after,
              keep):
    """Block b takes its sequences through all steps; thread j computes the units j, j + threads, ... of each. w is the
    transpose of w_hh (D,GD), h the running state, n the place of the gate n. gates[t] holds the sums first. Reset after:
    one product gives all sums. Reset before: r comes first, then r * h is multiplied. Without a backward pass (saves = 0)
    one step's gates are used again and again."""
    near = cuda.shared.array((ROWS, NEAR), x.dtype)
    parts = cuda.shared.array((SUMS, LANES), x.dtype)
    lane, threads, first = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * rows
    zero, one = x.dtype.type(0), x.dtype.type(1)
    rows, kept, wide = rows_here(first, rows, lengths.size), t_end if saves != 0 else 1, (n + 1) * d
    for e in range(first * d + lane, (first + rows) * d, threads):
        h[e] = h0[e]
    cuda.syncthreads()
    most = longest(lengths, first, rows)
    for step in range(t_end):
        t = t_end - 1 - step if reverse != 0 else step
        s = t if saves != 0 else 0
        at_gates = (first * kept + s) * wide
        if t < most:
            columns = wide if after != 0 else n * d
            product(gates, at_gates, kept * wide, h, first * d, d, w, 0, wide, rows, d, columns, 0, near, parts)
        if t < most and after == 0:
            for row in range(first, first + rows):
                place, save = row * t_end + t, row * kept + s
                for j in range(lane, d, threads):
                    r = sigmoid(gates[save * wide + j] + x[place * wide + j] + bias[j], one)
                    gates[save * wide + j], inner[save * d + j] = r, r * h[row * d + j]
            product(gates, at_gates + n * d, kept * wide, inner, (first * kept + s) * d, kept * d, w, n * d, wide, rows, d,
                    d, 0, near, parts)
        for row in range(first, first + rows):
            place, save, alive = row * t_end + t, row * kept + s, t < lengths[row]
            for j in range(lane, d, threads):
                at, to, old = place * wide + j, save * wide + j, h[row * d + j]
                before[save * d + j] = old if alive else zero
                if not alive:
                    inner[save * d + j], hs[place * d + j] = zero, zero
                    continue
                part = gates[to + n * d] + bias[j + n * d]  # of the argument of n: U_n h + b_n or U_n (r * h) + b_n
                if after != 0:
                    r = sigmoid(gates[to] + x[at] + bias[j], one)
                    gates[to], inner[save * d + j], part = r, part, r * part
                new = cuda_tanh(x[at + n * d] + part)
                gates[to + n * d] = new
                if n == 2:
                    z = sigmoid(gates[to + d] + x[at + d] + bias[j + d], one)
                    gates[to + d] = z
                    new += (z if keep != 0 else one - z) * (old - new)
                if attends != 0:
                    new = alpha[place] * new + (one - alpha[place]) * old  # so written, 0 and 1 round nothing
                h[row * d + j], hs[place * d + j] = new, new


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], int64[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], "
             "int64, int64, int64, int64, int64, int64, int64, int64")
def _gru_back_cuda(g, g_last, alpha, w, lengths, gates, inner, before, at_x, at_u, at_alpha, at_h, at_inner, rows, t_end, d, n,
                   attends, reverse, after, keep):
    """Block and threads as in `_gru_cuda`, from the last step to the first. at_h, the gradient of the running state,
    begins as that of the last state and ends as that of h0. at_x[t] are the gradients at what the gates are functions of,
    at_u[t] those at U h + b (reset before: the same array). at_alpha[t] is filled with the D numbers whose sum it is.
    at_inner has room for a step's gradient of r * h.
    """
    near = cuda.shared.array((ROWS, NEAR), g.dtype)
    parts = cuda.shared.array((SUMS, LANES), g.dtype)
    lane, threads, first = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * rows
    zero, one = g.dtype.type(0), g.dtype.type(1)
    rows, wide = rows_here(first, rows, lengths.size), (n + 1) * d
    for e in range(first * d + lane, (first + rows) * d, threads):
        at_h[e] = g_last[e]
    cuda.syncthreads()
    most = longest(lengths, first, rows)
    for step in range(t_end):
        t = step if reverse != 0 else t_end - 1 - step
        at_gates = (first * t_end + t) * wide
        for row in range(first, first + rows):
            place, alive = row * t_end + t, t < lengths[row]
            a = alpha[place] if attends != 0 else one
            for j in range(lane, d, threads):
                e, at = row * d + j, place * wide + j
                if not alive:
                    for k in range(n + 1):
                        at_x[at + k * d], at_u[at + k * d] = zero, zero
                    if attends != 0:
                        at_alpha[place * d + j] = zero
                    continue
                to_h, r, new, old = at_h[e] + g[place * d + j], gates[at], gates[at + n * d], before[place * d + j]
                kept = zero  # of the old state, by the update gate
                if n == 2:
                    z = gates[at + d]
                    kept = z if keep != 0 else one - z
                    to_z = a * to_h * (old - new) * z * (one - z)
                    to_z = to_z if keep != 0 else -to_z
                    at_x[at + d], at_u[at + d] = to_z, to_z
                if attends != 0:
                    at_alpha[place * d + j] = to_h * (one - kept) * (new - old)
                to_n = a * to_h * (one - kept) * (one - new * new)
                at_x[at + n * d] = to_n
                if after != 0:
                    to_r = to_n * inner[place * d + j] * r * (one - r)
                    at_x[at], at_u[at], at_u[at + n * d] = to_r, to_r, to_n * r
                at_h[e] = to_h * (a * kept + (one - a))
        if t < most and after == 0:
            product(at_inner, first * d, d, at_x, at_gates + n * d, t_end * wide, w, n * d * d, d, rows, d, d, 0, near, parts)
            for row in range(first, first + rows):
                place = row * t_end + t
                for j in range(lane, d, threads):
                    if t < lengths[row]:
                        e, r = row * d + j, gates[place * wide + j]
                        at_x[place * wide + j] = at_inner[e] * before[place * d + j] * r * (one - r)
                        at_h[e] += at_inner[e] * r
        if t < most:
            depth = wide if after != 0 else n * d
            product(at_h, first * d, d, at_u, at_gates, t_end * wide, w, 0, d, rows, depth, d, 1, near, parts)


# ---------------------------------------------------------------------------------------------------------------------
# the decoder with attention
# ---------------------------------------------------------------------------------------------------------------------
@cuda_function
def group_sum(shared, value, t, size):
    """The sum of `value` over the `size` neighbouring threads (a power of two) that t is one of, always in the same order."""
    shared[0, t] = value
    cuda.syncthreads()
    step = size // 2
    while step > 0:
        if t % size < step:
            shared[0, t] += shared[0, t + step]
        cuda.syncthreads()
        step //= 2
    total = shared[0, t - t % size]
    cuda.syncthreads()  # everybody has read it before `shared` is used again
    return total


@cuda_function
def block_max(shared, value, t):
    """The largest `value` of all threads of the block; nan if there is one."""
    shared[0, t] = value
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step > 0:
        if t < step:
            high, other = shared[0, t], shared[0, t + step]
            shared[0, t] = high if high > other or high != high else other
        cuda.syncthreads()
        step //= 2
    high = shared[0, 0]
    cuda.syncthreads()
    return high


@cuda_function
def attend(q, k, v, h, mask, alpha, contexts, row, place, s_end, n_a, n_e, shared):
    """alpha[place] over the source words of sentence `row` that the mask allows, and contexts[place]; 0 where it allows
    none. A group of neighbouring threads adds up the score of one word; then thread s takes the words s, s + threads, ..,
    and then the element d, d + threads, .. of the context."""
    t, threads, zero, nothing = cuda.threadIdx.x, cuda.blockDim.x, q.dtype.type(0), q.dtype.type(-math.inf)
    size = GROUP if threads > GROUP else threads
    for begin in range(0, s_end, threads // size):
        s = begin + t // size
        allowed = s < s_end and mask[row * s_end + (s if s < s_end else 0)]
        score = zero
        if allowed:
            for d in range(t % size, n_a, size):
                score += v[d] * cuda_tanh(q[place * n_a + d] + k[(row * s_end + s) * n_a + d])
        score = group_sum(shared, score, t, size)
        if s < s_end and t % size == 0:
            alpha[place * s_end + s] = score if allowed else nothing
    cuda.syncthreads()
    high = nothing
    for s in range(t, s_end, threads):
        e = alpha[place * s_end + s]
        high = high if high > e or high != high else e
    high = block_max(shared, high, t)
    high = zero if high == nothing else high  # -inf - 0, in place of nan
    total = zero
    for s in range(t, s_end, threads):
        e = cuda_exp(alpha[place * s_end + s] - high)
        alpha[place * s_end + s] = e
        total += e
    total = group_sum(shared, total, t, threads)
    scale = q.dtype.type(1) / total if total != zero else zero
    for s in range(t, s_end, threads):
        alpha[place * s_end + s] *= scale
    cuda.syncthreads()
    for d in range(t, n_e, threads):
        total = zero
        for s in range(s_end):
            if mask[row * s_end + s]:
                total += alpha[place * s_end + s] * h[(row * s_end + s) * n_e + d]
        contexts[place * n_e + d] = total


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], boolean[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], "
             "T[::1], T[::1], T[::1], int64, int64, int64, int64, int64, int64, int64, int64, int64")
def _decoder_cuda(x, s0, h, k, mask, w_q, v, w_c, w_hh, before, contexts, state, q, alpha, gates, inner, rows, b, t_end, s_end,
                  n, n_a, n_e, after, keep):
    """Block i takes its sentences through all steps; thread j computes the units j, j + threads, ... of each. w_q, w_c and
    w_hh come transposed; gates[t] holds the sums first. The attention of a block's sentences is computed one after the
    other, by all threads together."""
    near = cuda.shared.array((ROWS, NEAR), x.dtype)
    parts = cuda.shared.array((SUMS, LANES), x.dtype)
    lane, threads, first, one = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * rows, x.dtype.type(1)
    rows = rows_here(first, rows, b)
    for e in range(first * n + lane, (first + rows) * n, threads):
        state[e] = s0[e]
    for t in range(t_end):
        at = first * t_end + t  # of the block's first sentence; the next one's is t_end further
        product(q, at * n_a, t_end * n_a, state, first * n, n, w_q, 0, n_a, rows, n, n_a, 0, near, parts)
        for row in range(first, first + rows):
            attend(q, k, v, h, mask, alpha, contexts, row, row * t_end + t, s_end, n_a, n_e, parts)
        product(gates, at * 3 * n, t_end * 3 * n, contexts, at * n_e, t_end * n_e, w_c, 0, 3 * n, rows, n_e, 3 * n, 0, near,
                parts)
        product(gates, at * 3 * n, t_end * 3 * n, state, first * n, n, w_hh, 0, 3 * n, rows, n, 2 * n, 1, near, parts)
        for row in range(first, first + rows):
            place = row * t_end + t
            for j in range(lane, n, threads):
                e, to = place * n + j, place * 3 * n + j
                r = sigmoid(gates[to] + x[to], one)
                gates[to], gates[to + n] = r, sigmoid(gates[to + n] + x[to + n], one)
                before[e], inner[e] = state[row * n + j], r * state[row * n + j]
        if after != 0:
            product(inner, at * n, t_end * n, before, at * n, t_end * n, w_hh, 2 * n, 3 * n, rows, n, n, 0, near, parts)
        else:
            product(gates, at * 3 * n + 2 * n, t_end * 3 * n, inner, at * n, t_end * n, w_hh, 2 * n, 3 * n, rows, n, n, 1,
                    near, parts)
        for row in range(first, first + rows):
            place = row * t_end + t
            for j in range(lane, n, threads):
                e, to = row * n + j, place * 3 * n + j
                part = gates[to] * inner[place * n + j] if after != 0 else x.dtype.type(0)
                new, z = cuda_tanh(x[to + 2 * n] + (gates[to + 2 * n] + part)), gates[to + n]
                gates[to + 2 * n] = new
                state[e] = new + (z if keep != 0 else one - z) * (state[e] - new)


@cuda_function
def attend_back(q, k, v, h, mask, alpha, at_c, slopes, at_q, at_k, at_v, row, place, s_end, n_a, n_e, shared):
    """With slope_s = <at_c, h_s> and the mean of the slopes under alpha, the gradient of a score is e = alpha_s (slope_s -
    mean); behind it y = tanh(q + k_s) passes e v (1 - y^2) to q and to k_s, and e y to v. A group of threads computes a
    slope; then a thread takes one place d of q and every so many words, and the threads of one d meet in shared memory."""
    t, threads, zero, one = cuda.threadIdx.x, cuda.blockDim.x, q.dtype.type(0), q.dtype.type(1)
    size = GROUP if threads > GROUP else threads
    for begin in range(0, s_end, threads // size):
        s = begin + t // size
        slope = zero
        if s < s_end and mask[row * s_end + (s if s < s_end else 0)]:
            for d in range(t % size, n_e, size):
                slope += at_c[place * n_e + d] * h[(row * s_end + s) * n_e + d]
        slope = group_sum(shared, slope, t, size)
        if s < s_end and t % size == 0:
            slopes[row * s_end + s] = slope
    cuda.syncthreads()
    mean = zero
    for s in range(t, s_end, threads):
        mean += alpha[place * s_end + s] * slopes[row * s_end + s]
    mean = group_sum(shared, mean, t, threads)
    width = threads
    while width > 1 and width // 2 >= n_a:
        width //= 2
    for begin in range(0, n_a, width):
        d, to_q, to_v = begin + t % width, zero, zero
        if d < n_a:
            for s in range(t // width, s_end, threads // width):
                if mask[row * s_end + s]:
                    e = alpha[place * s_end + s] * (slopes[row * s_end + s] - mean)
                    y = cuda_tanh(q[place * n_a + d] + k[(row * s_end + s) * n_a + d])
                    p = e * v[d] * (one - y * y)
                    at_k[(row * s_end + s) * n_a + d] += p
                    to_q += p
                    to_v += e * y
        shared[0, t], shared[1, t] = to_q, to_v
        cuda.syncthreads()
        if t < width and d < n_a:
            for other in range(t + width, threads, width):
                to_q += shared[0, other]
                to_v += shared[1, other]
            at_q[place * n_a + d] = to_q
            at_v[row * n_a + d] += to_v
        cuda.syncthreads()


@cuda_kernel("T[::1], T[::1], T[::1], T[::1], boolean[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], "
             "T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], T[::1], int64, int64, int64, int64, "
             "int64, int64, int64, int64, int64")
def _decoder_back_cuda(g, g_c, h, k, mask, w_q, v, w_c, w_hh, before, q, alpha, gates, inner, at_s, at_x, at_u, at_c, at_q,
                       at_k, at_v, at_inner, slopes, rows, b, t_end, s_end, n, n_a, n_e, after, keep):
    """Block and threads as in `_decoder_cuda`, from the last step to the first. at_s, the gradient of the running state, is
    0 at the end and leaves as that of s0; at_c (B,T,E) becomes that of the contexts, from outside (g_c) and by the gates;
    at_x, at_u and at_inner as in `_gru_back_cuda`. Each thread adds to places of at_k and at_v that are its own."""
    near = cuda.shared.array((ROWS, NEAR), g.dtype)
    parts = cuda.shared.array((SUMS, LANES), g.dtype)
    lane, threads, first = cuda.threadIdx.x, cuda.blockDim.x, cuda.blockIdx.x * rows
    zero, one = g.dtype.type(0), g.dtype.type(1)
    rows = rows_here(first, rows, b)
    for e in range(first * n + lane, (first + rows) * n, threads):
        at_s[e] = zero
    for e in range(first * s_end * n_a + lane, (first + rows) * s_end * n_a, threads):
        at_k[e] = zero
    for e in range(first * n_a + lane, (first + rows) * n_a, threads):
        at_v[e] = zero
    cuda.syncthreads()
    for t in range(t_end - 1, -1, -1):
        at = first * t_end + t
        for row in range(first, first + rows):
            place = row * t_end + t
            for d in range(lane, n_e, threads):
                at_c[place * n_e + d] = g_c[place * n_e + d]
            for j in range(lane, n, threads):
                e, to = row * n + j, place * 3 * n + j
                r, z, new, old = gates[to], gates[to + n], gates[to + 2 * n], before[place * n + j]
                kept = z if keep != 0 else one - z
                to_z = at_s[e] * (old - new) * z * (one - z)
                to_z = to_z if keep != 0 else -to_z
                to_n = at_s[e] * (one - kept) * (one - new * new)
                at_x[to + n], at_u[to + n], at_x[to + 2 * n] = to_z, to_z, to_n
                if after != 0:
                    to_r = to_n * inner[place * n + j] * r * (one - r)
                    at_x[to], at_u[to], at_u[to + 2 * n] = to_r, to_r, to_n * r
                at_s[e] = at_s[e] * kept + g[place * n + j]
        if after == 0:
            product(at_inner, first * n, n, at_x, at * 3 * n + 2 * n, t_end * 3 * n, w_hh, 2 * n * n, n, rows, n, n, 0, near,
                    parts)
            for row in range(first, first + rows):
                place = row * t_end + t
                for j in range(lane, n, threads):
                    e, r = row * n + j, gates[place * 3 * n + j]
                    at_x[place * 3 * n + j] = at_inner[e] * before[place * n + j] * r * (one - r)
                    at_s[e] += at_inner[e] * r
        depth = 3 * n if after != 0 else 2 * n
        product(at_s, first * n, n, at_u, at * 3 * n, t_end * 3 * n, w_hh, 0, n, rows, depth, n, 1, near, parts)
        product(at_c, at * n_e, t_end * n_e, at_x, at * 3 * n, t_end * 3 * n, w_c, 0, n_e, rows, 3 * n, n_e, 1, near, parts)
        for row in range(first, first + rows):
            attend_back(q, k, v, h, mask, alpha, at_c, slopes, at_q, at_k, at_v, row, row * t_end + t, s_end, n_a, n_e, parts)
        product(at_s, first * n, n, at_q, at * n_a, t_end * n_a, w_q, 0, n, rows, n_a, n, 1, near, parts)
