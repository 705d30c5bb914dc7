"""Clusters more rows than fit into the budget, with scikit-learn.

    python bindings/python/examples/scikit_learn.py [ROWS]

MiniBatchKMeans reads the rows in batches, so few pages are needed at a time.
"""

import sys

try:
    import numpy
    from sklearn.cluster import MiniBatchKMeans
except ImportError:
    print("skipped: there is no scikit-learn (pip install scikit-learn)")
    sys.exit()

import uzswap

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
COLUMNS = 32
RAM = max(ROWS * COLUMNS * 8 // 2, 8 << 20)

with uzswap.memory(ram=RAM) as block:
    random = numpy.random.default_rng(11)
    rows = numpy.empty((ROWS, COLUMNS))
    for start in range(0, ROWS, 10_000):
        part = rows[start : start + 10_000]
        part[:] = random.integers(0, 8, (len(part), 1)) * 10 + random.integers(0, 3, part.shape)
    model = MiniBatchKMeans(n_clusters=8, batch_size=4096, n_init=1, random_state=3)
    for start in range(0, ROWS, 4096):
        model.partial_fit(rows[start : start + 4096])
    labels = model.predict(rows)
    print(block)
print("clusters of", ", ".join(str(count) for count in numpy.bincount(labels, minlength=8)), "rows")
