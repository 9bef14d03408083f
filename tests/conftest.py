"""What all tests share: every op is imported, and no test leaves a switch turned for the next one."""
import importlib
import pkgutil

import numpy as np
import pytest

import tinyattn.ops
from tinyattn import device
from tinyattn.autograd import Op, is_grad_enabled, state
from tinyattn.tensor import get_default_dtype

for _module in pkgutil.iter_modules(tinyattn.ops.__path__):
    importlib.import_module(f"tinyattn.ops.{_module.name}")

OPS = dict(sorted(Op.registry.items()))


def pytest_generate_tests(metafunc):
    """A test with the argument `op` runs once for every op of the package."""
    given = [str(m.args[0]) for m in metafunc.definition.iter_markers("parametrize")]
    if "op" in metafunc.fixturenames and not any("op" in names for names in given):
        metafunc.parametrize("op", list(OPS.values()), ids=list(OPS))


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def nothing_left_behind():
    threads = device.get_num_threads()
    yield
    assert is_grad_enabled() and state.fused == "auto" and not state.anomaly and not state.captures
    assert state.scope == ""
    assert get_default_dtype() == np.float32
    assert device.get_num_threads() == threads
