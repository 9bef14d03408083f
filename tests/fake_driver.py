"""A card's driver that is none: NVIDIA's libcuda as Numba calls it, as far as devices, contexts, memory and copies go. The
card's memory is the host's. It takes no kernels. For a process of its own: `fake_driver.install()` before the first array."""
import ctypes

OUT_OF_MEMORY = 2
COUNT, MAJOR, MINOR = 16, 75, 76  # numbers of device attributes in cuda.h


class Library:
    """libcuda: each function gets pointers to what it shall fill in, and gives 0 or the number of an error."""
    def __init__(self, total=1 << 20, name=b"Pretended 100", capability=(9, 0), version=13000):
        self.total, self.name, self.capability, self.version = total, name, capability, version
        self.blocks, self.calls, self.current = {}, [], 0

        def function(name):
            method = getattr(Library, name)

            def call(*arguments):
                self.calls.append(name)
                return method(self, *[getattr(a, "_obj", a) for a in arguments]) or 0  # _obj: what byref() points to
            call.__name__ = name
            return call
        for name in [n for n in vars(Library) if n.startswith("cu")]:
            setattr(self, name, function(name))

    @property
    def used(self):
        return sum(map(ctypes.sizeof, self.blocks.values()))

    def cuInit(self, flags): pass

    def cuDriverGetVersion(self, out): out.value = self.version

    def cuDeviceGetCount(self, out): out.value = 1

    def cuDeviceGet(self, out, number): out.value = number

    def cuDeviceGetAttribute(self, out, which, device):
        out.value = {COUNT: 132, MAJOR: self.capability[0], MINOR: self.capability[1]}.get(which, 1)

    def cuDeviceGetName(self, out, size, device): out.value = self.name

    def cuDeviceGetUuid(self, out, device): pass

    def cuDeviceTotalMem(self, out, device): out.value = self.total

    def cuDevicePrimaryCtxRetain(self, out, device): out.value = 77

    def cuDevicePrimaryCtxRelease(self, device): pass

    def cuDevicePrimaryCtxReset(self, device): pass

    def cuCtxGetCurrent(self, out): out.value = self.current

    def cuCtxPushCurrent(self, context): self.current = 77

    def cuCtxPopCurrent(self, out): out.value, self.current = self.current, 0

    def cuCtxGetDevice(self, out): out.value = 0

    def cuCtxSynchronize(self): pass

    def cuMemGetInfo(self, free, total): free.value, total.value = self.total - self.used, self.total

    def cuMemAlloc(self, out, size):
        if self.used + size > self.total:
            return OUT_OF_MEMORY
        block = ctypes.create_string_buffer(size)
        out.value = ctypes.addressof(block)
        self.blocks[out.value] = block

    def cuMemFree(self, pointer): del self.blocks[pointer.value]

    def cuMemcpyHtoD(self, to, source, size, stream=0):
        to, source, size = (getattr(a, "value", a) for a in (to, source, size))
        ctypes.memmove(to, source, size)

    cuMemcpyDtoH = cuMemcpyDtoD = cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoD


def install(**card):
    """Put the library in place of the one that Numba found or did not find; the Library."""
    from tinyattn import device
    device.numba_cuda()
    from numba.cuda.cudadrv import driver
    library = Library(**card)
    driver.driver.lib, driver.driver.is_initialized, driver.driver.initialization_error = library, True, None
    driver._logger = driver.make_logger()
    return library
