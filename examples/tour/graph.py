"""A graph of 120,000 people, or as many as the argument says, and six times as many friendships: its
core, who is reached, how close some are to all."""
import sys

import networkx as nx

people = int(sys.argv[1]) if len(sys.argv) > 1 else 120_000
graph = nx.barabasi_albert_graph(people, 6, seed=7)
core = nx.core_number(graph)
reached = sum(1 for _ in nx.bfs_edges(graph, 0))
closeness = [nx.closeness_centrality(graph, person) for person in (1, 1000, people * 5 // 6)]
print(max(core.values()), reached, " ".join(f"{one:.6f}" for one in closeness))
