"""Components of programs, runs of many computations, for `federated_language.program`."""

from fedstack.program.dataset_data_source import DatasetDataSource, DatasetDataSourceIterator

__all__ = ["DatasetDataSource", "DatasetDataSourceIterator"]
