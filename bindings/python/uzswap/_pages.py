"""Pages through a compressor."""

from typing import Any, List, Union

from . import _native

#: Bytes in a page.
PAGE_SIZE: int = _native.PAGE_SIZE

#: Bytes, or an object with the buffer protocol: bytearrays, memoryviews, arrays of any type.
Pages = Union[bytes, bytearray, memoryview, Any]


def _plain(data: Pages) -> bytes:
    return data if isinstance(data, bytes) else memoryview(data).tobytes()


def compressors() -> List[str]:
    """Returns the names of all compressors of this build.

    Optional parameters are in brackets: ``"zstd[:LEVEL]"``.
    """
    return _native.compressors()


def compress(data: Pages, compressor: str = "auto") -> bytes:
    """Compresses 1 to 16 pages as one unit.

    Args:
        data: 4096 to 65536 bytes, whole pages.
        compressor: a name as in :func:`compressors`.

    Returns:
        The object, which :func:`decompress` takes; ``data`` itself when it
        does not shrink.

    Raises:
        ValueError: ``data`` is not whole pages, or there is no such
            compressor.
    """
    return _native.compress(_plain(data), compressor)


def decompress(data: Pages, length: int = PAGE_SIZE, compressor: str = "auto") -> bytes:
    """Decompresses an object of :func:`compress`.

    Args:
        data: the object.
        length: bytes before compression.
        compressor: the same name.

    Returns:
        ``length`` bytes.

    Raises:
        ValueError: the object is damaged, or was made of another length or
            by another compressor, as far as that can be told.
    """
    return _native.decompress(_plain(data), length, compressor)


def sizes(data: Pages, compressor: str = "auto", unit: int = PAGE_SIZE) -> List[int]:
    """Returns the compressed size of each unit of some memory.

    Args:
        data: whole pages, any number of them; an array, for example.
        compressor: a name as in :func:`compressors`.
        unit: bytes that are compressed as one, 4096 to 65536, whole pages;
            the last one may be shorter.

    Returns:
        Bytes of each unit's object, ``ceil(len(data) / unit)`` of them;
        ``unit`` where it does not shrink. A pool keeps pages that repeat
        one 8-byte word without an object; here they have one.

    Raises:
        ValueError: ``data`` or ``unit`` is not whole pages, or there is no
            such compressor.
    """
    return _native.sizes(_plain(data), unit, compressor)
