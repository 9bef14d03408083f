"""Random numbers in kernels: number i of a seed, by the hash that `ops/shared.py` has for the CPU, so both draw the same."""
import numpy as np

from .kernel import cuda_function


@cuda_function
def seed_key(seed):
    """64 well mixed bits made from a seed."""
    z = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.uint64(z ^ (z >> np.uint64(31)))


@cuda_function
def mix32(x):
    """A bijection of 32 bits in which every input bit flips about half of the output bits (Wellons' lowbias32)."""
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x7FEB352D))
    x = np.uint32(x ^ (x >> np.uint32(15)))
    x = np.uint32(x * np.uint32(0x846CA68B))
    return np.uint32(x ^ (x >> np.uint32(16)))


@cuda_function
def draw(key, i):
    """Random number i of a key, uniform in 0 .. 2^32 - 1."""
    low, high = np.uint32(key & np.uint64(0xFFFFFFFF)), np.uint32(key >> np.uint64(32))
    far = np.uint32(np.uint32(np.int64(i) >> np.int64(32)) * np.uint32(0x9E3779B9))
    return mix32(np.uint32(mix32(np.uint32(np.uint32(np.int64(i) & np.int64(0xFFFFFFFF)) ^ low)) ^ high ^ far))
