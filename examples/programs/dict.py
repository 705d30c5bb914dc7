"""A dictionary of small objects, filled in order, read in another: reference counts and hashing."""
import sys

count = int(sys.argv[1]) if len(sys.argv) > 1 else 150_000
table = {f"key-{n * 7919 % count}": [n, str(n), (n, n + 1)] for n in range(count)}
total = 0
for turn in range(3):
    for key in sorted(table, key=lambda key: key[::-1]):
        total += table[key][0] + len(table[key][1])
print(len(table), total)
