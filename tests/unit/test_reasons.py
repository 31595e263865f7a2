"""The sentence that a user sees of an exception of Keras or AutoGraph names the innermost cause."""

from pathlib import Path

import pytest

from trainer.errors import ConfigurationError
from trainer.models import model_files
from trainer.text.reasons import reason

LAYER = """Exception encountered when calling Sequential.call().

\x1b[1mInput 0 of layer 'dense' is incompatible with the layer: expected axis -1 of input shape to have value 512\x1b[0m

Arguments received by Sequential.call():
  • inputs=tf.Tensor(shape=(1, 28, 28, 1), dtype=float32)
"""
AUTOGRAPH = """in user code:

    File "/python/keras/src/trainers/trainer.py", line 387, in compute_loss  **
        loss = self._compile_loss(y, y_pred, sample_weight)
    File "/home/me/mine.py", line 7, in dice  *
        return 1 - K.sum(a * b)

    TypeError: unsupported operand.
"""
BOTH = """in user code:

    File "/python/keras/src/utils/traceback_utils.py", line 122, in error_handler  **
        raise e.with_traceback(filtered_tb) from None
    File "/home/me/mine.py", line 9, in call
        return self.b(self.a(x))

    ValueError: Exception encountered when calling Net.call().

    \x1b[1mDimension size must be divisible by 756\x1b[0m

    Arguments received by Net.call():
      • x=tf.Tensor(shape=(100, 28, 28, 1), dtype=float32)
"""


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            LAYER,
            "ValueError: Input 0 of layer 'dense' is incompatible with the layer: expected axis -1 of input shape to "
            "have value 512 (in Sequential)",
        ),
        (AUTOGRAPH, "TypeError: unsupported operand (line 7)"),
        (BOTH, "ValueError: Dimension size must be divisible by 756 (in Net, line 9)"),
        ("a plain one.", "ValueError: a plain one"),
        ("", "ValueError"),
    ],
)
def test_the_innermost_cause_is_named(text: str, sentence: str) -> None:
    assert reason(ValueError(text), "/home/me/mine.py") == sentence


def test_the_line_of_the_file_is_that_of_its_innermost_frame() -> None:
    try:
        int("x")
    except ValueError as error:
        found = reason(error, __file__)
    assert found.startswith("ValueError: invalid literal for int() with base 10: 'x' (line ")


def test_the_line_of_a_linked_file_is_named(tmp_path: Path) -> None:
    """As where a ConfigMap is mounted."""
    (tmp_path / "data.py").write_text("x = 1\ny = x / 0\n")
    link = tmp_path / "mine.py"
    link.symlink_to(tmp_path / "data.py")
    with pytest.raises(ConfigurationError, match=r"mine.py cannot be imported: ZeroDivisionError: .* \(line 2\)\.$"):
        model_files.load(str(link))
