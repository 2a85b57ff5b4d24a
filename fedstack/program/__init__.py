"""Parts of programs: runs of many computations, written against `federated_language.program`."""

from fedstack.program.dataset_data_source import DatasetDataSource, DatasetDataSourceIterator

__all__ = ["DatasetDataSource", "DatasetDataSourceIterator"]
