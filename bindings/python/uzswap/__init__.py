"""Arrays larger than RAM: compressed swap in user space.

    import numpy, uzswap

    with uzswap.memory(ram="2G"):
        a = numpy.zeros((40_000, 20_000))  # 6 GiB, an ordinary ndarray
        a += 1
    uzswap.stats().used_bytes <= 2 << 30   # True

Pages of such arrays that were not used for a while are compressed, inside
this process, and come back when they are touched. It takes Linux with
userfaultfd: root, ``vm.unprivileged_userfaultfd=1``, or access to
``/dev/userfaultfd``; ``uzswap check`` says what is missing.

For codecs: :func:`compress`, :func:`decompress` and :func:`sizes` take
pages through any of the :func:`compressors`.
"""

from ._memory import Size, Stats, memory, stats
from ._native import __version__
from ._pages import PAGE_SIZE, Pages, compress, compressors, decompress, sizes

__all__ = [
    "PAGE_SIZE",
    "Pages",
    "Size",
    "Stats",
    "__version__",
    "compress",
    "compressors",
    "decompress",
    "memory",
    "sizes",
    "stats",
]
