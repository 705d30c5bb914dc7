"""The context in which arrays are larger than RAM, and its figures."""

import operator
import os
import re
import threading
from contextlib import ContextDecorator
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, List, NamedTuple, Optional, SupportsIndex, Tuple, Union

from . import _native

#: Bytes, or a text like ``"512M"`` or ``"1.5GiB"`` in powers of 1024.
Size = Union[SupportsIndex, str]
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


def _bytes(size: Size) -> int:
    if isinstance(size, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?\s*", size, re.IGNORECASE)
        if not found:
            raise ValueError(
                f"{size!r} is no size: write a number, and K, M, G or T (powers of 1024); "
                "for example '512M' or '1.5G'"
            )
        # More digits are no size of any machine, and Python refuses to convert thousands of them.
        if len(found[1]) > 40:
            raise ValueError(f"a size of {len(found[1])} digits is more than any machine can address")
        size = int(Fraction(found[1]) * (1 << _UNITS[found[2].lower()]))
    elif isinstance(size, bool) or not hasattr(size, "__index__"):
        raise TypeError(f"a size is a number of bytes or a text like '2G', not {size!r}")
    count = operator.index(size)
    if not 0 <= count < 1 << 63:
        raise ValueError(f"{_shown(count)} is no size")
    return count


def _shown(count: int) -> str:
    """Formats bytes for people."""
    if count.bit_length() > 64:
        return f"a number of {count.bit_length()} bits"
    power = max((power for power in (0, 10, 20, 30, 40) if abs(count) >> power), default=0)
    number = f"{count / (1 << power):.1f}".removesuffix(".0") if power else str(count)
    return f"{number} {dict(zip((0, 10, 20, 30, 40), ('B', 'KiB', 'MiB', 'GiB', 'TiB')))[power]}"


class Stats(NamedTuple):
    """Figures of all arrays. A page has 4096 bytes.

    ram_bytes:
        The budget in bytes.
    used_bytes:
        Bytes that count against the budget: resident pages of
        arrays, the pool, pages on their way, and tables.
    region_bytes:
        Bytes of the arrays, as they were asked for.
    regions:
        Number of these arrays.
    stored_pages:
        Pages in the compressed pool now.
    pool_bytes:
        Bytes that the pool takes for them.
    staged_bytes:
        Bytes of pages on their way out or in.
    pages_out:
        Pages that went into the pool so far.
    pages_in:
        Pages that came out of the pool so far.
    refaults:
        Pages that came back before they were compressed.
    zero_filled:
        Pages of zeroes given on first touch.
    faults:
        Page faults served.
    fault_ns:
        Nanoseconds that serving them took.
    incompressible:
        Times a page did not compress and stayed in memory.
    over_budget:
        Times no page was left to move out although the budget was exceeded.
    disk_pages:
        Pages in the swap file now.
    disk_bytes:
        Bytes that their objects take there.
    pages_written:
        Pages that went to the swap file so far.
    disk_faults:
        Page faults served from the swap file.
    """

    ram_bytes: int
    used_bytes: int
    region_bytes: int
    regions: int
    stored_pages: int
    pool_bytes: int
    staged_bytes: int
    pages_out: int
    pages_in: int
    refaults: int
    zero_filled: int
    faults: int
    fault_ns: int
    incompressible: int
    over_budget: int
    disk_pages: int
    disk_bytes: int
    pages_written: int
    disk_faults: int


def stats() -> Stats:
    """Returns figures of all arrays of this process together.

    All are zero before the first :class:`memory`, and in a forked child.
    """
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
    """A context in which numpy's large arrays take at most ``ram``.

    Every array whose data numpy allocates inside, directly or for pandas
    or other packages, is a plain ``numpy.ndarray`` of any shape and type.
    Arrays live as long as they are referred to, also after the block, and
    the budget stays with them. It is also a decorator for functions.

    There is one budget a process. A block inside another changes it, and
    its end gives the outer one's back; at the end of all blocks the last
    one's stays.

    The block is the calling thread's (or task's), as numpy's allocation
    functions are: arrays that *other* threads allocate are ordinary ones
    unless these threads enter a block as well, or run in a copy of this
    one's context
    (``executor.submit(contextvars.copy_context().run, function)``). Any
    thread may use and free arrays from here.

    Args:
        ram: bytes (any integer, numpy's too), or a text like ``"2G"`` in
            powers of 1024; at least 8 MiB. Memory outside of arrays from
            such blocks is not counted: Python's objects (so columns of
            ``object`` and Arrow's strings), plain arrays.
        swap: the size of a swap file (like ``ram``) for pages that do not
            fit into ``ram`` compressed; encrypted, without a name, gone
            with the process. The process's first block decides. Without
            one, data that do not compress stay in memory, and the budget
            is exceeded: ``stats().over_budget`` counts that.
        swap_dir: the directory of the swap file, on a disk; a text or an
            ``os.PathLike``; ``/var/tmp`` by default.
        compressor: one of :func:`compressors`, for all arrays of the
            process; None for the one in use, ``"auto"`` at first.
        smallest: arrays of fewer bytes than this (a size like ``ram``)
            are left to the C library, outside of the budget.

    Raises:
        TypeError: a size is neither an integer nor a text.
        ValueError: a size or a name is wrong, or the process uses another
            compressor already.
        PermissionError: userfaultfd is not permitted; the text has the
            command that permits it.
        OSError: the system lacks or refuses something else.
        ImportError: there is no numpy, or one older than 1.22.

    After ``os.fork()``, and in ``multiprocessing``'s forked workers, a
    child has its arrays as plain memory and needs room for them; it may
    enter a block of its own for new ones.
    """

    def __init__(
        self,
        ram: Size,
        swap: Optional[Size] = None,
        *,
        swap_dir: "Optional[Union[str, os.PathLike[str]]]" = None,
        compressor: Optional[str] = None,
        smallest: Size = "1M",
    ) -> None:
        self._ram = _bytes(ram)
        self._swap = None if swap is None else _bytes(swap)
        self._swap_dir = None if swap_dir is None else os.fspath(swap_dir)
        self._compressor = compressor
        self._smallest = _bytes(smallest)

    def __repr__(self) -> str:
        figures = stats()
        return (
            f"<uzswap.memory ram={_shown(self._ram)}: arrays of {_shown(figures.region_bytes)} "
            f"use {_shown(figures.used_bytes)}>"
        )

    def __enter__(self) -> "memory":
        """Begins the block: from here numpy allocates large arrays in the budget.

        Returns the context itself, whose ``repr`` shows budget and use. In
        a notebook, ``block = uzswap.memory(ram="2G"); block.__enter__()``
        leaves a block open for all later cells. Raises as the class does.
        """
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
        """Ends the block: arrays that live keep their budget.

        Raises RuntimeError in another thread or task than the one in which
        the block began.
        """
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
