# A forest of decision trees over numbers, then its votes.
import numpy, sklearn.ensemble

random = numpy.random.default_rng(7)
rows = random.normal(size=(60_000, 30))
kinds = (rows[:, :6].sum(axis=1) + random.normal(size=len(rows)) > 0).astype(int)
forest = sklearn.ensemble.RandomForestClassifier(n_estimators=25, random_state=7, n_jobs=1)
forest.fit(rows, kinds)
print(round(forest.score(rows, kinds), 6), sum(tree.tree_.node_count for tree in forest.estimators_))
