# %% [markdown]
# # A table of trips in half of its memory
#
# Every cell is ordinary numpy and pandas; the first one alone knows uzswap. Open it as a notebook
# (Jupyter with jupytext, VS Code), or run it: `python bindings/python/examples/larger_than_ram.py
# [ROWS]`.

# %%
import sys

import numpy

import uzswap

ROWS = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 2_000_000
COLUMN = ROWS * 8
RAM = max(8 * COLUMN // 2, 8 << 20)  # for eight columns

# In a notebook a block that stays open is handier than `with uzswap.memory(ram=...):` around
# everything.
block = uzswap.memory(ram=RAM)
block.__enter__()

# %% [markdown]
# ## Eight columns

# %%
random = numpy.random.default_rng(2026)
trips = {
    "driver": numpy.sort(random.integers(0, 5000, ROWS)),
    "zone": random.integers(0, 260, ROWS),
    "start": numpy.arange(ROWS) * 7 // 3,
    "seconds": random.integers(60, 3600, ROWS),
}
trips["end"] = trips["start"] + trips["seconds"]
trips["metres"] = trips["seconds"] * random.integers(2, 14, ROWS)
trips["cents"] = 250 + trips["metres"] // 5
trips["tip"] = trips["cents"] * (trips["zone"] % 4) // 20
print(f"{sum(column.nbytes for column in trips.values()) >> 20} MiB of columns in {RAM >> 20} MiB")

# %% [markdown]
# ## Questions to the table

# %%
by_zone = numpy.bincount(trips["zone"], weights=trips["cents"] + trips["tip"])
print(f"the best zone is {by_zone.argmax()}, with {by_zone.max() / 100:,.2f} of {by_zone.sum() / 100:,.2f}")
speed = trips["metres"] / trips["seconds"]
print(f"speed in m/s: mean {speed.mean():.3f}, 99 of 100 below {numpy.percentile(speed, 99):.3f}")
del speed

# %%
try:
    import pandas
except ImportError:
    print("no pandas here")
else:
    frame = pandas.DataFrame(trips, copy=False)
    best = frame.groupby("driver")[["cents", "tip"]].sum().sum(axis=1).nlargest(3)
    print("drivers:", ", ".join(f"{driver} ({cents / 100:,.2f})" for driver, cents in best.items()))

# %% [markdown]
# ## The cost

# %%
stats = uzswap.stats()
print(f"{stats.used_bytes >> 20} MiB used of {stats.ram_bytes >> 20} for {stats.region_bytes >> 20} MiB of arrays")
if stats.pool_bytes:
    print(f"{stats.stored_pages * uzswap.PAGE_SIZE / stats.pool_bytes:.1f} times smaller in the pool; {stats.faults} faults")
block.__exit__(None, None, None)
