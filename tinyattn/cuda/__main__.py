"""`python -m tinyattn.cuda`: what this machine has for CUDA, as JSON {what: one line}. `tinyattn doctor` shows it, and asks
in a process of its own, which a broken driver may crash or hang."""
import ctypes
import json
import re
import shutil
import sys
from pathlib import Path

from .. import device
from . import link, ptx
from .kernel import CAPABILITIES

WHEELS = "install the extra tinyattn[cuda]"


def facts():
    """{what: one line}; what is missing says what to do. Nothing here raises."""
    lines = {"cuda": device.cuda_status(), "cuda driver": _or_why(_driver, "a card needs NVIDIA's driver"), **_cards()}
    lines["libNVVM"] = _or_why(lambda: f"{_release()} in {_where('nvvm')}", WHEELS + " or the CUDA toolkit")
    lines["libdevice"] = _or_why(lambda: _where("libdevice"), WHEELS + " or the CUDA toolkit")
    lines["nvJitLink"] = _or_why(_assembler, WHEELS + "; without it `tinyattn ptx` cannot count registers")
    lines["PTX"] = _or_why(_ptx, WHEELS + " or the CUDA toolkit")
    lines["compute-sanitizer"] = shutil.which("compute-sanitizer") or \
        "not on the PATH; it looks for kernels' races and wrong addresses on a card, and comes with the CUDA toolkit"
    return lines


def _or_why(make, advice):
    try:
        return make()
    except Exception as error:  # each library has its own ways of not being there
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"none; {advice} ({reason})"


def _driver():
    """Its own release, where the system tells it, and the CUDA version that it can do."""
    from numba.cuda.cudadrv.driver import driver
    cuda = "for CUDA {}.{}".format(*_driver_cuda(driver))
    file = Path("/proc/driver/nvidia/version")
    release = re.search(r"\b\d{3,}\.\d[\d.]*", file.read_text(encoding="utf-8")) if file.is_file() else None
    return f"{release[0]} {cuda}" if release else cuda


def _driver_cuda(driver):
    if driver.initialization_error is not None:
        raise RuntimeError(driver.initialization_error)
    return driver.get_version()


def _cards():
    """{"cuda card 0": name, memory, compute capability and multiprocessors}."""
    if device.cuda_status() != "present":
        return {"cuda card": "none"}

    def card(number):
        from numba.cuda.cudadrv.driver import driver
        found, total = driver.get_device(number), ctypes.c_size_t()
        driver._find_api("cuDeviceTotalMem")(ctypes.byref(total), ctypes.c_int(number))
        name = found.name.decode() if isinstance(found.name, bytes) else found.name
        return (f"{name}, {total.value / 2**30:.1f} GiB, capability {'{}.{}'.format(*found.compute_capability)}, "
                f"{found.MULTIPROCESSOR_COUNT} multiprocessors")

    count = _or_why(lambda: device.numba_cuda().cudadrv.driver.driver.get_device_count(), "")
    if not isinstance(count, int):
        return {"cuda card": count}
    return {f"cuda card {n}": _or_why(lambda n=n: card(n), "the driver does not tell it") for n in range(count)}


def _release():
    """The version of the compiler, as it writes it into what it compiles."""
    return re.search(r"\bV(\d[\d.]*)", ptx.trial(CAPABILITIES[0]))[1]


def _where(library):
    from numba.cuda.cuda_paths import get_cuda_paths
    found = get_cuda_paths()[library].info
    if not found:
        raise RuntimeError("Numba looked in CUDA_HOME, conda, /usr/local/cuda and the packages nvidia-*")
    return found


def _assembler():
    version = "{}.{}".format(*link.version())
    from cuda.pathfinder import load_nvidia_dynamic_lib
    return f"{version} in {load_nvidia_dynamic_lib('nvJitLink').abs_path}"


def _ptx():
    """For which capabilities the compiler works, and whether the driver can read what it writes."""
    wanted = list(CAPABILITIES)
    if device.cuda_status() == "present":
        own = device.numba_cuda().get_current_device().compute_capability
        wanted += [own] if own not in wanted else []
    texts = [ptx.trial(capability) for capability in wanted]
    said = "compiles for " + ", ".join("{}.{}".format(*c) for c in wanted)
    major, minor = map(int, re.search(r"\.version (\d+)\.(\d+)", texts[0]).groups())
    if device.cuda_status() == "present":
        from numba.cuda.cudadrv.driver import driver
        able, needed = _driver_cuda(driver), (major + 4, minor)  # PTX 9.0 came with CUDA 13.0
        if able < needed:
            said += ("; but it writes PTX {}.{}, of CUDA {}.{}, and the driver is for {}.{}: take a newer driver, or set CUDA_HOME to "
                     "an older toolkit").format(major, minor, *needed, *able)
    return said


if __name__ == "__main__":
    json.dump(facts(), sys.stdout)
