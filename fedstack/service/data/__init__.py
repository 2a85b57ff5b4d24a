"""Datasets: client data that is read, prepared and divided as it is needed."""

from fedstack.service.data.datasets.dataset import Dataset

__all__ = ["Dataset"]
