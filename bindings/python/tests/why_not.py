"""Prints why arrays cannot be paged here; nothing if they can."""

import uzswap

try:
    with uzswap.memory(ram="8M"):
        pass
except OSError as error:
    print(error)
