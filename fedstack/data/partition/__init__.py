"""Divides the rows of one data set among simulated clients. The names are those of Flower's `flwr_datasets`."""

from fedstack.data.partition.by_column import ContinuousPartitioner, GroupedNaturalIdPartitioner, NaturalIdPartitioner
from fedstack.data.partition.by_label import PathologicalPartitioner, ShardPartitioner
from fedstack.data.partition.by_size import (
    ExponentialPartitioner,
    IidPartitioner,
    LinearPartitioner,
    SizePartitioner,
    SquarePartitioner,
)
from fedstack.data.partition.dirichlet import DirichletPartitioner, InnerDirichletPartitioner
from fedstack.data.partition.label_picture import plot_label_distributions
from fedstack.data.partition.partition import Partition
from fedstack.data.partition.partitioner import Partitioner

__all__ = [
    "ContinuousPartitioner",
    "DirichletPartitioner",
    "ExponentialPartitioner",
    "GroupedNaturalIdPartitioner",
    "IidPartitioner",
    "InnerDirichletPartitioner",
    "LinearPartitioner",
    "NaturalIdPartitioner",
    "Partition",
    "Partitioner",
    "PathologicalPartitioner",
    "ShardPartitioner",
    "SizePartitioner",
    "SquarePartitioner",
    "plot_label_distributions",
]
