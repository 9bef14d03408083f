"""The loops of `attention.py`: attention over tiles of 64 queries x 256 keys, forward and backward.

What they take, beside the arrays that they fill. All leading axes are merged into one, B long:

    q (.,T,D), k (.,S,D), v (.,S,E)   less than B where shared: matrix number offset(b, plan[0], plan[1, 2, 3]).
                                      k and v may be longer than S = plan[6, 2], the rest of a cache, to be filled later
    mask (.,S), bias (.,S)            rows; for query t number offset(b, plan[0], plan[4, 5]) + t * plan[6, 0 or 1].
                                      (0, 0) stands for none
    scale, causal                     query t sees only the keys before t + S - T + 1
"""
import numpy as np
from numba import prange

from ..device import kernel
from .shared import TILE_BYTES, exp_below, first_row, offset, order, pack_panel, product, row_dot, row_sum, unorder

QUERIES, ROWS, KEYS = 256, 64, 256  # a unit of parallel work has up to QUERIES queries, a tile ROWS x KEYS scores
CHUNKS = 32  # parts that the units are cut into for the threads; each has room of its own for tiles
FEW, SHORT = 2, 20  # queries, keys: see `_plainly`
UNITS = 8    # a backward pass over fewer matrices than this shares the keys of one out to several units


def parts_of(B, S):
    """How many units share the keys of one matrix in the backward pass."""
    return min(max(-(-UNITS // B), 1), -(-S // KEYS))


# ---------------------------------------------------------------------------------------------------------------------
# forward
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def forward(q, k, v, mask, bias, plan, scale, causal, o, high, begin, end):
    """Units begin to end, each one block of queries of one matrix b. For each tile of keys (its k^T packed once a
    block), for each tile of queries:

        e = scale q k^T + bias, -inf where forbidden
        m = the largest e of each row so far:  what was summed with another m before is multiplied by e^(old m - m)
        p = e^(e - m):                         o += p v,   total += the sum of p over the row

    In the end o / total is the mean of the values. m and log total are left in `high` (2,B,T). Their sum is the
    log-sum-exp, but one float32 could not hold it well enough: an error of 1e-5 in 100 is one of 1e-5 in every weight.
    """
    T, S, blocks = q.shape[1], plan[6, 2], -(-q.shape[1] // QUERIES)
    factor = _factor(mask, bias, scale)
    panel, room = _panels(k), _room(q)
    for unit in range(begin, end):
        b, i = unit // blocks, unit % blocks
        i = i // 2 if i % 2 == 0 else blocks - 1 - i // 2  # causal: late blocks see more, so mix late and early
        first, last = i * QUERIES, min((i + 1) * QUERIES, T)
        q_b, k_b, v_b = q[offset(b, plan[0], plan[1])], k[offset(b, plan[0], plan[2])], v[offset(b, plan[0], plan[3])]
        m, total, o_b = high[0, b], high[1, b], o[b]
        m[first:last] = -np.inf
        total[first:last] = 0
        for start in range(0, _seen(last - 1, 0, S, T, S, causal), KEYS):
            keys = min(KEYS, S - start)
            k_tile = k_b[start:start + keys]
            _pack(panel, k_tile, T, S)
            for t in range(first, last, ROWS):
                rows = min(ROWS, last - t)
                p = _tile(room, rows, _seen(t + rows - 1, start, keys, T, S, causal))
                if _scores(p, q_b, k_tile, panel, mask, bias, plan, scale, causal, b, t, start, T, S):
                    started = _shift(p, factor, m[t:t + rows], total[t:t + rows], o_b[t:t + rows])
                    _add_sums(p, total[t:t + rows])
                    product(o_b[t:t + rows], p, v_b[start:start + p.shape[1]], started)
        _finish(o_b[first:last], m[first:last], total[first:last])


@kernel(parallel=True)
def forward_chunks(q, k, v, mask, bias, plan, scale, causal, o, high):
    units = len(o) * -(-q.shape[1] // QUERIES)
    for c in prange(CHUNKS):
        begin, end = first_row(c, CHUNKS, units), first_row(c + 1, CHUNKS, units)
        forward(q, k, v, mask, bias, plan, scale, causal, o, high, begin, end)


@kernel
def _shift(p, factor, m, total, o):
    """e becomes e^(e - m), row by row; m, total and o are brought up to date. `factor` is not yet in e, nor in m.

    Returns whether o holds anything yet: where no row of the tile has seen a key before, it is not even zero.
    """
    zero, lowest = p.dtype.type(0), p.dtype.type(-np.inf)
    rows, n, started = p.shape[0], p.shape[1], False
    for r in range(rows):
        started = started or total[r] != zero
    for r in range(rows):
        best = order(lowest)  # the largest as an int. A nan may hide from this, and is met again in the sum
        for j in range(n):
            x = order(p[r, j])
            best = x if x > best else best  # noqa: FURB136
        new = unorder(best)
        new = new if new > m[r] else m[r]  # noqa: FURB136
        shift = new if new > lowest else zero  # -inf - 0, in place of nan
        for j in range(n):
            p[r, j] = (p[r, j] - shift) * factor  # in this order the largest is exactly 0
        if new != m[r] and started:
            rescale = exp_below((m[r] - shift) * factor)
            total[r] *= rescale
            for j in range(o.shape[1]):
                o[r, j] *= rescale
        m[r] = new
    _exp(p)
    return started


@kernel
def _add_sums(p, total):
    for r in range(p.shape[0]):
        total[r] += row_sum(p, r)


@kernel
def _finish(o, m, total):
    for t in range(len(o)):
        if total[t] == 0:  # it sees nothing. m is -inf
            o[t] = 0
        else:
            inverse = o.dtype.type(1) / total[t]
            for j in range(o.shape[1]):
                o[t, j] *= inverse
            total[t] = np.log(total[t])


# ---------------------------------------------------------------------------------------------------------------------
# backward
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def backward(q, k, v, mask, bias, plan, scale, causal, o, high, g, dq, dk, dv, begin, end):
    """Units begin to end, each one part of the keys of one matrix b: every `parts`-th tile of keys. For each of them
    (its k^T and v^T packed), for each tile of queries, with delta_t = <g_t, o_t>:

        p = e^(e - m) / total   dp = g v^T        ds = p (dp - delta) scale
        dv += p^T g             dk += ds^T q      dq += ds k

    The last queries come first: under a causal mask they see the most keys, so no later one writes to a row of dk or dv
    that was not written before. dq (B,parts,T,D) is added up over the parts by the caller.
    """
    T, S, parts = q.shape[1], plan[6, 2], dq.shape[1]
    factor, delta, p_room, ds_room = _factor(mask, bias, scale), np.empty(T, q.dtype), _room(q), _room(q)
    k_panel, v_panel = _panels(k), _panels(v)
    for unit in range(begin, end):
        b, part = unit // parts, unit % parts
        q_b, k_b, v_b = q[offset(b, plan[0], plan[1])], k[offset(b, plan[0], plan[2])], v[offset(b, plan[0], plan[3])]
        if S > KEYS:
            _deltas(g[b], o[b], delta, S)
        for start in range(part * KEYS, S, parts * KEYS):
            keys, filled = min(KEYS, S - start), 0
            dk_b, dv_b = dk[b, start:start + keys], dv[b, start:start + keys]
            k_tile, v_tile = k_b[start:start + keys], v_b[start:start + keys]
            _pack(k_panel, k_tile, T, S)
            _pack(v_panel, v_tile, T, S)
            for t in range((T - 1) // ROWS * ROWS, -1, -ROWS):
                rows, again = min(ROWS, T - t), start > part * KEYS
                n = _seen(t + rows - 1, start, keys, T, S, causal)
                p, ds = _tile(p_room, rows, n), _tile(ds_room, rows, n)
                g_t, dq_t = g[b, t:t + rows], dq[b, part, t:t + rows]
                if _scores(p, q_b, k_tile, k_panel, mask, bias, plan, scale, causal, b, t, start, T, S):
                    _times_turned(ds, g_t, v_tile, v_panel, T, S)
                    _weights(p, factor, high[0, b, t:t + rows], high[1, b, t:t + rows])
                    _slopes(ds, p, delta[t:t + rows], S <= KEYS, scale)
                    product(dv_b[:n], p.T, g_t, filled > 0)
                    product(dk_b[:n], ds.T, q_b[t:t + rows], filled > 0)
                    product(dq_t, ds, k_tile[:n], again)
                    filled = max(filled, n)
                elif not again:
                    dq_t[:] = 0
            dk_b[filled:] = 0
            dv_b[filled:] = 0


@kernel(parallel=True)
def backward_chunks(q, k, v, mask, bias, plan, scale, causal, o, high, g, dq, dk, dv):
    units = len(o) * dq.shape[1]
    for c in prange(CHUNKS):
        begin, end = first_row(c, CHUNKS, units), first_row(c + 1, CHUNKS, units)
        backward(q, k, v, mask, bias, plan, scale, causal, o, high, g, dq, dk, dv, begin, end)


@kernel
def _deltas(g, o, delta, S):
    """delta_t = <g_t, o_t>, each summed in the order in which `_times_turned` sums <g_t, v_s>.

    Where one key takes all the weight, o_t is its v_s and dp - delta is 0; in another order it would be rounding noise.
    """
    T, zero = len(g), g.dtype.type(0)
    few = T if _plainly(T, S) else 0
    for t in range(few):
        _dots(delta[t:t + 1].reshape(1, 1), g[t:t + 1], o[t:t + 1])
    for t in range(few, T, 4):  # four at a time, or each addition would wait for the one before
        t1, t2, t3 = min(t + 1, T - 1), min(t + 2, T - 1), min(t + 3, T - 1)
        d0, d1, d2, d3 = zero, zero, zero, zero
        for j in range(g.shape[1]):
            d0 += g[t, j] * o[t, j]
            d1 += g[t1, j] * o[t1, j]
            d2 += g[t2, j] * o[t2, j]
            d3 += g[t3, j] * o[t3, j]
        delta[t], delta[t1], delta[t2], delta[t3] = d0, d1, d2, d3


@kernel
def _weights(p, factor, m, log_total):
    """e becomes p = e^(e - m - log total), 0 in a row that sees nothing."""
    rows, n = p.shape[0], p.shape[1]
    for r in range(rows):
        shift = m[r] if m[r] > -np.inf else p.dtype.type(0)
        for j in range(n):
            p[r, j] = (p[r, j] - shift) * factor - log_total[r]
    _exp(p)


@kernel
def _slopes(ds, p, delta, whole, scale):
    """dp becomes ds = p (dp - delta) scale. If the tile holds all keys, delta is sum_s p dp, with less rounding."""
    rows, n = p.shape[0], p.shape[1]
    for r in range(rows):
        d = row_dot(p, ds, r) if whole else delta[r]
        for j in range(n):
            ds[r, j] = p[r, j] * (ds[r, j] - d) * scale


# ---------------------------------------------------------------------------------------------------------------------
# a tile of scores
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _seen(t, start, keys, T, S, causal):
    """How many of the keys start to start + keys the query t may see under the causal rule: they are the first ones."""
    return max(min(keys, t + S - T + 1 - start), 0) if causal else keys


@kernel
def _factor(mask, bias, scale):
    """What is still to be multiplied into what `_scores` gives: a positive scale, if nothing else is done to it."""
    return scale if len(mask) == 0 and len(bias) == 0 and scale > 0 else bias.dtype.type(1)


@kernel
def _scores(e, q, k, panel, mask, bias, plan, scale, causal, b, t, start, T, S):
    """e[r, j] = scale <q_{t+r}, k_{start+j}> + bias, -inf where forbidden; without the scale where `_factor` has it.

    Returns False, and computes nothing, if no row may see any of these keys.
    """
    rows, n = e.shape[0], e.shape[1]
    mask_at, bias_at = offset(b, plan[0], plan[4]), offset(b, plan[0], plan[5])
    mask_step, bias_step = plan[6, 0], plan[6, 1]
    if n == 0 or (len(mask) > 0 and _nothing(mask, mask_at + t * mask_step, rows if mask_step > 0 else 1, start, n)):
        return False
    _times_turned(e, q[t:t + rows], k, panel, T, S)
    explicit = _factor(mask, bias, scale) != scale
    nothing = e.dtype.type(-np.inf)
    for r in range(rows):
        if explicit:
            for j in range(n):
                e[r, j] *= scale
        if len(bias) > 0:
            _add(e, r, bias[bias_at + (t + r) * bias_step, start:start + n])
        if len(mask) > 0:
            _choose(e, r, mask[mask_at + (t + r) * mask_step, start:start + n])
        for j in range(_seen(t + r, start, n, T, S, causal), n):
            e[r, j] = nothing
    return True


@kernel
def _nothing(mask, row, rows, start, n):
    """Does the mask forbid keys start to start + n in these rows altogether?"""
    for r in range(row, row + rows):
        for j in range(start, start + n):
            if mask[r, j]:
                return False
    return True


@kernel
def _add(e, r, row):
    for j in range(len(row)):
        e[r, j] += row[j]


@kernel
def _choose(e, r, row):
    nothing = e.dtype.type(-np.inf)
    for j in range(len(row)):
        e[r, j] = e[r, j] if row[j] else nothing


@kernel
def _exp(p):
    """e^p in place, for p <= 0. A tile lies together in memory: as one long row it fills the vector lanes."""
    row = p.reshape(-1)
    for j in range(len(row)):
        row[j] = exp_below(row[j])


# ---------------------------------------------------------------------------------------------------------------------
# room for tiles
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def _room(like):
    """Room for one tile, beginning on a cache line."""
    line = 64 // like.itemsize
    room = np.empty(ROWS * KEYS + line, like.dtype)
    skip = (-room.ctypes.data) % 64 // like.itemsize
    return room[skip:skip + ROWS * KEYS]


@kernel
def _tile(room, rows, n):
    """A matrix (rows, n) there."""
    return room[:rows * n].reshape(rows, n)


@kernel
def _panels(k):
    """Room for KEYS rows of k (.,S,D), turned and packed: (panels * D, width of a tile), aligned likewise."""
    width = TILE_BYTES // k.itemsize
    rows = -(-KEYS // width) * k.shape[2]
    room = np.empty(rows * width + 64 // k.itemsize, k.dtype)
    skip = (-room.ctypes.data) % 64 // k.itemsize
    return room[skip:skip + rows * width].reshape(rows, width)[::1, ::1]


@kernel
def _plainly(T, S):
    """Are there so few queries or keys that k is read as it stands? To turn it would take longer than to use it."""
    return T <= FEW or S <= SHORT


@kernel
def _pack(panel, k, T, S):
    """k^T, for k (keys, D), as `product` likes it best, unless there are too few queries or keys."""
    turned = k.T[::1, ::1]
    for p in range(0 if _plainly(T, S) else -(-k.shape[0] // panel.shape[1])):
        pack_panel(panel, turned, p)


@kernel
def _times_turned(c, a, b, panel, T, S):
    """c = a b^T over the first rows of b (keys, D), `panel` being what `_pack` made of it."""
    if _plainly(T, S):
        _dots(c, a, b)
    else:
        product(c, a, panel, False)


@kernel(reduces=True)
def _dots(c, a, b):
    """c[i, j] = sum_d a[i, d] b[j, d]"""
    for i in range(c.shape[0]):
        for j in range(c.shape[1]):
            total = c.dtype.type(0)
            for d in range(a.shape[1]):
                total += a[i, d] * b[j, d]
            c[i, j] = total
