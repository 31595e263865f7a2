"""The models that come with the package, one file each; `trainer.model` finds them by their file's name."""
