"""Arrays: element by element, gathered at random, sorted, multiplied."""
import sys

import numpy

count = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
random = numpy.random.default_rng(7)
a, b = random.random(count), random.random(count)
total = 0.0
for turn in range(4):
    c = a * b + turn
    total += float(c[random.integers(0, count, count // 8)].sum())
order = numpy.argsort(a)
total += float(b[order][: count // 2].sum())
m = c[:1_000_000].reshape(1000, 1000)
total += float((m @ m.T).trace())
print(round(total, 3))
