"""Orders joined with customers on a Dask cluster of two workers, and summed by region and by day.

join.py [ADDRESS]: on the cluster with this address, else on a LocalCluster with $WORKER_LIMIT for
each worker. $ROWS is the number of orders. Prints whole numbers, which do not depend on the order of
additions, and, on stderr, what the workers spilled.
"""
import os
import sys

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
from distributed import Client, LocalCluster

PARTS = 16
ROWS = int(os.environ.get("ROWS", 6_000_000)) // PARTS
CUSTOMERS = 400_000


def orders(part):
    random = np.random.default_rng(part)
    return pd.DataFrame({
        "customer": random.integers(0, CUSTOMERS, ROWS),
        "day": random.integers(0, 730, ROWS),
        "item": random.integers(0, 50_000, ROWS),
        "cents": random.integers(100, 100_000, ROWS),
    })


def customers(part):
    first = part * CUSTOMERS // PARTS
    number = np.arange(first, first + CUSTOMERS // PARTS)
    return pd.DataFrame({"customer": number, "region": number * 7919 % 200, "rebate": number % 17})


def spilled(dask_worker):
    total = getattr(dask_worker.data, "spilled_total", None)
    return total.disk if total else 0


def main():
    # Shuffled partitions stay in the workers' memory: the method "p2p" writes them to disk.
    dask.config.set({"dataframe.shuffle.method": "tasks"})
    cluster = None
    if len(sys.argv) < 2:
        limit = os.environ.get("WORKER_LIMIT", "0")
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=limit, dashboard_address=None)
    with Client(cluster or sys.argv[1]) as client:
        left = dd.from_map(orders, range(PARTS)).persist()
        joined = left.merge(dd.from_map(customers, range(PARTS)), on="customer").persist()
        by_region = joined.groupby("region")["cents"].sum().compute()
        by_day = joined[joined.rebate > 3].groupby("day")["cents"].sum().compute()
        print(len(joined), by_region.idxmax(), by_region.max(), by_day.idxmax(), by_day.max(), left.item.sum().compute())
        print("spilled to disk, MiB:", [size >> 20 for size in client.run(spilled).values()], file=sys.stderr)
    if cluster:
        cluster.close()


if __name__ == "__main__":
    main()
