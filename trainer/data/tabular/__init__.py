"""Files of text and Parquet files: the types of their columns, and their rows in batches.

They are read as people have them (docs/data.md has the rules). It needs pyarrow, not TensorFlow.
"""

from trainer.data.tabular.files import INDEX, TabularFiles, open_files
from trainer.data.tabular.kinds import is_date, is_list, is_number, is_text, remedy
from trainer.data.tabular.spellings import spelling_key

__all__ = [
    "INDEX",
    "TabularFiles",
    "is_date",
    "is_list",
    "is_number",
    "is_text",
    "open_files",
    "remedy",
    "spelling_key",
]
