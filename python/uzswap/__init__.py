"""Arrays larger than RAM: compressed swap in user space.

>>> import numpy, uzswap                                # doctest: +SKIP
>>> with uzswap.memory(ram="2G"):                       # doctest: +SKIP
...     a = numpy.zeros((40_000, 20_000))               # 6 GiB, as an ordinary ndarray
...     a += 1
>>> uzswap.stats().used_bytes <= 2 << 30                # doctest: +SKIP
True

Pages of such arrays that were not used for a while are compressed, inside this process, and come back when they are touched. It
takes Linux with userfaultfd: root, ``vm.unprivileged_userfaultfd=1``, or access to ``/dev/userfaultfd``.
"""

import re
from typing import Any, List, NamedTuple, Union

from . import _native

__all__ = ["PAGE_SIZE", "Stats", "compress", "compressors", "decompress", "memory", "stats"]

#: Bytes in a page.
PAGE_SIZE: int = _native.PAGE_SIZE

Size = Union[int, str]
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def _bytes(size: Size) -> int:
    """Bytes of a size: a number of bytes, or a text like ``"512M"``, ``"1.5GiB"`` with units of powers of 1024.

    Raises ValueError for what is neither.
    """
    if isinstance(size, int):
        return size
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
    if not found:
        raise ValueError(f"{size!r} is no size: a number, and k, M, G or T")
    return int(float(found[1]) * (1 << _UNITS[found[2].lower()]))


class Stats(NamedTuple):
    """What became of the pages of all arrays so far. Sizes are in bytes, the rest are counts; a page has 4096 bytes."""

    #: The budget.
    ram_bytes: int
    #: What counts against it: resident pages of arrays, the pool, pages on their way, and tables.
    used_bytes: int
    #: Arrays in regions, as they were asked for.
    region_bytes: int
    #: Arrays in regions.
    regions: int
    #: Pages in the compressed pool now.
    stored_pages: int
    #: What the pool takes for them.
    pool_bytes: int
    #: Pages on their way out or in.
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


def stats() -> Stats:
    """Figures of all arrays together; all zero before the first :class:`memory`."""
    return Stats(**_native.stats())


class memory:
    """A context in which numpy's large arrays take at most ``ram`` of memory together, however large they are.

    Every array whose data numpy allocates inside, directly or for pandas or other packages, is a plain ``numpy.ndarray`` of
    whatever shape and type. Arrays live as long as they are referred to, also after the context, and the budget stays with
    them. There is one budget a process: a context inside another, or after it, changes it.

    The context is the calling thread's (or task's), as numpy's allocation functions are: arrays that *other* threads allocate are
    ordinary ones unless these threads enter a context as well. Their accesses to arrays from here are like anybody's.

    Args:
        ram: bytes, or a text like ``"2G"`` in powers of 1024; at least 8 MiB.
        compressor: one of :func:`compressors`; the first context of the process chooses.
        smallest: arrays of fewer bytes than this (a size like ``ram``) are left to the C library, outside of the budget.

    Raises:
        ValueError: a size or a name is wrong.
        OSError: userfaultfd is not permitted; the text has the command that permits it.
        ImportError: there is no numpy (1.22 or later).

    Data that do not compress stay in memory, and the budget is exceeded then: ``stats().over_budget``. After ``os.fork()`` the child
    has its arrays as plain memory and needs room for them.
    """

    def __init__(self, ram: Size, *, compressor: str = "auto", smallest: Size = "1M") -> None:
        self._ram = _bytes(ram)
        self._compressor = compressor
        self._smallest = _bytes(smallest)
        self._before: List[Any] = []

    def __enter__(self) -> "memory":
        import numpy  # noqa: F401  (its functions are what is changed)

        _native.start(self._ram, self._compressor)
        _native.set_smallest(self._smallest)
        self._before.append(_native.set_handler(_native.handler()))
        return self

    def __exit__(self, *_: object) -> None:
        _native.set_handler(self._before.pop())


def compressors() -> List[str]:
    """Every compressor of this build, as its name is to be written, parameters in brackets: ``"zstd[:LEVEL]"``."""
    return _native.compressors()


def compress(data: bytes, compressor: str = "auto") -> bytes:
    """Compresses 1 to 16 pages as one unit.

    Args:
        data: 4096 to 65536 bytes, whole pages.
        compressor: a name as in :func:`compressors`.

    Returns:
        The object, which :func:`decompress` takes; as long as ``data``, and the same bytes, when it does not shrink.

    Raises:
        ValueError: ``data`` is not whole pages, or there is no such compressor.
    """
    return _native.compress(data, compressor)


def decompress(data: bytes, length: int = PAGE_SIZE, compressor: str = "auto") -> bytes:
    """Decompresses what :func:`compress` made.

    Args:
        data: the object.
        length: bytes before compression.
        compressor: the same name.

    Raises:
        ValueError: the object is damaged, or was made of another length or by another compressor, as far as that can be told.
    """
    return _native.decompress(data, length, compressor)
