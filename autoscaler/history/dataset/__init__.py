"""The dataset: tables of Parquet files by date, sorted by cluster and time. Merging adds only the rows that are new.

    DATASET/autoscaler-history.json                     format and version
    DATASET/<table>/date=2026-01-31/part-....parquet    see `autoscaler.history.schema`

A writer first writes new files to a staging directory. Then it writes a commit file with the files to add and to
remove, and only then moves files. A reader that finds the commit file reads the table as it will be after the commit.
The next writer completes an interrupted commit. Files are moved one by one, which object stores support too.
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
