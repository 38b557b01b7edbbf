from __future__ import annotations

import pytest

from tidegate.connectors.schema.ddl import DdlError, parse_ddl


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("id long", [("id", "bigint")]),
        ("id: long, at TIMESTAMP", [("id", "bigint"), ("at", "timestamp")]),
        ("a decimal(12, 2), b dec(5)", [("a", "decimal(12,2)"), ("b", "decimal(5,0)")]),
        ("c numeric", [("c", "decimal(10,0)")]),
        ("id int NOT NULL COMMENT \"a, b\", x string", [("id", "int"), ("x", "string")]),
        ("`we ird`` one` string", [("we ird` one", "string")]),
        ("m map<string, array<int>>", [("m", "map<string,array<int>>")]),
        ("s struct<a: int, b: struct<c: int> COMMENT 'x'>", [("s", "struct<`a`:int,`b`:struct<`c`:int>>")]),
        ("s array<array<struct<a int, b string>>>", [("s", "array<array<struct<`a`:int,`b`:string>>>")]),
        ("v varchar(10), c char(3)", [("v", "varchar(10)"), ("c", "char(3)")]),
        ("1a string, _ int", [("1a", "string"), ("_", "int")]),
        ("\n id long ,\n\t at date \n", [("id", "bigint"), ("at", "date")]),
        ("timestamp timestamp, array array<int>", [("timestamp", "timestamp"), ("array", "array<int>")]),
    ],
)  # fmt: skip
def test_reads_what_spark_reads(ddl: str, columns: list[tuple[str, str]]) -> None:
    assert [(column.name, column.type) for column in parse_ddl(ddl)] == columns


@pytest.mark.parametrize(
    ("ddl", "said"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        (None, "must be a string"),
        (["id long"], "must be a string"),
        ("id", "'id' has no type"),
        ("id long,", "ends with a comma"),
        ("id long at timestamp", "expected a comma after 'id bigint', found 'at'"),
        ("id lnog", "did you mean 'long'"),
        ("id str", "did you mean 'string'"),
        ("id datetime", "did you mean 'timestamp'"),
        ("id int64", "did you mean 'long'"),
        ("id nothing_like_it", "the known types are"),
        ("id long, ID string", "'ID' occurs twice"),
        ("s struct<a int, A int>", "field of 's' 'A' occurs twice"),
        ("a array<int", "without '>'"),
        ("a array int", "expected '<' after 'array'"),
        ("a array<>", "has no type"),
        ("m map<string>", "expected ','"),
        ("s struct<>", "has no fields"),
        ("a decimal(40,2)", "precision is 1 to 38"),
        ("a decimal(4,5)", "scale at most the precision"),
        ("a decimal(0)", "precision is 1 to 38"),
        ("a decimal(4,2,1)", "takes 1 to 2 sizes"),
        ("a decimal(x)", "size 'x'"),
        ("a decimal(4", "without ')'"),
        ("a string(10)", "takes no size"),
        ("a varchar", "needs a length"),
        ("a varchar(0)", "at least 1"),
        ("a-b string", "cannot be read at '-b string'"),
        ("`` string", "empty column name"),
        ("id long; drop table x", "cannot be read at '; drop"),
        ("id long NOT here", "expected 'null'"),
        ("id long COMMENT oops", "must be in quotes"),
        ("ключ string", "between backticks"),
    ],
)
def test_says_what_is_wrong(ddl: object, said: str) -> None:
    with pytest.raises(DdlError) as caught:
        parse_ddl(ddl)
    assert said in str(caught.value)
