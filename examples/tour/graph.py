"""A graph of 120,000 people and 720,000 friendships: its core, who is reached, how close some are to all."""
import networkx as nx

graph = nx.barabasi_albert_graph(120_000, 6, seed=7)
core = nx.core_number(graph)
reached = sum(1 for _ in nx.bfs_edges(graph, 0))
closeness = [nx.closeness_centrality(graph, person) for person in (1, 1000, 100_000)]
print(max(core.values()), reached, " ".join(f"{one:.6f}" for one in closeness))
