"""What kernels over rows share on a card: which row a block works on, and how its threads put together what each has found.

An array is seen as (a, n, b), flat, and a row is x[i, :, k]: its n elements lie b apart. A block works on `width` rows
that lie side by side (one, where b is 1): its thread t on row t % width, of which it takes the elements lane, lane +
lanes, ..., with lane = t // width. So threads side by side read memory side by side, whatever the axis.
"""
from .kernel import cuda, cuda_function, threads_for
from .kernel import exp as cuda_exp


def grid_of_rows(a, n, b, most=32):
    """(blocks, threads) and the width, for the a * b rows of (a, n, b); no blocks where there is nothing in the rows."""
    width = threads_for(b, most)
    return (a * -(-b // width) if n else 0, max(width, threads_for(n * width))), width


@cuda_function
def own_row(n, b, width):
    """(where my row begins, my first element in it, how far it is to my next, the end); nothing beyond the last row."""
    t, tiles = cuda.threadIdx.x, (b + width - 1) // width
    k = cuda.blockIdx.x % tiles * width + t % width
    return cuda.blockIdx.x // tiles * n * b + k, t // width, cuda.blockDim.x // width, n if k < b else 0


@cuda_function
def own_number(b, width):
    """The number of my row among the a * b; one too many beyond the last."""
    tiles = (b + width - 1) // width
    return cuda.blockIdx.x // tiles * b + cuda.blockIdx.x % tiles * width + cuda.threadIdx.x % width


@cuda_function
def block_sum(shared, value, t, width):
    """The sum of `value` over all threads t, t + width, ... of the block, added in the same order every time: a tree, at
    each step of which half of the threads go on."""
    shared[t] = value
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step >= width:
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
        step //= 2
    total = shared[t % width]
    cuda.syncthreads()  # everybody has read it before `shared` is used again
    return total


@cuda_function
def block_max(shared, value, t, width):
    """The largest `value` of the threads t, t + width, ... of the block, nan if there is one."""
    shared[t] = value
    cuda.syncthreads()
    step = cuda.blockDim.x // 2
    while step >= width:
        if t < step:
            high, other = shared[t], shared[t + step]
            shared[t] = high if high > other or high != high else other
        cuda.syncthreads()
        step //= 2
    high = shared[t % width]
    cuda.syncthreads()
    return high


@cuda_function
def one_more(high, total, v, one):
    """The pair (m, sum of e^(x - m)), where m is the largest x, after one more element v. Begin with (-inf, 0). So a row is
    read once. A nan makes the sum nan; in a row of -inf the sum only counts."""
    if v > high:
        return v, total * cuda_exp(high - v) + one
    if v == high:
        return high, total + one
    return high, total + cuda_exp(v - high)


@cuda_function
def block_pair(shared, high, total, nothing, t, width):
    """The pair of `one_more` for a whole row from those of its threads. The sum of a row of -inf is 0 here."""
    top = block_max(shared, high, t, width)
    total = block_sum(shared, total if high == top else total * cuda_exp(high - top), t, width)
    if top == nothing:  # -inf
        total = total - total  # 0, or nan
    return top, total
