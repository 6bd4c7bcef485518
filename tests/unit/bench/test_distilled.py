"""Texts of the benchmark of distilled stages."""

from pathlib import Path

import pytest

from bench import distilled


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder that stands for the installed packages."""
    monkeypatch.setattr("sysconfig.get_paths", lambda: {"purelib": str(tmp_path)})
    return tmp_path


def _write(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f'def do_{number}():\n    """{text}"""\n' for number, text in enumerate(texts)))


def test_names_of_packages_are_masked_wherever_they_are_in_a_word(packages: Path) -> None:
    _write(packages / "otter" / "a.py", ["Makes an OtterFrame of what the badger_client has found."])
    _write(packages / "badger.py", ["Returns nothing at all, and that for a long time already."])

    texts, labels = distilled.read_docstrings()

    assert dict(zip(labels, texts, strict=True)) == {
        "otter": "Makes an NAMEFrame of what the NAME_client has found.",
        "badger": "Returns nothing at all, and that for a long time already.",
    }


def test_a_package_gives_its_share_and_a_text_of_two_packages_counts_once(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distilled, "PACKAGE_TEXTS", 5)
    _write(
        packages / "large" / "a.py", [f"Returns the number {number} of a list of numbers." for number in range(9)]
    )
    _write(
        packages / "tiny" / "a.py", [f"Returns the number {number} of a list of numbers." for number in (0, 10)]
    )

    _, labels = distilled.read_docstrings()

    assert sorted(labels) == ["large"] * 5 + ["tiny"]
