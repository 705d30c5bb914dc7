"""Joins two pandas frames in half of the memory that they want.

    python bindings/python/examples/pandas_join.py [ROWS]

Only numpy's arrays are in the budget, so the columns are numbers: columns of
``object`` are Python's memory, and ``string[pyarrow]`` is Arrow's.
"""

import sys

try:
    import numpy
    import pandas
except ImportError as error:
    print(f"skipped: there is no {error.name}")
    sys.exit()

import uzswap

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 3_000_000
# Two columns of the sales, and four of the joined frame, which pandas copies once.
WANTED = ROWS * 8 * 10
RAM = max(WANTED // 2, 8 << 20)


def totals():
    """Returns the sum of each region's sales."""
    random = numpy.random.default_rng(7)
    sales = pandas.DataFrame({"shop": random.integers(0, 5000, ROWS), "cents": random.integers(50, 20_000, ROWS)})
    shops = pandas.DataFrame({"shop": numpy.arange(5000), "region": numpy.arange(5000) % 12})
    joined = sales.merge(shops, on="shop")
    return joined.groupby("region")["cents"].sum()


block = uzswap.memory(ram=RAM)
with block:
    paged = totals()
    print(block)
same = paged.equals(totals())
print("the same totals" if same else "OTHER TOTALS", "as without uzswap:", paged.sum() / 100)
figures = uzswap.stats()
print(f"{figures.pages_out} pages went out, {figures.pages_in} came back")
sys.exit(0 if same else 1)
