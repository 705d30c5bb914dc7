"""Sales, two million or as many as the argument says: joined with the items sold, summed by kind and
day, and the best three of each shop."""
import sys

import numpy as np
import pandas as pd

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
random = np.random.default_rng(7)
sales = pd.DataFrame({
    "shop": random.integers(0, 5000, rows),
    "item": random.integers(0, 200_000, rows),
    "day": random.integers(0, 730, rows),
    "amount": random.gamma(2.0, 20.0, rows).round(2),
})
items = pd.DataFrame({"item": np.arange(200_000), "kind": random.integers(0, 300, 200_000)})
joined = sales.merge(items, on="item")
by_kind = joined.groupby(["kind", "day"])["amount"].agg(["sum", "mean", "count"])
best = joined.sort_values(["shop", "amount"], ascending=[True, False]).groupby("shop").head(3)
print(len(by_kind), round(by_kind["sum"].max(), 2), round(best["amount"].sum(), 2))
