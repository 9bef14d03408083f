"""What the simulator hides: Numba's own arrays, copies, events, types of arguments and launches, over a pretended driver.

`fake_driver.py` stands in for NVIDIA's libcuda; everything above it is Numba's real code for a card. Kernels are not
compiled and do nothing, so every number is 0. What is looked at: that no call of the host fails, that Numba would compile
each kernel for types of arguments that it declares and for no others, that grids are within a card's limits, and that
each array is there when it is launched with. Each part runs in a process of its own.
"""
import json
import os
import sys

import pytest
from test_cuda import ROOT, python


def here(part, **environment):
    """Run a function of this file in a process of its own, and return what it printed: JSON."""
    run = python("-c", f"import test_fake_card; test_fake_card.{part}", **environment)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-5000:]
    return json.loads(run.stdout.splitlines()[-1])


def begin(**card):
    sys.path.insert(0, str(ROOT / "tests" / "on_card"))
    import fake_driver
    library = fake_driver.install(**{"total": 1 << 32, **card})
    fake_driver.compile_nothing(library)
    return library


# ---------------------------------------------------------------------------------------------------------------------
# every op, mechanism, module and system
# ---------------------------------------------------------------------------------------------------------------------
def ops():
    """Values, gradients of each kind and second derivatives: float32 on all samples of an op, float64 on the first."""
    begin()
    import importlib
    import pkgutil

    import numpy as np

    from tinyattn import Tensor, devicecheck, ops
    from tinyattn.cuda import ptx
    from tinyattn.op import Op
    from tinyattn.slopes import Report

    for module in pkgutil.iter_modules(ops.__path__):
        importlib.import_module(f"tinyattn.ops.{module.name}")
    kernels = ptx.kernels()
    for name, op in sorted(Op.registry.items()):
        for number, (attributes, inputs) in enumerate(op.samples(np.random.default_rng(0))):
            tensors = [None if x is None else Tensor(np.asarray(x)) for x in inputs]
            labels = [f"input {i}" for i in range(len(inputs))]
            for dtype in ("float32", "float64")[:1 + (number == 0)] if name != "transfer" else ():
                report = Report(name)
                try:
                    devicecheck._results("cuda", lambda *x, op=op, attributes=attributes: op(**attributes)(*x),
                                         tensors, dtype, 0, labels, None, report)
                    assert report.ok, report.reason
                except Exception as error:
                    raise AssertionError(f"{name}({attributes}), sample {number}, {dtype}") from error
    large(np.random.default_rng(0))
    print(json.dumps([name for name, kernel in kernels.items() if kernel._built is None]))


def large(rng):
    """What is launched for sizes beyond those of samples, and beside ops."""
    import numpy as np

    from tinyattn import Tensor, embedding, optim
    for dtype in ("float32", "float64"):
        def weight(*shape, dtype=dtype):
            return Tensor(np.zeros(shape, dtype), device="cuda", requires_grad=True)

        for a, b in (((1024, 1024), (1024, 1024)), ((300, 400), (400, 300)), ((64, 30_000), (30_000, 64)), ((8, 256, 65), (8, 65, 300))):
            a, b = weight(*a), weight(*b)
            (a @ b).sum().backward()
        table = weight(5000, 64)
        embedding(table, rng.integers(0, 5000, 100_000)).sum().backward()
        wide = weight(300, 5000)
        (wide.softmax() + wide.log_softmax()).sum().backward()
        wide.argmax(1), wide.isnan(), (wide > 0).isfinite(), wide.max(), wide.sum(0)
        for optimizer in (optim.SGD([wide, table], 0.1), optim.SGD([wide, table], 0.1, momentum=0.9), optim.Adam([wide, table], 0.1),
                          optim.Adadelta([wide, table])):
            optimizer.guard(wide.sum())
            optimizer.clip_grad_norm(1.0)
            optimizer.step()


def test_every_op():
    assert here("ops()") == [], "kernels that no sample launches"


def mechanisms():
    """Values and gradients, as a training step has them."""
    begin()
    import numpy as np

    from tinyattn import Tensor, grad, nn
    from tinyattn.attention import find, table
    from tinyattn.attention.properties import leaves, outputs_of
    from tinyattn.commands.names import modules
    from tinyattn.device import default_device
    from tinyattn.devicecheck import _leaves, _placed

    def run(function, inputs, parameters=()):
        with default_device("cuda"):
            inputs = [_placed(x, "float32") for x in inputs]
            ends = [out for out in outputs_of(function(*inputs)) if out.requires_grad]
            wanted = [*parameters, *(t for x in inputs for t in _leaves(x))]
            if ends and wanted:
                g = [Tensor(np.ones(out.shape), dtype=out.dtype) for out in ends]
                assert all(t is None or t.device == "cuda" for t in grad(ends, wanted, g, allow_unused=True))

    names = list(table())
    for name in names:
        variant = find(name)
        inputs = leaves(variant.part("example")(np.random.default_rng(0)), where="cpu")
        run(lambda *values, variant=variant, inputs=inputs: variant(**dict(zip(inputs, values, strict=True))), inputs.values())
    for name, cls in modules().items():
        module, inputs = nn.example_of(cls, np.random.default_rng(0), np.float32)
        run(module.to("cuda"), inputs, module.parameters())
        names.append(name)
    print(json.dumps(names))


def test_every_mechanism_and_module():
    assert len(here("mechanisms()")) > 60


def training():
    begin()
    from test_card_systems import KINDS, steps, tiny

    for kind in KINDS:
        system, batch = tiny(kind)
        steps(system, batch, "cuda", system.model.state_dict(), 2)
    print(json.dumps(len(KINDS)))


def test_a_training_step_of_every_system():
    assert here("training()") > 30


# ---------------------------------------------------------------------------------------------------------------------
# copies, threads, errors
# ---------------------------------------------------------------------------------------------------------------------
def copies():
    if not os.environ.get("NUMBA_ENABLE_CUDASIM"):
        begin()
    import copy
    import pickle

    import numpy as np

    from tinyattn import Tensor, nn, no_grad, optim

    def loss_of(model):
        return (model(Tensor(np.ones((2, 3), np.float32), device="cuda")) ** 2).mean()

    for again in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        for data in (np.arange(6.0).reshape(2, 3), np.array(3.0), np.zeros((0, 2)), np.arange(3), np.array([True, False])):
            x = Tensor(data, device="cuda", requires_grad=data.dtype.kind == "f", name="x")
            y = again(x)
            assert (y.device, y.requires_grad, y.name, y.dtype) == ("cuda", x.requires_grad, "x", x.dtype)
            assert y.array is not x.array and np.array_equal(x.numpy(), y.numpy()) and y.shape == x.shape
            with no_grad():
                y.fill_(1 - y.numpy().max(initial=0))
            assert np.array_equal(x.numpy(), data)
        model = nn.Linear(3, 4).to("cuda")
        optimizer = optim.Adam(model.parameters(), 1e-2)
        loss = loss_of(model)
        loss.backward()
        optimizer.step()
        other, steps = again((model, optimizer))
        assert steps.slots[0].tensor is next(iter(other.parameters())) and steps.slots[0].array is steps.slots[0].tensor.array
        loss_of(other).backward()
        steps.step()
        again(loss).backward()
    print(json.dumps(len(list(other.parameters()))))


@pytest.mark.parametrize("simulated", [False, True])
def test_copies_and_pickles(simulated):
    assert here("copies()", **({"NUMBA_ENABLE_CUDASIM": "1"} if simulated else {})) == 2


def threads():
    """Another thread may use the card, before or after this one; and the last to hold an array may be one that never did."""
    library = begin()
    import threading

    import numpy as np

    from tinyattn import Tensor, device, nn, optim

    def train():
        model = nn.Linear(3, 4).to("cuda")
        optimizer = optim.Adam(model.parameters(), 1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            (model(Tensor(np.ones((2, 3), np.float32), device="cuda")) ** 2).mean().backward()
            optimizer.clip_grad_norm(1.0)
            optimizer.step()
        done.append(model)

    def elsewhere(function):
        thread = threading.Thread(target=function)
        thread.start()
        thread.join()

    done = []
    elsewhere(train)
    train()
    elsewhere(train)
    arrays, before = [device.empty((1000,), "float32", "cuda") for _ in range(40)], library.used
    elsewhere(arrays.clear)
    held = library.used
    for _ in range(20):
        device.empty((1,), "float32", "cuda")
    print(json.dumps([len(done), before == held, before - library.used]))


def test_other_threads():
    run = python("-c", "import test_fake_card; test_fake_card.threads()")
    assert run.returncode == 0 and not run.stderr, run.stderr
    trained, held, given_back = json.loads(run.stdout)
    assert trained == 3 and held and given_back >= 40 * 4000 - 400


FAILS = """if True:
    import sys
    import test_fake_card
    library = test_fake_card.begin(total=1 << 20)
    from tinyattn import cli, device
    there = [device.empty((10,), 'float32', 'cuda') for _ in range(30)]

    def command(arguments, **options):
        for name, error in {errors}.items():
            library.fails[name] = error
        {code}
    cli.root.main = command
    sys.exit(cli.main([]))"""
ALL = dict.fromkeys(("cuMemcpyDtoH", "cuMemAlloc", "cuMemFree", "cuMemcpyHtoDAsync", "cuLaunchKernel", "cuCtxSynchronize"), 700)


@pytest.mark.parametrize("code, errors, said", [
    ("device.empty((1 << 20, 2), 'float64', 'cuda')", {},
     "tinyattn: not enough memory: device 'cuda': no 16,777,216 bytes are free, for an array of shape (1048576, 2) and type float64; "
     "try smaller sizes"),
    ("device.to_device(there[0], 'cpu')", ALL, "tinyattn: CudaAPIError: [700] Call to cuMemcpyDtoH results in"),
], ids=["memory", "kernel"])
def test_errors_of_a_card_are_one_line(code, errors, said):
    run = python("-c", FAILS.format(code=code, errors=errors))
    assert run.returncode in (1, 2) and run.stderr.startswith(said) and run.stderr.count("\n") == 1, run.stderr


def test_a_card_without_a_compiler():
    code = """if True:
        import test_fake_card
        test_fake_card.begin()
        from numba.cuda.cudadrv import nvvm
        nvvm.is_available = lambda: False
        from tinyattn import device
        device.empty(3, 'float32', 'cuda')"""
    run = python("-c", code)
    assert run.stderr.splitlines()[-1].startswith("RuntimeError: device 'cuda': there is a card, but NVIDIA's compiler"), run.stderr


def test_a_launch_is_refused_before_numba_sees_it():
    code = """if True:
        import numpy as np
        import test_fake_card
        library = test_fake_card.begin()
        from tinyattn import cuda, device
        from tinyattn.cuda.arrays import _fill_cuda
        x = device.empty(3, 'int64', 'cuda')
        for blocks, value in ((1, True), (1, np.int32(1)), (1, 1.0), (2**31, 1)):
            try:
                _fill_cuda[blocks, 4](x, value)
            except (TypeError, ValueError) as error:
                print(type(error).__name__)
        _fill_cuda[0, 4](x, 1)
        print(len(library.launched))
        _fill_cuda[1, 4](x, np.int64(1))
        print(len(library.launched))"""
    assert python("-c", code).stdout.split() == ["TypeError", "TypeError", "TypeError", "ValueError", "0", "1"]


WRONG = """if True:
    import numpy as np
    import test_fake_card
    library = test_fake_card.begin()
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    from tinyattn import device
    from tinyattn.cuda.arrays import _add_to_cuda
    x, gone = (device.empty(8, 'float32', 'cuda') for _ in range(2))
    library.blocks[1] = library.blocks.pop(gone.gpu_data.device_ctypes_pointer.value)
    apart = DeviceNDArray((4,), (8,), x.dtype, gpu_data=x.gpu_data)
    for other in (device.empty(0, 'float32', 'cuda'), apart, gone, np.zeros(8, np.float32)):
        try:
            _add_to_cuda[1, 4](x, other)
        except AssertionError as error:
            print(error)"""


def test_the_pretended_card_finds_what_is_wrong():
    """An array without elements, elements that lie apart, memory that was given back, an array of the host."""
    empty, apart, gone, host = python("-c", WRONG).stdout.splitlines()
    assert "an array has gone" in empty and "would be compiled for" in apart and "an array has gone" in gone and "of the host" in host


# ---------------------------------------------------------------------------------------------------------------------
# compiled once
# ---------------------------------------------------------------------------------------------------------------------
def step(folder, **card):
    """A training step with kernels that Numba and NVIDIA's compiler make; the pretended driver assembles them."""
    import fake_driver
    library = fake_driver.install(folder=folder, total=1 << 26, **card)
    import numpy as np

    from tinyattn import Tensor, optim
    w = Tensor(np.ones(3, np.float32), device="cuda", requires_grad=True)
    optimizer = optim.SGD([w], 0.1)
    w.tanh().sum().backward()
    optimizer.step()
    print(json.dumps([library.linked, len(library.launched)]))


def test_a_second_process_compiles_nothing(tmp_path):
    def run(folder, card=""):
        return here(f"step({folder}{card})")
    where = f"__import__('pathlib').Path({str(tmp_path / 'cuda')!r})"
    missing = python("-c", "from tinyattn.cuda import ptx; print(ptx.toolkit_missing())").stdout.strip()
    if missing:
        assert not os.environ.get("TINYATTN_NEED_PTX"), missing
        pytest.skip(missing)
    compiled, launched = run(where)
    assert 4 < compiled <= launched
    assert run(where) == [0, launched]
    kept = sorted((tmp_path / "cuda").iterdir())
    assert len(kept) == compiled
    kept[0].write_bytes(kept[0].read_bytes()[:100])             # cut off
    kept[1].write_bytes(b"")
    assert run(where) == [2, launched]
    assert run(where, ", capability=(8, 0), version=12080")[0] == compiled  # another card and driver
    assert sum(path.stat().st_size > 100 for path in (tmp_path / "cuda").iterdir()) == 2 * compiled


MADE_OF = """if True:
    import json
    from tinyattn.cuda import ptx, store
    from tinyattn.cuda.kernel import CudaFunction
    every = ptx.kernels()

    def made_of(kernel):
        bound = kernel.bound()
        return store.made_of(bound.parts, bound.__globals__)
    before = {name: made_of(kernel) for name, kernel in every.items()}
    names = every['matmul.product_small'].function.__globals__
    constant = next(n for n in sorted(names) if n.isupper() and type(names[n]) is int
                    and n in every['matmul.product_small'].function.__code__.co_names)
    names[constant] += 1

    def tanh(x):
        return x + x
    every['unary.tanh'].function.__globals__['formula'] = CudaFunction(tanh)
    changed = [name for name, kernel in every.items() if made_of(kernel) != before[name]]
    print(json.dumps([before, changed]))"""


def test_what_a_kernel_is_made_of():
    """Different for every kernel, the same in every process; another formula or number of the module is another kernel."""
    (first, changed), (again, _) = (json.loads(python("-c", MADE_OF, PYTHONHASHSEED=seed).stdout) for seed in ("1", "2"))
    assert first == again and len(set(first.values())) == len(first) > 100
    assert {"unary.tanh", "matmul.product_small"} <= set(changed)
    assert all(name == "unary.tanh" or name.startswith("matmul.") for name in changed)
