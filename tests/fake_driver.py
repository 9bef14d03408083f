"""A card's driver that is none: NVIDIA's libcuda as Numba calls it, as far as devices, contexts, memory, copies, events, the
assembler and launches go. The card's memory is the host's; a launch is looked at and does nothing. For a process of its own:
`fake_driver.install()` before the first array."""
import ctypes
import threading

OUT_OF_MEMORY, INVALID_VALUE, INVALID_CONTEXT = 2, 1, 201  # errors in cuda.h,
COUNT, MAJOR, MINOR = 16, 75, 76                           # numbers of device attributes,
MOST_BLOCKS, MOST_THREADS = 2**31 - 1, 1024                # limits of a launch
ANYWHERE = {"cuInit", "cuDriverGetVersion", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuDevicePrimaryCtxRetain",
            "cuMemFree", "cuMemFreeHost", "cuEventDestroy", "cuModuleUnload"}  # and cuDevice*: they need no context


class Library:
    """libcuda: each function gets pointers to what it shall fill in, and gives 0 or the number of an error."""
    def __init__(self, total=1 << 20, name=b"Pretended 100", capability=(9, 0), version=13000):
        self.total, self.name, self.capability, self.version = total, name, capability, version
        self.blocks, self.used, self.pinned, self.calls, self.fails = {}, 0, {}, [], {}  # fails: {function: the error that it gives from now on}
        self.thread, self.linked, self.modules, self.launched = threading.local(), 0, 0, []  # launched: (blocks, threads) of each launch

        def function(name):
            method = getattr(Library, name)

            def call(*arguments):
                self.calls.append(name)
                if name in self.fails:
                    return self.fails[name]
                if not (name in ANYWHERE or name.startswith("cuDevice") or getattr(self.thread, "current", 0)):
                    return INVALID_CONTEXT
                return method(self, *[getattr(a, "_obj", a) for a in arguments]) or 0  # _obj: what byref() points to
            call.__name__ = name
            return call
        for name in [n for n in vars(Library) if n.startswith("cu")]:
            setattr(self, name, function(name))

    def holds(self, address, size):
        """Did the card give these bytes, from their first on, and are they not given back?"""
        return address in self.blocks and size <= ctypes.sizeof(self.blocks[address])

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

    def cuCtxGetCurrent(self, out): out.value = getattr(self.thread, "current", 0)

    def cuCtxPushCurrent(self, context): self.thread.current = 77

    def cuCtxPopCurrent(self, out): out.value, self.thread.current = self.thread.current, 0

    def cuCtxGetDevice(self, out): out.value = 0

    def cuCtxSynchronize(self): pass

    def cuMemGetInfo(self, free, total): free.value, total.value = self.total - self.used, self.total

    def cuMemAlloc(self, out, size):
        if self.used + size > self.total:
            return OUT_OF_MEMORY
        block = ctypes.create_string_buffer(size)
        out.value = ctypes.addressof(block)
        self.blocks[out.value] = block
        self.used += size

    def cuMemFree(self, pointer): self.used -= ctypes.sizeof(self.blocks.pop(pointer.value))

    def cuMemHostAlloc(self, out, size, flags):
        block = ctypes.create_string_buffer(size)
        out.value = ctypes.addressof(block)
        self.pinned[out.value] = block

    def cuMemFreeHost(self, pointer): del self.pinned[pointer.value]

    def cuMemcpyHtoD(self, to, source, size, stream=0):
        to, source, size = (getattr(a, "value", a) for a in (to, source, size))
        ctypes.memmove(to, source, size)

    cuMemcpyDtoH = cuMemcpyDtoD = cuMemcpyHtoDAsync = cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoD

    def cuStreamSynchronize(self, stream): pass

    def cuEventCreate(self, out, flags): out.value = 1

    def cuEventDestroy(self, event): pass

    def cuEventRecord(self, event, stream): pass

    def cuEventSynchronize(self, event): pass

    def cuLinkCreate(self, count, keys, values, out): out.value = 1

    def cuLinkDestroy(self, state): pass

    def cuLinkAddData(self, state, kind, data, size, *rest): self.ptx = ctypes.create_string_buffer(data.value)

    def cuLinkComplete(self, state, out, size):
        """The machine code is the PTX itself."""
        self.linked += 1
        out.value, size.value = ctypes.addressof(self.ptx), len(self.ptx)

    def cuModuleLoadDataEx(self, out, image, *options):
        self.modules += 1
        out.value = self.modules

    def cuModuleUnload(self, module): pass

    def cuModuleGetFunction(self, out, module, name): out.value = 1

    def cuFuncGetAttribute(self, out, which, function): out.value = 1

    def cuLaunchKernel(self, function, *arguments):
        blocks, threads = arguments[:3], arguments[3:6]
        self.launched.append((blocks, threads))
        if not 0 < blocks[0] <= MOST_BLOCKS or blocks[1:] != (1, 1) or not 0 < threads[0] <= MOST_THREADS or threads[1:] != (1, 1):
            return INVALID_VALUE


def install(folder=None, **card):
    """Put the library in place of the one that Numba found or did not find; the Library. What is compiled for it is kept in
    this folder or nowhere: no real card must find it."""
    from tinyattn import device
    from tinyattn.cuda import store
    store.FOLDER = folder
    device.numba_cuda()
    from numba.cuda.cudadrv import driver
    library = Library(**card)
    driver.driver.lib, driver.driver.is_initialized, driver.driver.initialization_error = library, True, None
    driver._logger = driver.make_logger()
    return library


def compile_nothing(library):
    """From now on a kernel is not compiled, which takes a second. What Numba compiles it for must be one of the argument types
    that it declares; and at a launch every array that it is given must be there."""
    from numba.core import sigutils, types
    from numba.cuda import dispatcher

    from tinyattn.cuda import CudaKernel

    class Kernel(dispatcher._Kernel):
        """A kernel that does nothing. `launch`, inherited, makes of the arguments what the driver is given."""
        def __init__(self, function, kinds, **options):
            ours = function.ours
            declared = [sigutils.normalize_signature(f"void({s})")[0] for s in ours.signatures]
            assert kinds in declared, f"{ours.name} would be compiled for {kinds} too; declared: {ours.signatures}"
            self.py_func, self.signature, self.name = function, types.void(*kinds), ours.name
            self.cooperative = self.debug = False
            self.extensions, self._codelibrary, self.handle = [], self, 1

        def bind(self):
            pass

        def get_cufunc(self):
            return self

        def launch(self, arguments, *grid):
            for a in arguments:
                if hasattr(a, "dtype") and hasattr(a, "shape") and a.shape:
                    assert hasattr(a, "gpu_data"), f"{self.name}: an array of the host, which Numba would send and fetch"
                    assert library.holds(a.gpu_data.device_ctypes_pointer.value, a.nbytes), f"{self.name}: an array has gone"
            super().launch(arguments, *grid)

    def bound(kernel, before=CudaKernel.bound):
        function = before(kernel)
        function.ours = kernel
        return function

    dispatcher._Kernel, CudaKernel.bound = Kernel, bound
