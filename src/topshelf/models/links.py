"""The models of links by name, for the command line, the configuration and the contract tests."""

from topshelf.models.gcn import GCN, MLP, GraphSAGE
from topshelf.models.link_base import LinkModel
from topshelf.models.link_heuristics import AdamicAdar, CommonNeighbours, Katz, PageRank, ResourceAllocation
from topshelf.models.ncn import NCN

__all__ = [
    "GCN",
    "LINK_MODELS",
    "MLP",
    "NCN",
    "AdamicAdar",
    "CommonNeighbours",
    "GraphSAGE",
    "Katz",
    "LinkModel",
    "PageRank",
    "ResourceAllocation",
]

LINK_MODELS: dict[str, type[LinkModel]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "mlp": MLP,
    "ncn": NCN,
    "common_neighbours": CommonNeighbours,
    "adamic_adar": AdamicAdar,
    "resource_allocation": ResourceAllocation,
    "katz": Katz,
    "pagerank": PageRank,
}
