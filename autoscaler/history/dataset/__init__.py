"""The dataset: tables of Parquet files by date, sorted by cluster and time. Merging adds only the rows that are new.

    DATASET/autoscaler-history.json                     format and version
    DATASET/<table>/date=2026-01-31/part-....parquet    see `autoscaler.history.schema`

New files are first written to a staging directory. Then a commit file records which files are added and which are
removed, and only then are files moved. A reader that finds the commit file reads the table as it will be; the next
writer completes a commit that was interrupted. Files are moved one by one, which object stores support too.
"""

from autoscaler.history.dataset.files import BusyError, DatasetError
from autoscaler.history.dataset.layout import ROWS_PER_FILE, escape_glob
from autoscaler.history.dataset.merge import Merged, Writer, count_keys, counted
from autoscaler.history.dataset.store import FEW_ROWS, Dataset, open_dataset

__all__ = [
    "FEW_ROWS",
    "ROWS_PER_FILE",
    "BusyError",
    "Dataset",
    "DatasetError",
    "Merged",
    "Writer",
    "count_keys",
    "counted",
    "escape_glob",
    "open_dataset",
]
