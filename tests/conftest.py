"""What all tests share: every op is imported, and no test leaves a switch turned for the next one."""
import importlib
import os
import pkgutil
import shutil
from pathlib import Path

import numpy as np
import pytest

import tinyattn.ops
from tinyattn import device
from tinyattn.autograd import Op, is_grad_enabled, state
from tinyattn.tensor import get_default_dtype

for _module in pkgutil.iter_modules(tinyattn.ops.__path__):
    importlib.import_module(f"tinyattn.ops.{_module.name}")

device.patience.told = True  # tests that read standard error do not depend on what is in the kernel cache

OPS = dict(sorted(Op.registry.items()))


def pytest_generate_tests(metafunc):
    """A test with the argument `op` runs once for every op of the package."""
    given = [str(m.args[0]) for m in metafunc.definition.iter_markers("parametrize")]
    if "op" in metafunc.fixturenames and not any("op" in names for names in given):
        metafunc.parametrize("op", list(OPS.values()), ids=list(OPS))


def pytest_collection_modifyitems(items):
    """With NUMBA_DISABLE_JIT=1 the tests marked `compiled` are left out."""
    for item in items:
        if not device.JIT and item.get_closest_marker("compiled"):
            item.add_marker(pytest.mark.skip(reason="wants compiled kernels: their speed, or how they round"))


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


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium (a Playwright Browser). Where there is none the test is skipped, with the reason; it fails if
    TINYATTN_NEED_BROWSER is set."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
        missing = None if program else "no Chromium on this machine"
    except ImportError:
        missing = "the Python package playwright is not installed"
    if missing:
        (pytest.fail if os.environ.get("TINYATTN_NEED_BROWSER") else pytest.skip)(missing)
    with sync_playwright() as playwright:
        quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync"]
        browser = playwright.chromium.launch(executable_path=program, args=quiet)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """opened(path, width=1280, height=800): a Playwright Page showing that file. At the end: no error in the page's
    scripts, and nothing was asked for but files of the disk."""
    contexts, errors, asked = [], [], []

    def open_(path, width=1280, height=800):
        context = chromium.new_context(viewport={"width": width, "height": height}, offline=True)
        contexts.append(context)
        shown = context.new_page()
        shown.on("pageerror", lambda error: errors.append(str(error)))
        shown.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        shown.on("request", lambda request: asked.append(request.url))
        shown.goto(Path(path).absolute().as_uri())
        return shown

    yield open_
    for context in contexts:
        context.close()
    assert not errors, errors
    assert all(url.startswith(("file:", "data:")) for url in asked), asked
