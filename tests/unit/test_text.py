"""Text in messages."""

import pytest

from trainer.text import CREDENTIALS


@pytest.mark.parametrize(
    "uri",
    [
        "s3://tests:not-to-be-printed@runs/a",
        "s3://tests:not/to-be-printed@runs/a",  # keys of AWS may have slashes
        "s3://tests@runs/a",
        "https://store:9000/runs",
    ],
)
def test_a_uri_with_a_user_a_password_or_a_port_is_recognised(uri: str) -> None:
    assert CREDENTIALS.match(uri)


@pytest.mark.parametrize("uri", ["s3://runs/a", "s3://runs/a:b@c", "/data/a:b", "gs://runs"])
def test_other_uris_and_paths_are_not(uri: str) -> None:
    assert not CREDENTIALS.match(uri)
