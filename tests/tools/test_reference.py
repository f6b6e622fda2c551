"""The reference pages say what the code says."""

import reference


def test_the_pages_are_as_the_code_is() -> None:
    for name, text in reference.pages().items():
        assert (reference.FOLDER / name).read_text() == text.rstrip() + "\n", (
            f"docs/reference/{name}: run python tools/reference.py"
        )
