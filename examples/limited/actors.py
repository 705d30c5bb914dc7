"""Two Ray actors that each hold 600,000 rows, and sums over them."""
import numpy as np
import ray


@ray.remote
class Part:
    def __init__(self, seed):
        random = np.random.default_rng(seed)
        self.rows = {n: (n, f"row {n}", int(random.integers(0, 1000))) for n in range(600_000)}

    def total(self, rest):
        return sum(row[2] for n, row in self.rows.items() if n % 7 == rest)


ray.init(num_cpus=2, object_store_memory=100_000_000, include_dashboard=False)
parts = [Part.remote(seed) for seed in range(2)]
print([sum(ray.get([part.total.remote(rest) for part in parts])) for rest in range(7)])
