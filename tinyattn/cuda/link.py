"""What a kernel takes of a card: registers, stack, spills, shared memory. Asked of NVIDIA's assembler, without a card.

PTX knows no limit of registers. The assembler (in the library nvJitLink) gives each thread at most 255 of a card's real
ones. What finds no place is *spilled*: written to the thread's stack frame in the card's memory and read back, which is far
slower. A frame without spills holds a local array that is indexed at run time. The threads of a block share the
65536 registers of one multiprocessor, so what one thread takes limits how many there can be.

A card's driver carries an assembler of its own version, whose numbers may differ by a few registers.
"""
import re
from functools import lru_cache
from typing import NamedTuple


class Usage(NamedTuple):
    """registers: of a thread; stack, spill_stores, spill_loads: bytes of a thread; shared: bytes of a block; threads: the
    most of a block that the registers allow."""
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    threads: int


def usage(ptx, capability):
    """The Usage of the kernel in a PTX text on cards of a compute capability such as (9, 0). ValueError: the assembler
    does not take it, and says why; RuntimeError: there is no assembler."""
    if missing():
        raise RuntimeError(missing())
    from cuda.bindings import nvjitlink
    options, text = [f"-arch=sm_{capability[0]}{capability[1]}", "-verbose", "-O3"], ptx.encode()
    handle = nvjitlink.create(len(options), options)
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.PTX, text, len(text), "kernel")
        nvjitlink.complete(handle)
        log = _log(handle, nvjitlink.get_info_log_size, nvjitlink.get_info_log)
        return read(log, sum(map(int, re.findall(r"\.shared .*\[(\d+)\]", ptx))))
    except nvjitlink.nvJitLinkError as error:
        said = _log(handle, nvjitlink.get_error_log_size, nvjitlink.get_error_log)
        raise ValueError(" ".join(said.split()) or str(error)) from None
    finally:
        nvjitlink.destroy(handle)


def _log(handle, size, get):
    log = bytearray(size(handle))
    if log:
        get(handle, log)
    return log.decode(errors="replace").strip("\0")


def read(log, shared):
    """The Usage that the assembler's log tells. It has a section for each function that was not inlined, and then a line
    for all of them together; a kernel takes the most that any of its functions takes. `shared` is what the PTX asks for:
    the log adds what the system takes for itself from 9.0 on."""
    def found(pattern):
        return [int(number) for number in re.findall(pattern, log)]

    registers = found(r"[Uu]sed (\d+) registers")
    if not registers:
        raise ValueError(f"the assembler's log names no registers: {' '.join(log.split()) or 'it is empty'}")
    return Usage(registers=max(registers),
                 stack=max(found(r"(\d+) bytes stack frame") + found(r", (\d+) stack,"), default=0),
                 spill_stores=sum(found(r"(\d+) bytes spill stores")), spill_loads=sum(found(r"(\d+) bytes spill loads")),
                 shared=shared, threads=most_threads(max(registers)))


def most_threads(registers):
    """The most threads a block, if each takes so many registers. A multiprocessor has four quarters, each with 16384
    registers, out of which the 32 threads of a warp are given theirs in lots of 256."""
    lots = -(-max(registers, 1) * 32 // 256)
    return min(1024, 4 * 32 * (16384 // (lots * 256)))


@lru_cache(maxsize=1)
def missing():
    """Why the assembler cannot be asked here, as one line; '' if it can."""
    try:
        version()
        return ""
    except Exception as error:  # each way of not being there raises its own kind
        reason = str(error).strip().splitlines()
        return ("ptx: NVIDIA's assembler (nvJitLink) was not found, which counts registers; install the extra tinyattn[cuda] "
                f"({type(error).__name__}{': ' + reason[0] if reason else ''})")


def version():
    """(13, 0): the CUDA version of nvJitLink."""
    from cuda.bindings import nvjitlink
    return nvjitlink.version()
