"""Scores against a bank of training rows: distances to the nearest, and the guidance of NNGuide.

The nearest rows are found exactly: float32 products draw up a short list, float64 differences decide. Every row of the
bank gets a key, the larger the nearer. Keys are computed in float32 by matrix products, tile by tile of the bank, and
no key is further from its exact value than a bound that holds for any order of summation. Rows whose key lies within
that bound of the k-th largest are compared again in float64, so the answer is that of a float64 loop.

Three things would make short lists long, and are kept out of them. Equal rows are listed once and counted. The few rows
far outside the rest, whose size alone would widen the bound for all, have no key. And a query that still cannot be told
from too many rows (it lies at the centre of a sphere of them) is given up, to be compared with the whole bank.
"""

from gem_ood.scores.neighbors.bank import Bank
from gem_ood.scores.neighbors.clustering import cluster
from gem_ood.scores.neighbors.clusters import Clusters
from gem_ood.scores.neighbors.products import ProductBank
from gem_ood.scores.neighbors.searching import kth_distances, mean_largest_products, nearest_rows

__all__ = ["Bank", "Clusters", "ProductBank", "cluster", "kth_distances", "mean_largest_products", "nearest_rows"]
