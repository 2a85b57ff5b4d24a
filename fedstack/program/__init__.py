"""Components for programs, which run many computations, built on `federated_language.program`."""

from fedstack.program.dataset_data_source import DatasetDataSource, DatasetDataSourceIterator

__all__ = ["DatasetDataSource", "DatasetDataSourceIterator"]
