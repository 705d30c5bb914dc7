"""The context in which arrays are larger than RAM, and its figures."""

import os
import re
import threading
from contextlib import ContextDecorator
from contextvars import ContextVar
from typing import Any, List, NamedTuple, Optional, Tuple, Union

from . import _native

#: Bytes, or a text like ``"512M"`` or ``"1.5GiB"`` in powers of 1024.
Size = Union[int, str]
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def _bytes(size: Size) -> int:
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"a size is a number of bytes or a text like '2G', not {size!r}")
    if isinstance(size, int):
        if not 0 <= size < 1 << 63:
            raise ValueError(f"{size} bytes are no size")
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
    if not found:
        raise ValueError(f"{size!r} is no size: write a number, and K, M, G or T (powers of 1024); for example '512M' or '1.5G'")
    return _bytes(int(float(found[1]) * (1 << _UNITS[found[2].lower()])))


class Stats(NamedTuple):
    """What became of the pages of all arrays so far. Sizes are in bytes, the rest are counts; a page has 4096 bytes."""

    #: The budget.
    ram_bytes: int
    #: What counts against it: resident pages of arrays, the pool, pages on their way, and tables.
    used_bytes: int
    #: Arrays in regions, as they were asked for.
    region_bytes: int
    #: How many arrays that are.
    regions: int
    #: Pages in the compressed pool now.
    stored_pages: int
    #: What the pool takes for them, in bytes.
    pool_bytes: int
    #: Pages on their way out or in, in bytes.
    staged_bytes: int
    #: Pages that went into the pool.
    pages_out: int
    #: Pages that came out of it.
    pages_in: int
    #: Pages that came back on their way out, before they were compressed.
    refaults: int
    #: Pages of zeroes given on first touch.
    zero_filled: int
    #: Page faults served.
    faults: int
    #: Nanoseconds that serving them took.
    fault_ns: int
    #: Times a page did not compress and stayed in memory.
    incompressible: int
    #: Times there was nothing left to move out although the budget was exceeded.
    over_budget: int
    #: Pages in the swap file now.
    disk_pages: int
    #: Bytes that their objects take there.
    disk_bytes: int
    #: Pages that went to the swap file.
    pages_written: int
    #: Page faults served from the swap file.
    disk_faults: int


def stats() -> Stats:
    """Figures of all arrays of this process together; all zero before the first :class:`memory`, and in a forked child."""
    return Stats(**_native.stats())


class _Block:
    """One ``with`` that is open."""

    def __init__(self, owner: "memory", ram: int) -> None:
        self.owner = owner
        self.ram = ram


#: Open blocks of all threads, in order of entry: the last one's budget is in force.
_open: List[_Block] = []
_lock = threading.Lock()
#: Open blocks of the calling context, each with numpy's handler before it.
_here: ContextVar[Tuple[Tuple[_Block, Any], ...]] = ContextVar("uzswap.memory", default=())


def _forget() -> None:
    """A forked child has no budget to go back to, and perhaps a lock that another thread had."""
    global _lock
    _lock = threading.Lock()
    _open.clear()


os.register_at_fork(after_in_child=_forget)


class memory(ContextDecorator):
    """A context in which numpy's large arrays take at most ``ram`` of memory together, however large they are.

    Every array whose data numpy allocates inside, directly or for pandas or other packages, is a plain ``numpy.ndarray`` of
    of any shape and type. Arrays live as long as they are referred to, also after the block, and the budget stays with them.
    It is also a decorator for functions.

    There is one budget a process. A block inside another changes it, and its end gives the outer one's back; at the end of
    all blocks the last one's stays.

    The block is the calling thread's (or task's), as numpy's allocation functions are: arrays that *other* threads allocate are
    ordinary ones unless these threads enter a block as well, or run in a copy of this one's context
    (``executor.submit(contextvars.copy_context().run, function)``). Any thread may use and free arrays from here.

    Args:
        ram: bytes, or a text like ``"2G"`` in powers of 1024; at least 8 MiB. What is not in arrays from such blocks is not
            counted: Python's objects (so columns of ``object`` and Arrow's strings), plain arrays.
        swap: a swap file of at most so many bytes (a size like ``ram``) for what does not fit into ``ram`` compressed; encrypted,
            without a name, gone with the process. The process's first block decides. Without one, data that do not compress stay in
            memory, and the budget is exceeded: ``stats().over_budget`` counts that.
        swap_dir: where the swap file is: a directory on a disk, ``/var/tmp`` if nothing is said.
        compressor: one of :func:`compressors`, for all arrays of the process; None for the one in use, ``"auto"`` at first.
        smallest: arrays of fewer bytes than this (a size like ``ram``) are left to the C library, outside of the budget.

    Raises:
        ValueError: a size or a name is wrong, or the process uses another compressor already.
        PermissionError: userfaultfd is not permitted; the text has the command that permits it.
        OSError: the system lacks or refuses something else.
        ImportError: there is no numpy, or one older than 1.22.

    After ``os.fork()``, and in ``multiprocessing``'s forked workers, a child has its arrays as plain memory and needs room for
    them; it may enter a block of its own for new ones.
    """

    def __init__(
        self,
        ram: Size,
        swap: Optional[Size] = None,
        *,
        swap_dir: Optional[str] = None,
        compressor: Optional[str] = None,
        smallest: Size = "1M",
    ) -> None:
        self._ram = _bytes(ram)
        self._swap = None if swap is None else _bytes(swap)
        self._swap_dir = None if swap_dir is None else os.fspath(swap_dir)
        self._compressor = compressor
        self._smallest = _bytes(smallest)

    def __enter__(self) -> "memory":
        import numpy  # noqa: F401  (its functions are what is changed)

        block = _Block(self, self._ram)
        with _lock:
            _native.start(self._ram, self._compressor, self._swap, self._swap_dir)
            _open.append(block)
        try:
            before = _native.set_handler(_native.handler(self._smallest))
        except BaseException:
            self._close(block)
            raise
        _here.set(_here.get() + ((block, before),))
        return self

    def __exit__(self, *_: object) -> None:
        blocks = list(_here.get())
        at = max((index for index, (block, _) in enumerate(blocks) if block.owner is self), default=None)
        if at is None:
            raise RuntimeError("a block ends in the thread or task in which it began")
        block, before = blocks.pop(at)
        _here.set(tuple(blocks))
        _native.set_handler(before)
        self._close(block)

    @staticmethod
    def _close(block: _Block) -> None:
        with _lock:
            if block not in _open:
                return
            _open.remove(block)
            if _open:
                _native.start(_open[-1].ram, None)
