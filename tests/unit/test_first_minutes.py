"""tools/first_minutes.py: one shell for all commands, each line with its time, and no password in the transcript."""

import pytest

from tools import first_minutes

SAID = "Airflow runs: http://127.0.0.1:8080  user admin  %s (kept in .tidegate/airflow/passwords.json)"
UP = f"""tidegate up; printf '{SAID}\\n' $PASSWORD; echo "checkpoint 1 completed"; echo "read in $PWD"; cat"""
PASSWORD = "0123456789abcdef"


@pytest.fixture
def walk(tmp_path, monkeypatch):
    wheel = tmp_path / "wheel/tidegate-1.2.3-py3-none-any.whl"

    def walk(*commands: str) -> first_minutes.Walked:
        monkeypatch.setattr(first_minutes, "SHELL", ("tidegate() { :; }", *commands))
        monkeypatch.setenv("PASSWORD", PASSWORD)
        return first_minutes.walk(tmp_path / "empty", wheel, tmp_path / "cache")

    return walk


def test_a_command_begins_where_the_one_before_has_left_the_shell(walk):
    walked = walk("mkdir shop && cd shop", UP, "tidegate read; echo $((1 + 1))")
    lines = [line for _, line in walked.lines]
    assert lines[1:3] == ["$ mkdir shop && cd shop", f"$ {UP}"], "of others than `up` and `read`, only the command"
    assert "read in ~/shop" in lines
    assert lines[-1] == "2", "`cat` has not eaten the commands that follow"
    assert [when for when, _ in walked.lines] == sorted(when for when, _ in walked.lines)
    assert 0 <= walked.seconds_to("checkpoint 1 completed") < 60
    text = first_minutes.transcript(walked, 12.3, (0.1, 9.0), cached=True)
    assert "0123…" in text
    assert PASSWORD not in text
    assert "12 s after the start of `tidegate up`" in text
    assert "that is beside other work" in text
    assert "came from a cache" in text


def test_a_command_that_fails_ends_the_walk_with_what_it_said(walk):
    with pytest.raises(first_minutes.Failed, match="(?s)`echo no such thing; false` fails:.*no such thing"):
        walk("echo no such thing; false", "echo never")
