"""tools/readability.py: what counts as vague, what is counted, and where avoided words are found."""

from pathlib import Path

import pytest

from tools import readability

MODULE = '''\
"""There is a row, and others beside it."""


class Shelf:
    by: list[str]

    def __init__(self, found, _at):
        self.told = found  # What comes of it.

    def told_by(self):
        shown = [name for name in self.by if name] if self.by else []
        return shown

    def columns_of(self):
        return "others that nobody told of"


def test_what_is_kept_of_each(kept):
    pass
'''


GLOSSARY = """\
## Words we avoid

| not | but |
| --- | --- |
| owed, owes | pending |
| set aside, sets aside | quarantined |
| go on, went on | continue |
"""


@pytest.fixture
def readings(tmp_path) -> readability.Readings:
    (tmp_path / "shelf.py").write_text(MODULE, encoding="utf-8")
    return readability.read_folder(tmp_path)


@pytest.mark.parametrize("name", ["told_by", "_of", "keeps_for_ever", "is_taken", "goes_by", "by", "_shown"])
def test_a_function_name_is_vague(name):
    assert readability.is_vague_function(name)


@pytest.mark.parametrize("name", ["columns_of", "number_of_rows", "find_lineage", "lookup", "notify", "wait_for"])
def test_a_function_name_says_what_it_does(name):
    assert not readability.is_vague_function(name)


def test_each_file_has_its_density(readings, tmp_path):
    assert readings.density == {str(tmp_path / "shelf.py"): 2}  # one comprehension, one conditional expression


def test_vague_names_are_counted_with_their_places(readings, tmp_path):
    place = str(tmp_path / "shelf.py")
    assert dict(readings.vague_functions) == {"told_by": [f"{place}:10"]}
    assert readings.functions == 2, "neither __init__ nor a test, whose name is a sentence"
    assert dict(readings.vague_variables) == {
        "by": [f"{place}:5"],
        "found": [f"{place}:7"],
        "_at": [f"{place}:7"],
        "shown": [f"{place}:11"],
        "kept": [f"{place}:18"],
    }
    assert dict(readings.vague_attributes) == {"by": [f"{place}:5"], "told": [f"{place}:8"]}
    assert (readings.comprehensions, readings.conditionals) == (1, 1)


def test_habits_are_counted_in_docstrings_and_comments_only(readings):
    counted = {habit: count for habit, count in readings.habits.items() if count}
    assert counted == {
        "there is": 1,
        "others": 1,
        "beside for next to": 1,
        "What … as a noun": 1,
        "come for arrive": 1,
    }


def test_words_that_the_glossary_avoids_are_found_in_names_texts_and_pages(tmp_path):
    files = {
        "include/tidegate/cli/stop.py": 'HELP = "what it sets   aside"\n',
        "include/tidegate/rows.py": "def _went_on(rows_set_aside):\n    pass\n",
        "include/tidegate/ui/static/rows.js": "// owed\n// borrowed\n",
        "docs/glossary.md": GLOSSARY,
        "docs/index.md": "Let it\ngo on.\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert readability.find_avoided_words(tmp_path) == {
        "commands": ["include/tidegate/cli/stop.py:1 sets aside"],
        "Airflow's tasks": [],
        "other code": ["include/tidegate/rows.py:1 went_on", "include/tidegate/rows.py:1 set_aside"],
        "pages": ["include/tidegate/ui/static/rows.js:1 owed"],
        "documents": ["docs/index.md:2 go on"],
        "tests": [],
    }


def test_each_reading_stands_beside_those_of_the_five(readings):
    header, *rows = readability.table({"shelf": readings.figures()})
    assert header.split() == ["shelf", "before", "bytewax", "httpx", "cosmos", "dlt", "sqlmesh"]
    assert [row.startswith(reading) for row, reading in zip(rows, readability.READINGS, strict=True)]
    assert rows[1].split()[-7:] == ["50.0", "12.0", "2.2", "0.32", "1.1", "1.0", "1.2"]


def test_folders_are_read_from_the_command_line(readings, tmp_path, capsys):
    assert readability.main([str(tmp_path)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[0] == Path(tmp_path).name
    assert table[1].split()[:2] == ["lines", "19"]
