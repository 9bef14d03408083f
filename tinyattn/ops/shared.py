"""Scalar functions that the loops of many kernels call. The cache of compiled kernels is keyed by this file's hash,
so everything that kernels of several files share stands here (see `device.cache_folder`).

Numba calls the C library for `math.exp`, one element at a time: 2 to 12 ns each. A polynomial is plain arithmetic, so the
compiler computes 8 or 16 elements at once: 0.2 ns each. float32 takes the polynomials, float64 the exact functions.
"""
import math

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features as host_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from ..device import JIT, VALUES, kernel

_OPTIONS = {"error_model": "numpy", "fastmath": VALUES}


def exp32(x):
    """e^x in float32, about 1e-7 relative; exact at +-inf and nan.

    x = n ln2 + r with |r| <= ln2 / 2 (ln2 in two parts, so that r is exact); e^r by a polynomial of degree 6;
    2^n by writing n into the exponent bits, in two halves so that n = 128 and the subnormals survive.
    n is rounded by adding 1.5 * 2^23: floats of that size are whole numbers, and n stands in the last bits of the sum.
    """
    c = np.float32(-104.0) if x < np.float32(-104.0) else x
    c = np.float32(89.0) if c > np.float32(89.0) else c
    t = c * np.float32(1.44269504) + np.float32(12582912.0)
    n = t - np.float32(12582912.0)
    r = c - n * np.float32(0.693359375)
    r = r - n * np.float32(-2.12194440e-4)
    p = np.float32(1.38145964e-3)
    p = p * r + np.float32(8.36871709e-3)
    p = p * r + np.float32(4.16683881e-2)
    p = p * r + np.float32(1.66665206e-1)
    p = p * r + np.float32(4.99999934e-1)
    p = (p * r) * r + r + np.float32(1.0)  # nan if x is, and so is its product with whatever the bits of a nan give
    k = np.int32(np.float32(t).view(np.int32) - np.int32(0x4B400000))
    half = k >> np.int32(1)
    up = np.int32((half + np.int32(127)) << np.int32(23)).view(np.float32)
    rest = np.int32((k - half + np.int32(127)) << np.int32(23)).view(np.float32)
    return p * up * rest


def tanh32(x):
    """tanh in float32, about 2e-7 relative: an odd polynomial over an even one, clamped where tanh rounds to +-1."""
    c = np.float32(-8.5) if x < np.float32(-8.5) else x
    c = np.float32(8.5) if c > np.float32(8.5) else c
    s = c * c
    p = np.float32(-2.76076847742355e-16)
    p = p * s + np.float32(2.00018790482477e-13)
    p = p * s + np.float32(-8.60467152213735e-11)
    p = p * s + np.float32(5.12229709037114e-08)
    p = p * s + np.float32(1.48572235717979e-05)
    p = p * s + np.float32(6.37261928875436e-04)
    p = p * s + np.float32(4.89352455891786e-03)
    q = np.float32(1.19825839466702e-06)
    q = q * s + np.float32(1.18534705686654e-04)
    q = q * s + np.float32(2.26843463243900e-03)
    q = q * s + np.float32(4.89352518554385e-03)
    y = c * p / q
    y = np.float32(1.0) if x > np.float32(8.5) else y
    return np.float32(-1.0) if x < np.float32(-8.5) else y


def exp(x):
    """e^x for kernels. This body is what runs without the JIT; the overload below is what Numba compiles."""
    if isinstance(x, np.float32):
        return exp32(x)
    return np.exp(x)


def tanh(x):
    """tanh x for kernels."""
    return tanh32(x) if isinstance(x, np.float32) else math.tanh(x)


def sigmoid(x):
    """1 / (1 + e^-x) for kernels. e^-x overflows to inf for very negative x, and 1 / inf is the right 0."""
    one = x.dtype.type(1) if hasattr(x, "dtype") else 1.0
    return one / (one + exp(-x))


if JIT:
    exp32 = kernel(exp32)
    tanh32 = kernel(tanh32)

    @overload(exp, jit_options=_OPTIONS)
    def _exp(x):
        if x == types.float32:
            return lambda x: exp32(x)
        return lambda x: math.exp(x)

    @overload(tanh, jit_options=_OPTIONS)
    def _tanh(x):
        if x == types.float32:
            return lambda x: tanh32(x)
        return lambda x: math.tanh(x)

    @overload(sigmoid, jit_options=_OPTIONS)
    def _sigmoid(x):
        if x == types.float32:
            return lambda x: np.float32(1) / (np.float32(1) + exp32(-x))
        return lambda x: 1 / (1 + math.exp(-x))


@kernel
def offset(row, dims, strides):
    """Where row number `row` of a broadcast begins: the row's digits in the mixed base `dims`, times the strides."""
    at = 0
    for d in range(len(dims) - 1, -1, -1):
        at += (row % dims[d]) * strides[d]
        row //= dims[d]
    return at


# ---------------------------------------------------------------------------------------------------------------------
# e^x - 1 without losing the digits of a small x
# ---------------------------------------------------------------------------------------------------------------------
def exp_expm1_32(x):
    """(e^x, e^x - 1) in float32, each about 1e-7 relative, for x from -86 to 88; below, what they are at -86.

    As in `exp32`, x = n ln2 + r. With p = e^r - 1 from the polynomial without its 1, e^x - 1 = 2^n p + (2^n - 1) keeps the
    digits of a small x. Half of it first, so that n = 128 does not overflow.
    """
    c = np.float32(-86.0) if x < np.float32(-86.0) else x
    c = np.float32(89.0) if c > np.float32(89.0) else c
    c = c if c == c else np.float32(0.0)
    n = np.float32(np.floor(c * np.float32(1.44269504) + np.float32(0.5)))
    r = c - n * np.float32(0.693359375)
    r = r - n * np.float32(-2.12194440e-4)
    p = np.float32(1.9875691e-4)
    p = p * r + np.float32(1.3981999e-3)
    p = p * r + np.float32(8.3334519e-3)
    p = p * r + np.float32(4.1665796e-2)
    p = p * r + np.float32(1.6666666e-1)
    p = p * r + np.float32(0.5)
    p = (p * r) * r + r
    half = np.int32((np.int32(n) + np.int32(126)) << np.int32(23)).view(np.float32)  # 2^(n - 1)
    e = (half * p + half) * np.float32(2.0)
    y = (half * p + (half - np.float32(0.5))) * np.float32(2.0)
    return (e if x == x else x), (y if x == x else x)


def exp_expm1(x):
    """(e^x, e^x - 1) for kernels."""
    return exp_expm1_32(x) if isinstance(x, np.float32) else (np.exp(x), np.expm1(x))


def expm1_32(x):
    """e^x - 1 in float32, about 1e-7 relative also near 0; exact at +-inf and nan."""
    return exp_expm1_32(x)[1]


def expm1(x):
    """e^x - 1 for kernels."""
    return expm1_32(x) if isinstance(x, np.float32) else np.expm1(x)


# ---------------------------------------------------------------------------------------------------------------------
# the largest of many floats, in vector lanes
# ---------------------------------------------------------------------------------------------------------------------
def order32(x):
    """The bits of a float32 as an int32 that sorts the same way.

    A running maximum of floats stays scalar (a nan forbids reordering); one of ints runs 16 at a time, 10 times faster.
    A nan sorts beyond the infinities, so one of them may hide: whoever takes the maximum meets it again in the sum.
    """
    k = np.float32(x).view(np.int32)
    return np.int32(k ^ ((k >> np.int32(31)) & np.int32(0x7FFFFFFF)))


def unorder32(k):
    """The float32 of an int made by `order32`."""
    k = np.int32(k)
    return np.int32(k ^ ((k >> np.int32(31)) & np.int32(0x7FFFFFFF))).view(np.float32)


def order64(x):
    """`order32` for float64."""
    k = np.float64(x).view(np.int64)
    return np.int64(k ^ ((k >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)))


def unorder64(k):
    """The float64 of an int made by `order64`."""
    k = np.int64(k)
    return np.int64(k ^ ((k >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))).view(np.float64)


def order(x):
    """The bits of a float as an int that sorts the same way."""
    return order32(x) if isinstance(x, np.float32) else order64(x)


def unorder(k):
    """The float of an int made by `order`."""
    return unorder32(k) if isinstance(k, np.int32) else unorder64(k)


# ---------------------------------------------------------------------------------------------------------------------
# random numbers without a state: number i of a seed is a hash of both
# ---------------------------------------------------------------------------------------------------------------------
@kernel
def seed_key(seed):
    """64 well mixed bits made from a seed (the finisher of splitmix64). Neighbouring seeds give unrelated keys."""
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(z ^ (z >> np.uint64(31)))


@kernel
def mix32(x):
    """A bijection of 32 bits in which every input bit flips about half of the output bits (Wellons' lowbias32)."""
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@kernel
def draw(key, i):
    """Random number i of a key, uniform in 0 .. 2^32 - 1. Whoever asks, in whatever order, gets the same number."""
    low, high = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    far = np.uint32(np.uint32(np.int64(i) >> np.int64(32)) * np.uint32(0x9E3779B9))  # 0 below 2^32 elements
    return mix32(np.uint32(mix32(np.uint32(np.uint32(np.int64(i) & np.int64(0xFFFFFFFF)) ^ low)) ^ high ^ far))


if JIT:
    exp_expm1_32 = kernel(exp_expm1_32)
    expm1_32 = kernel(expm1_32)
    order32, unorder32, order64, unorder64 = kernel(order32), kernel(unorder32), kernel(order64), kernel(unorder64)

    @overload(exp_expm1, jit_options=_OPTIONS)
    def _exp_expm1(x):
        if x == types.float32:
            return lambda x: exp_expm1_32(x)
        return lambda x: (math.exp(x), math.expm1(x))

    @overload(expm1, jit_options=_OPTIONS)
    def _expm1(x):
        if x == types.float32:
            return lambda x: expm1_32(x)
        return lambda x: math.expm1(x)

    @overload(order, jit_options=_OPTIONS)
    def _order(x):
        if x == types.float32:
            return lambda x: order32(x)
        return lambda x: order64(x)

    @overload(unorder, jit_options=_OPTIONS)
    def _unorder(k):
        if k == types.int32:
            return lambda k: unorder32(k)
        return lambda k: unorder64(k)


# ---------------------------------------------------------------------------------------------------------------------
# c = a @ b inside kernels: the one place that speaks of vector registers
# ---------------------------------------------------------------------------------------------------------------------
# A product is fast if its sums stay in registers. Numba has no way to say that of a small array (plain loops, blocked 4 x 4,
# reach half the speed of this), so `tile` is written in LLVM's language: 4 rows times a few vectors of columns.
_cpu = host_features()
VECTOR_BYTES = 64 if _cpu.get("avx512f") else 32 if _cpu.get("avx2") else 16
VECTORS = 3 if VECTOR_BYTES == 32 else 4  # AVX2 has 16 registers: 4 x 3 sums, 3 vectors of b, 1 number of a. Others have 32
TILE_ROWS = 4
TILE_BYTES = VECTORS * VECTOR_BYTES       # a tile is TILE_BYTES // itemsize columns wide
TILE_DEPTH = 128                          # so many rows of b, a tile wide, stay in the nearest cache


def tile(c, ci, cj, a, ai, ak, b, bi, bj, rows, cols, depth, add):
    """c[ci:ci+rows, cj:cj+cols] = (or +=, if `add`) a[ai:ai+rows, ak:ak+depth] @ b[bi:bi+depth, bj:bj+cols]

    At most TILE_ROWS rows and TILE_BYTES // itemsize columns. Rows of b and c lie contiguous; a may have any strides.

        for r in 4 rows, v in 4 vectors:          sum[r][v] = c[r, v] or 0             16 registers
        for k in range(depth):
            for v in 4 vectors:                   row[v] = b[k, v]                      4 registers
            for r in 4 rows:                      x = a[r, k] in every lane             1 register
                for v in 4 vectors:               sum[r][v] = x * row[v] + sum[r][v]    one instruction: 16 float32 at once
        for r in 4 rows, v in 4 vectors:          c[r, v] = sum[r][v]

    Only the loop over k is left as a loop: 8 loads, then 16 multiply-adds. With fewer than 4 rows the last one is computed
    again and again, with the same result; with fewer columns lanes are masked. This body is what runs without the JIT.
    """
    block = a[ai:ai + rows, ak:ak + depth] @ b[bi:bi + depth, bj:bj + cols]
    c[ci:ci + rows, cj:cj + cols] = c[ci:ci + rows, cj:cj + cols] + block if add else block


def _address(context, builder, signature, args, position):
    """Of element (i, j) of the matrix that is argument `position`, i and j being the next two: a pointer and both strides."""
    array = context.make_array(signature.args[position])(context, builder, args[position])
    down, right = cgutils.unpack_tuple(builder, array.strides)
    at = builder.add(builder.mul(args[position + 1], down), builder.mul(args[position + 2], right))
    return builder.gep(builder.bitcast(array.data, ir.IntType(8).as_pointer()), [at]), down, right


def _tile_code(context, builder, signature, args):
    """The same as LLVM code, written at the builder's place, for Numba's `intrinsic`."""
    int32, int64, byte = ir.IntType(32), ir.IntType(64), ir.IntType(8).as_pointer()
    rows, cols, depth, add = args[9:]
    size = signature.args[0].dtype.bitwidth // 8
    element = ir.FloatType() if size == 4 else ir.DoubleType()
    lanes = VECTOR_BYTES // size
    vector, kind = ir.VectorType(element, lanes), f"v{lanes}{'f32' if size == 4 else 'f64'}"
    lanes_of = range(VECTORS)

    def number(n):
        return ir.Constant(int64, n)

    def splat(x):
        """A vector with x in every lane."""
        kind_of = ir.VectorType(x.type, lanes)
        one = builder.insert_element(ir.Constant(kind_of, ir.Undefined), x, ir.Constant(int32, 0))
        return builder.shuffle_vector(one, one, ir.Constant(ir.VectorType(int32, lanes), None))

    def call(name, returns, *operands):
        function = ir.FunctionType(returns, [o.type for o in operands])
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), operands)

    def load(row, v, mask):
        p = builder.bitcast(builder.gep(row, [number(v * VECTOR_BYTES)]), vector.as_pointer())
        if mask is None:
            return builder.load(p, align=size)
        return call(f"llvm.masked.load.{kind}.p0", vector, p, ir.Constant(int32, size), mask[v], ir.Constant(vector, None))

    def store(value, row, v, mask):
        p = builder.bitcast(builder.gep(row, [number(v * VECTOR_BYTES)]), vector.as_pointer())
        if mask is None:
            builder.store(value, p, align=size)
        else:
            call(f"llvm.masked.store.{kind}.p0", ir.VoidType(), value, p, ir.Constant(int32, size), mask[v])

    def loop(mask):
        """The loop of the docstring. A sum that changes from step to step is a `phi` node in LLVM."""
        entry, init, head, body, done = builder.block, *[builder.append_basic_block(n) for n in ("init", "head", "body", "done")]
        builder.cbranch(add, init, head)
        builder.position_at_end(init)
        old = [[load(row, v, mask) for v in lanes_of] for row in c_rows]
        builder.branch(head)
        builder.position_at_end(head)
        k, from_a, from_b = builder.phi(int64), builder.phi(int64), builder.phi(byte)
        sums = [[builder.phi(vector) for v in lanes_of] for _ in c_rows]
        for start in (entry, init):
            k.add_incoming(number(0), start)
            from_a.add_incoming(number(0), start)
            from_b.add_incoming(b_start, start)
        for r in range(TILE_ROWS):
            for v in lanes_of:
                sums[r][v].add_incoming(ir.Constant(vector, None), entry)
                sums[r][v].add_incoming(old[r][v], init)
        builder.cbranch(builder.icmp_signed("<", k, depth), body, done)
        builder.position_at_end(body)
        row_of_b = [load(from_b, v, mask) for v in lanes_of]
        for r in range(TILE_ROWS):
            x = splat(builder.load(builder.bitcast(builder.gep(a_rows[r], [from_a]), element.as_pointer())))
            for v in lanes_of:
                sums[r][v].add_incoming(call(f"llvm.fma.{kind}", vector, x, row_of_b[v], sums[r][v]), body)
        k.add_incoming(builder.add(k, number(1)), body)
        from_a.add_incoming(builder.add(from_a, a_right), body)
        from_b.add_incoming(builder.gep(from_b, [b_down]), body)
        builder.branch(head)
        builder.position_at_end(done)
        for r in range(TILE_ROWS):
            for v in lanes_of:
                store(sums[r][v], c_rows[r], v, mask)

    c_start, c_down, _ = _address(context, builder, signature, args, 0)
    a_start, a_down, a_right = _address(context, builder, signature, args, 3)
    b_start, b_down, _ = _address(context, builder, signature, args, 6)
    last = builder.sub(rows, number(1))
    rows_of = [builder.select(builder.icmp_signed("<", number(r), last), number(r), last) for r in range(TILE_ROWS)]
    c_rows = [builder.gep(c_start, [builder.mul(r, c_down)]) for r in rows_of]
    a_rows = [builder.gep(a_start, [builder.mul(r, a_down)]) for r in rows_of]
    with builder.if_else(builder.icmp_signed(">=", cols, number(VECTORS * lanes))) as (whole, part):
        with whole:
            loop(None)
        with part:
            first = [ir.Constant(ir.VectorType(int64, lanes), [v * lanes + n for n in range(lanes)]) for v in lanes_of]
            loop([builder.icmp_signed("<", f, splat(cols)) for f in first])
    return context.get_dummy_value()


def move(out, oi, oj, b, bi, bj):
    """out[oi, oj:oj+n] = n = VECTOR_BYTES // itemsize numbers that lie together from b[bi, bj] on, in a row or in a column.

    Numba sees only that b has strides, and would copy them one by one. This body is what runs without the JIT.
    """
    n = VECTOR_BYTES // out.itemsize
    out[oi, oj:oj + n] = b[bi, bj:bj + n] if b.strides[1] == b.itemsize else b[bi:bi + n, bj]


def _move_code(context, builder, signature, args):
    """The same as LLVM code."""
    size = signature.args[0].dtype.bitwidth // 8
    vector = ir.VectorType(ir.IntType(8 * size), VECTOR_BYTES // size).as_pointer()
    out, b = [builder.bitcast(_address(context, builder, signature, args, p)[0], vector) for p in (0, 3)]
    builder.store(builder.load(b, align=size), out, align=size)
    return context.get_dummy_value()


def turn(out, oi, oj, b, bi, bj):
    """out[oi:oi+n, oj:oj+n] = b[bi:bi+n, bj:bj+n], n = VECTOR_BYTES // itemsize, where *columns* of b lie contiguous.

    n columns are loaded as n vectors. They become rows in log2(n) rounds: in round s the vectors i and i + s exchange
    their odd and even stretches of s elements, one instruction a vector. This body is what runs without the JIT.
    """
    n = VECTOR_BYTES // out.itemsize
    out[oi:oi + n, oj:oj + n] = b[bi:bi + n, bj:bj + n]


def _turn_code(context, builder, signature, args):
    """The same as LLVM code."""
    size = signature.args[0].dtype.bitwidth // 8
    n = VECTOR_BYTES // size
    vector = ir.VectorType(ir.FloatType() if size == 4 else ir.DoubleType(), n)
    out, out_down, _ = _address(context, builder, signature, args, 0)
    b, _, b_right = _address(context, builder, signature, args, 3)

    def pointer(start, step, i):
        return builder.bitcast(builder.gep(start, [builder.mul(step, ir.Constant(step.type, i))]), vector.as_pointer())

    v = [builder.load(pointer(b, b_right, i), align=size) for i in range(n)]
    s = 1
    while s < n:
        for i in [i for i in range(n) if not i & s]:
            picks = [[k if not k & s else n + k - s for k in range(n)], [k + s if not k & s else n + k for k in range(n)]]
            v[i], v[i + s] = [builder.shuffle_vector(v[i], v[i + s], ir.Constant(ir.VectorType(ir.IntType(32), n), pick))
                              for pick in picks]
        s *= 2
    for i in range(n):
        builder.store(v[i], pointer(out, out_down, i), align=size)
    return context.get_dummy_value()


if JIT:
    @intrinsic
    def tile(typing, c, ci, cj, a, ai, ak, b, bi, bj, rows, cols, depth, add):  # noqa: F811 (the compiled form)
        n = types.intp
        return types.void(c, n, n, a, n, n, b, n, n, n, n, n, types.boolean), _tile_code

    @intrinsic
    def move(typing, out, oi, oj, b, bi, bj):  # noqa: F811 (the compiled form)
        n = types.intp
        return types.void(out, n, n, b, n, n), _move_code

    @intrinsic
    def turn(typing, out, oi, oj, b, bi, bj):  # noqa: F811 (the compiled form)
        n = types.intp
        return types.void(out, n, n, b, n, n), _turn_code


@kernel
def panels_of(b):
    """How many panels `pack` makes of b (K,N)."""
    return -(-b.shape[1] // (TILE_BYTES // b.itemsize))


@kernel
def panel_space(b):
    """Room for the panels of b (K,N): (panels * K, width of a tile). It begins on a cache line; no vector lies across two."""
    width = TILE_BYTES // b.itemsize
    room = np.empty(panels_of(b) * b.shape[0] * width + 64 // b.itemsize, b.dtype)
    skip = (-room.ctypes.data) % 64 // b.itemsize
    return room[skip:skip + panels_of(b) * b.shape[0] * width].reshape(panels_of(b) * b.shape[0], width)[::1, ::1]


@kernel
def pack_panel(out, b, p):
    """Panel p of b, its columns p * width to (p + 1) * width, into `out` from `panel_space(b)`."""
    depth, width, n = b.shape[0], out.shape[1], VECTOR_BYTES // b.itemsize
    part = b[::1, p * width:(p + 1) * width:1]
    to, cols = out[p * depth:(p + 1) * depth], part.shape[1]
    whole, turned = cols // n * n, 0
    if part.strides[1] == part.itemsize:
        turned = depth
        for k in range(depth):
            for j in range(0, whole, n):
                move(to, k, j, part, k, j)
    elif part.strides[0] == part.itemsize:
        turned = depth // n * n
        for j in range(0, whole, n):
            for k in range(0, turned, n):
                turn(to, k, j, part, k, j)
    for k in range(depth):  # what is left over
        for j in range(whole if k < turned else 0, cols):
            to[k, j] = part[k, j]


@kernel
def pack(b):
    """b (K,N), of any strides, cut into panels as wide as a tile that stand one below the other: what `product` reads fastest."""
    out = panel_space(b)
    for p in range(panels_of(b)):
        pack_panel(out, b, p)
    return out


@kernel
def product(c, a, b, add):
    """c = (or +=, if `add`) a @ b, of 2-D arrays. Serial. b is what `pack` made, or a (K,N) matrix whose rows lie contiguous
    (one panel is both). Rows of c lie contiguous; a may have any strides. See `_product` for the loops.

    Numba compiles anew for an array of another layout, and even for another literal such as True. So this is only
    a door: steps of 1 and `bool` make all callers alike.
    """
    _product(c[::1, ::1], a[::1, ::1], b[::1, ::1], bool(add))


@kernel
def _product(c, a, b, add):
    """The loops of `product`.

        for block in 64 rows of a:
            for k in stretches of the depth:           128 rows of a panel fit the nearest cache
                (columns of a that lie contiguous:     copy the stretch; its rows would be far apart in memory)
                for panel in panels of b:              a tile wide
                    for i in 4 rows of the block:      sums in registers, see `tile`
    """
    m, depth, n = a.shape[0], a.shape[1], c.shape[1]
    width, packed = TILE_BYTES // c.itemsize, b.shape[0] > depth
    lanes = VECTOR_BYTES // c.itemsize
    copies = a.strides[1] != a.itemsize and n > width
    copy = np.empty((TILE_DEPTH if copies else 0, 80), a.dtype)  # not 64: the stretches would share few cache sets
    for top in range(0, m, 64):
        rows = min(64, m - top)
        for k in range(0, max(depth, 1), TILE_DEPTH):
            stretch = min(TILE_DEPTH, depth - k)
            part = a[top:top + 64:1, k:k + TILE_DEPTH:1]
            if copies:
                whole = rows // lanes * lanes if part.strides[0] == part.itemsize else 0
                for kk in range(stretch):
                    for r in range(0, whole, lanes):
                        move(copy, kk, r, part, r, kk)
                    for r in range(whole, rows):
                        copy[kk, r] = part[r, kk]
                part = copy[:stretch:1, :rows:1].T
            for p in range(-(-n // width)):
                for i in range(0, rows, TILE_ROWS):
                    tile(c, top + i, p * width, part, i, 0, b, p * depth + k if packed else k, 0 if packed else p * width,
                         min(TILE_ROWS, rows - i), min(width, n - p * width), stretch, add or k > 0)


# ---------------------------------------------------------------------------------------------------------------------
# along one row of a matrix
# ---------------------------------------------------------------------------------------------------------------------
def exp_below_32(x):
    """e^x in float32 for x <= 0, about 1e-7 relative; 0 where it would be subnormal (below -87.7), so also at -inf; nan stays.

    As `exp32`, a third cheaper: 2^n is written at once, and the smallest n that can come, -127, is written as the number 0.
    """
    c = np.float32(-88.1) if x < np.float32(-88.1) else x
    t = c * np.float32(1.44269504) + np.float32(12582912.0)
    n = t - np.float32(12582912.0)
    r = c - n * np.float32(0.693359375)
    r = r - n * np.float32(-2.12194440e-4)
    p = np.float32(1.38145964e-3)
    p = p * r + np.float32(8.36871709e-3)
    p = p * r + np.float32(4.16683881e-2)
    p = p * r + np.float32(1.66665206e-1)
    p = p * r + np.float32(4.99999934e-1)
    p = (p * r) * r + r + np.float32(1.0)
    k = np.int32(np.float32(t).view(np.int32) << np.int32(23))  # of t only the bits of n are left
    return p * np.int32(k + np.int32(0x3F800000)).view(np.float32)


def exp_below(x):
    """e^x for kernels that know x <= 0: softmax and its relatives, after the largest element is subtracted."""
    return exp_below_32(x) if isinstance(x, np.float32) else np.exp(x)


def log32(x):
    """log x in float32, about 1e-7 relative; exact at 0, inf and nan; nan below 0.

    x = 2^e (1 + u) with 1 + u from sqrt(1/2) to sqrt(2), read off the bits; log(1 + u) = u - u^2 / 2 + u^3 P(u).
    """
    tiny = x < np.float32(1.17549435e-38)  # subnormal numbers have no exponent of their own
    k = np.float32(x * np.float32(16777216.0) if tiny else x).view(np.int32)
    e = np.int32(np.int32(k - np.int32(0x3F3504F3)) >> np.int32(23))
    u = np.int32(k - np.int32(e << np.int32(23))).view(np.float32) - np.float32(1.0)
    p = np.float32(8.70035996e-2)
    p = p * u + np.float32(-1.42674763e-1)
    p = p * u + np.float32(1.4914787e-1)
    p = p * u + np.float32(-1.6577586e-1)
    p = p * u + np.float32(1.99630623e-1)
    p = p * u + np.float32(-2.5001337e-1)
    p = p * u + np.float32(3.33339108e-1)
    n = np.float32(e) - (np.float32(24.0) if tiny else np.float32(0.0))
    y = ((p * u - np.float32(0.5)) * (u * u) + n * np.float32(-2.12194440e-4)) + u + n * np.float32(0.693359375)
    y = y if x > np.float32(0.0) else np.float32(-np.inf) if x == np.float32(0.0) else np.float32(np.nan)
    return x if x == np.float32(np.inf) else y


def log(x):
    """log x for kernels."""
    return log32(x) if isinstance(x, np.float32) else np.log(x)


if JIT:
    exp_below_32, log32 = kernel(exp_below_32), kernel(log32)

    @overload(exp_below, jit_options=_OPTIONS)
    def _exp_below(x):
        if x == types.float32:
            return lambda x: exp_below_32(x)
        return lambda x: math.exp(x)

    @overload(log, jit_options=_OPTIONS)
    def _log(x):
        if x == types.float32:
            return lambda x: log32(x)
        return lambda x: math.log(x)


@kernel
def row_max(x, i):
    """The largest element of row i, -inf for a row of length 0. (A nan may or may not be found: see `order32`.)"""
    n = x.shape[1]
    if n == 0:
        return x.dtype.type(-np.inf)
    best = order(x[i, 0])
    for j in range(n):
        k = order(x[i, j])
        best = k if k > best else best
    return unorder(best)


# A sum over lanes may be added up in any order (`reduces=True`), but only the sum: if the arithmetic around it were free, too,
# the compiler would arrange it differently in the serial and in the parallel build of a loop, and 1 and 2 threads would
# not give the same bits. So sums stand in small functions of their own.
@kernel(reduces=True)
def row_sum(x, i):
    """sum_j x[i, j]"""
    total = x.dtype.type(0)
    for j in range(x.shape[1]):
        total += x[i, j]
    return total


@kernel(reduces=True)
def row_dot(x, y, i):
    """sum_j x[i, j] y[i, j]"""
    total = x.dtype.type(0)
    for j in range(x.shape[1]):
        total += x[i, j] * y[i, j]
    return total


@kernel(reduces=True)
def row_sum_exp(x, i, high):
    """sum_j e^(x[i, j] - high), where high is the largest element of row i; 0 if that is -inf, 1 if it is inf."""
    total = x.dtype.type(0)
    if high == -np.inf or high == np.inf:
        total = x.dtype.type(high > 0)
        for j in range(x.shape[1]):
            total = x[i, j] if x[i, j] != x[i, j] else total  # a nan stays one
        return total
    for j in range(x.shape[1]):
        total += exp_below(x[i, j] - high)
    return total


@kernel
def first_row(chunk, chunks, rows):
    """Where chunk number `chunk` begins if `rows` rows are cut into `chunks` nearly equal parts."""
    return chunk * rows // chunks
