"""Components, built on `federated_language.program`, for programs that run many computations."""

from fedstack.program.federated_context import FederatedContext
from fedstack.program.releases.csv_file_release_manager import CSVFileReleaseManager
from fedstack.program.releases.json_lines_release_manager import JSONLinesReleaseManager
from fedstack.program.releases.mlflow_release_manager import MLflowReleaseManager
from fedstack.program.releases.plot_release_manager import PlotReleaseManager
from fedstack.program.releases.tensorboard_release_manager import TensorBoardReleaseManager
from fedstack.program.runs.early_stopping import EarlyStopping
from fedstack.program.runs.run import Run
from fedstack.program.sources.dataset_data_source import DatasetDataSource, DatasetDataSourceIterator
from fedstack.program.sources.table_data_source import TableDataSource, TableDataSourceIterator
from fedstack.program.states.file_program_state_manager import FileProgramStateManager
from fedstack.program.states.memory_program_state_manager import MemoryProgramStateManager

__all__ = [
    "CSVFileReleaseManager",
    "DatasetDataSource",
    "DatasetDataSourceIterator",
    "EarlyStopping",
    "FederatedContext",
    "FileProgramStateManager",
    "JSONLinesReleaseManager",
    "MLflowReleaseManager",
    "MemoryProgramStateManager",
    "PlotReleaseManager",
    "Run",
    "TableDataSource",
    "TableDataSourceIterator",
    "TensorBoardReleaseManager",
]
