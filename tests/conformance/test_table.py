"""The page of Keras's classes is that of the rows."""

from tests.conformance import table


def test_the_page_is_not_stale() -> None:
    assert table.PAGE.read_text(encoding="utf-8") == table.page(), "run make conformance-docs"
