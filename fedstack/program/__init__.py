"""Components, built on `federated_language.program`, for programs that run many computations."""

from fedstack.program.dataset_data_source import DatasetDataSource, DatasetDataSourceIterator

__all__ = ["DatasetDataSource", "DatasetDataSourceIterator"]
