"""Models: two tables of vectors, trained by a loss or fitted in closed form.

``MODELS`` names every model for the command line, the configuration and the contract tests.
"""

from topshelf.models.base import EncodedRows, HistoryRows, Model, Trainable
from topshelf.models.classics import Popularity
from topshelf.models.graph_filter import GraphFilter
from topshelf.models.gru4rec import GRU4Rec
from topshelf.models.history import History
from topshelf.models.ials import IALS
from topshelf.models.lightgcn import LightGCN, LightGCNPlusPlus
from topshelf.models.linear import EASE
from topshelf.models.mf import MF
from topshelf.models.ncf import NCF
from topshelf.models.neighbours import ItemKNN, RP3beta
from topshelf.models.sasrec import ESASRec, SASRec
from topshelf.models.sequence import SequenceModel
from topshelf.models.simgcl import SimGCL, XSimGCL
from topshelf.models.simplex import SimpleX
from topshelf.models.slim import SLIM
from topshelf.models.sparse_ease import SparseEASE
from topshelf.models.transitions import Markov, SequenceKNN

__all__ = [
    "EASE",
    "IALS",
    "MF",
    "MODELS",
    "NCF",
    "SEQUENCE_MODELS",
    "SLIM",
    "ESASRec",
    "EncodedRows",
    "GRU4Rec",
    "GraphFilter",
    "History",
    "HistoryRows",
    "ItemKNN",
    "LightGCN",
    "LightGCNPlusPlus",
    "Markov",
    "Model",
    "Popularity",
    "RP3beta",
    "SASRec",
    "SequenceKNN",
    "SequenceModel",
    "SimGCL",
    "SimpleX",
    "SparseEASE",
    "Trainable",
    "XSimGCL",
]

MODELS: dict[str, type[Model]] = {
    "mf": MF,
    "history": History,
    "lightgcn": LightGCN,
    "lightgcn_pp": LightGCNPlusPlus,
    "simgcl": SimGCL,
    "xsimgcl": XSimGCL,
    "ncf": NCF,
    "simplex": SimpleX,
    "ease": EASE,
    "sparse_ease": SparseEASE,
    "slim": SLIM,
    "ials": IALS,
    "graph_filter": GraphFilter,
    "itemknn": ItemKNN,
    "rp3beta": RP3beta,
    "popularity": Popularity,
}

# Those of next items; the others of them see a user's items as a set, or its vector alone.
SEQUENCE_MODELS: dict[str, type[Model]] = {
    "sasrec": SASRec,
    "esasrec": ESASRec,
    "gru4rec": GRU4Rec,
    "markov": Markov,
    "sequence_knn": SequenceKNN,
    "mf": MF,
    "history": History,
    "ease": EASE,
    "sparse_ease": SparseEASE,
    "slim": SLIM,
    "graph_filter": GraphFilter,
    "itemknn": ItemKNN,
    "rp3beta": RP3beta,
    "popularity": Popularity,
}
