"""CSV and Parquet files: the types of their columns, and their rows in batches. It needs pyarrow, not TensorFlow."""

from trainer.data.tabular.files import INDEX, TabularFiles, is_number, is_tabular, is_text, open_files

__all__ = ["INDEX", "TabularFiles", "is_number", "is_tabular", "is_text", "open_files"]
