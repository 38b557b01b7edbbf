"""Docstrings as the Python API reference shows them."""

from tools.docstrings import to_markdown


def test_explained_parameters_become_a_list_with_their_continued_lines():
    docstring = "Read rows.\n\nThey count.\nname, other: what it is\n    called.\nlimit: how many.\nEnd: here."
    assert to_markdown(docstring, {"name", "other", "limit"}) == (
        "Read rows.\n\nThey count.\n\n- `name`, `other`: what it is\n    called.\n- `limit`: how many.\n\nEnd: here."
    )


def test_examples_become_code_also_if_they_are_not_indented():
    docstring = 'Files.\n    run()\nFiles("a")    one\nFiles("b") is another.'
    assert to_markdown(docstring, set()) == 'Files.\n\n    run()\n    Files("a")    one\n\nFiles("b") is another.'
