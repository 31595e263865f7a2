"""Deprecated alias of `trainer.models`, for models that import `Parameter` from here. Removed in the next release."""

import warnings

from trainer.models import Model, Parameter

__all__ = ["Model", "Parameter"]

warnings.warn("trainer.model is now trainer.models: import Parameter from there.", FutureWarning, stacklevel=2)
