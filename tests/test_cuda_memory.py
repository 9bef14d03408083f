"""The pool of device memory: its logic with a pretended driver, and its place in Numba with a pretended libcuda."""
import json
import random
import threading
from collections import deque

import pytest
from test_cuda import python

from tinyattn.cuda import memory
from tinyattn.cuda.memory import SMALLEST, Pool, Stats, size_class

KB = 1024


class Driver:
    """Has so many bytes. A block is its own again when nobody holds it any more and `release` has been called."""
    def __init__(self, total=1 << 40):
        self.total, self.used, self.asked, self.waiting = total, 0, 0, deque()

    def allocate(self, size):
        self.asked += 1
        if self.used + size > self.total:
            raise MemoryError("the driver has no more")
        self.used += size
        return Block(self, size)

    def release(self):
        while self.waiting:
            self.used -= self.waiting.popleft()


class Block:
    def __init__(self, driver, size):
        self.driver, self.size = driver, size

    def __del__(self):
        self.driver.waiting.append(self.size)


@pytest.fixture
def driver():
    return Driver()


@pytest.fixture
def pool(driver):
    return Pool(driver.allocate, driver.release)


def test_size_classes():
    sizes = [*range(20_000), *(random.Random(0).randrange(1 << 40) for _ in range(2000)), 1 << 30, (1 << 30) + 1]
    for size in sizes:
        block = size_class(size)
        assert block >= size and block % SMALLEST == 0 and size_class(block) == block
        assert block <= max(size + SMALLEST, size * 9 // 8)
    assert len({size_class(size) for size in range(1 << 20, 1 << 21)}) == 9
    assert [size_class(n) for n in sorted(sizes)] == sorted(map(size_class, sizes))


def test_a_block_given_back_is_the_next_one_of_its_class(pool, driver):
    first = pool.take(1000)
    block = first[1]
    assert pool.stats() == Stats(in_use=1024, cached=0, peak=1024, asked=1, reused=0)
    pool.give(first)
    assert pool.stats() == Stats(in_use=0, cached=1024, peak=1024, asked=1, reused=0)
    other = pool.take(1025)
    assert other[1] is not block
    again = pool.take(513)
    assert again[1] is block and driver.asked == 2
    assert pool.stats() == Stats(in_use=1024 + 1536, cached=0, peak=1024 + 1536, asked=2, reused=1)


def test_no_two_arrays_have_one_block(pool):
    held, rng = [], random.Random(1)
    for _ in range(3000):
        if held and rng.random() < 0.5:
            pool.give(held.pop(rng.randrange(len(held))))
        else:
            held.append(pool.take(rng.choice((0, 1, 600, 5000, 70_000))))
            assert len({id(block) for _, block in held}) == len(held)
    assert pool.stats().in_use == sum(size for size, _ in held)
    assert pool.stats().asked < 300 and pool.stats().asked + pool.stats().reused > 1400


def test_arrays_may_go_while_the_pool_is_at_work(driver):
    """Python runs the end of an array between any two steps, also of `take`: a lock taken there would wait for itself."""
    def allocate(size):
        pool.give(taken)
        return driver.allocate(size)
    pool = Pool(driver.allocate, driver.release)
    taken = pool.take(100)
    pool.allocate = allocate
    pool.take(100)
    assert pool.stats() == Stats(in_use=512, cached=512, peak=1024, asked=2, reused=0)


def test_many_threads(pool):
    owners, faults = set(), []

    def work(seed):
        rng = random.Random(seed)
        for _ in range(2000):
            taken = pool.take(rng.choice((1, 600, 2000)))
            if id(taken[1]) in owners:
                faults.append("two owners")
            owners.add(id(taken[1]))
            owners.discard(id(taken[1]))
            pool.give(taken)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = pool.stats()
    assert not faults and found.in_use == 0 and found.asked <= 24 and found.asked + found.reused == 16_000


def test_out_of_memory_gives_back_what_is_kept_and_asks_once_more():
    driver = Driver(total=100 * KB)
    pool = Pool(driver.allocate, driver.release)
    small = pool.take(10 * KB)
    pool.give(pool.take(60 * KB))
    large = pool.take(80 * KB)
    assert driver.used == 90 * KB and pool.stats() == Stats(in_use=90 * KB, cached=0, peak=90 * KB, asked=3, reused=0)
    pool.give(small)
    with pytest.raises(MemoryError, match=r"^device 'cuda': no 81.9 kB are free: arrays have 81.9 kB, and 10.2 kB that were "
                                          r"kept for others have been given back; try smaller sizes$"):
        pool.take(80 * KB)
    pool.give(large)
    del small, large
    assert pool.take(70 * KB) and driver.asked == 4 + 2 + 2  # each failure is followed by one more attempt


def test_other_errors_pass(pool):
    def broken(size):
        raise ValueError("a kernel has failed before")
    pool.allocate = broken
    with pytest.raises(ValueError, match="a kernel has failed before"):
        pool.take(1)
    assert pool.stats() == Stats()


def test_empty(pool, driver):
    kept, held = pool.take(4 * KB), pool.take(8 * KB)
    pool.give(kept)
    del kept
    assert driver.used == 12 * KB
    pool.empty()
    assert driver.used == 8 * KB and pool.stats() == Stats(in_use=8 * KB, cached=0, peak=12 * KB, asked=2, reused=0)
    pool.give(held)
    memory.empty_cache()
    assert pool.stats().cached == 0


# ---------------------------------------------------------------------------------------------------------------------
# in Numba
# ---------------------------------------------------------------------------------------------------------------------
PLUGGED = """if True:
    import json
    import numpy as np
    import fake_driver
    from tinyattn import device
    from tinyattn.cuda import memory
    library = fake_driver.install(total=1 << 20)
    said = []

    def note():
        said.append([*memory.stats(), library.used, library.calls.count('cuMemAlloc'), library.calls.count('cuMemFree')])

    values = device.to_device(np.arange(6.0), 'cuda')
    shaped = values.reshape((2, 3))
    del values
    same = shaped.copy_to_host().tolist()
    note()                                                      # the array is in use under its other shape
    where = shaped.__cuda_array_interface__['data'][0]
    del shaped
    note()                                                      # and now it is kept
    for _ in range(50):
        there = device.empty((100,), 'float32', 'cuda')
        again = there.__cuda_array_interface__['data'][0] == where
        nothing = device.empty((0, 3), 'float32', 'cuda')
        del there
    note()
    large = device.empty((900_000,), 'bool', 'cuda')
    del large
    other = device.empty((700_000,), 'bool', 'cuda')
    note()                                                      # there was no room before the large one was given back
    try:
        device.empty((700_000,), 'bool', 'cuda')
    except Exception as error:
        message = f'{type(error).__name__}: {error}'
    small = device.empty((10,), 'float64', 'cuda')
    del other, small
    memory.empty_cache()
    note()
    left, kept = device.empty((10,), 'float64', 'cuda'), device.empty((10,), 'float64', 'cuda')
    del kept
    device.numba_cuda().current_context().reset()               # all memory goes, also what is kept
    note()
    del left
    left = device.to_device(np.ones(3), 'cuda')
    device.numba_cuda().close()                                 # the context goes too
    note()
    del left
    fresh = device.to_device(np.ones(3), 'cuda')
    note()
    print(json.dumps([said, same, again, message, fresh.copy_to_host().tolist()]))"""


def test_numba_takes_its_memory_from_the_pool():
    """Numba's own arrays, contexts and ends of arrays, over a pretended libcuda (see `fake_driver.py`)."""
    run = python("-c", PLUGGED, TINYATTN_CUDA_POOL="1")
    assert run.returncode == 0 and not run.stderr, run.stderr
    (shaped, kept, looped, large, emptied, cleared, closed, fresh), same, again, message, ones = json.loads(run.stdout)
    assert same == [[0, 1, 2], [3, 4, 5]] and again and ones == [1, 1, 1]
    assert shaped == [512, 0, 512, 1, 0, 512, 1, 0]
    assert kept == [0, 512, 512, 1, 0, 512, 1, 0]
    assert looped == [0, 512, 512, 1, 50, 512, 1, 0], "the driver was asked again for what there was"
    block = size_class(700_000)
    assert large[:5] == [block, 0, size_class(900_000), 3, 50] and large[5] == block and large[7] == 2
    assert message == ("MemoryError: device 'cuda': no 720.9 kB are free: arrays have 720.9 kB, and 0 bytes that were kept for "
                       "others have been given back; try smaller sizes")
    assert emptied[:2] == [0, 0] and emptied[5] == 0
    for gone in (cleared, closed):
        assert gone[:2] == [0, 0] and gone[5] == 0
    assert fresh[:2] == [512, 0] and fresh[5] == 512


def test_it_is_off_by_default():
    run = python("-c", PLUGGED)
    assert run.returncode == 0, run.stderr
    said, same, _, message, ones = json.loads(run.stdout)
    assert same == [[0, 1, 2], [3, 4, 5]] and ones == [1, 1, 1] and message.startswith("MemoryError: device 'cuda': no 700,000 bytes are free")
    assert all(line[:5] == [0] * 5 for line in said) and said[2][6] == 51, "Numba asks for each array"


def test_it_is_there_before_numba_asks_and_loads_nothing():
    code = """if True:
        import sys, tinyattn.tensor, numba
        print(numba.config.CUDA_MEMORY_MANAGER, [m for m in sys.modules if m.startswith('numba.cuda')])"""
    assert python("-c", code, TINYATTN_CUDA_POOL="1").stdout.split() == ["tinyattn.cuda.memory", "[]"]
    assert python("-c", code, TINYATTN_CUDA_POOL="0").stdout.split() == ["default", "[]"]
    for name, value in (("NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM", "1"), ("NUMBA_CUDA_MEMORY_MANAGER", "rmm")):
        run = python("-c", code, TINYATTN_CUDA_POOL="1", **{name: value})
        assert run.returncode == 1 and run.stderr.splitlines()[-1].startswith("RuntimeError: TINYATTN_CUDA_POOL=1: "), run.stderr
        assert name in run.stderr.splitlines()[-1]


TRAINED = """if True:
    import json
    import numpy as np
    import tinyattn as ta
    from tinyattn import nn, optim
    from tinyattn.cuda import memory
    model = nn.Linear(3, 4).to('cuda')
    optimizer = optim.Adam(model.parameters(), 1e-2)
    x = ta.Tensor(np.ones((5, 3), np.float32), device='cuda')
    said = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = (model(x).tanh() ** 2).mean()
        loss.backward()
        optimizer.step()
        said.append(memory.stats())
    print(json.dumps(said))"""


def test_a_training_step_asks_for_nothing_after_the_first():
    """In the simulator, whose arrays the pool counts as it would on a card. The second step may ask once more: the first
    loss is still there while the second is computed."""
    run = python("-c", TRAINED, TINYATTN_CUDA_POOL="1", NUMBA_ENABLE_CUDASIM="1")
    assert run.returncode == 0, run.stderr
    steps = [Stats(*step) for step in json.loads(run.stdout)]
    assert steps[0].asked and steps[1].asked <= steps[0].asked + 2
    for before, after in zip(steps[1:], steps[2:], strict=False):
        assert (after.asked, after.in_use, after.cached, after.peak) == (before.asked, before.in_use, before.cached, before.peak)
        assert after.reused > before.reused
