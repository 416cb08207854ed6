"""What the document of results says of itself."""

from pathlib import Path

from reproductions.results import markdown

RESULTS = Path(__file__).parents[2] / "docs" / "RESULTS.md"


def test_experiments_in_which_scored_data_chose_something_are_named():
    head = markdown([]).partition("\n| experiment")[0]
    assert "but for one experiment" in head
    assert "`fedpop-synthetic`" in head
    assert RESULTS.read_text().startswith(head)
    assert max(map(len, head.splitlines())) <= 100
