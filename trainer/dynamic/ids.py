"""The id that no row has."""

import numpy as np

NO_ID = np.iinfo(np.int64).min
"""That of padding. It reads zeros."""
