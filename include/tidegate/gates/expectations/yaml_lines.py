"""YAML in which every value knows its line, and no value is reinterpreted.

As in YAML 1.2, true and false are the only booleans, so NO is Norway, on is a word, and 12:30:00 is a text. A number
that YAML parsers read differently (0123, 1_000, 0b11) is refused.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from tidegate.gates.expectations.checking import ValueOnLine

if TYPE_CHECKING:
    from yaml.nodes import Node

    from tidegate.gates.expectations.checking import Problems

__all__ = ["dump_yaml", "load_yaml"]

_TAG: Final = "tag:yaml.org,2002:"
_UNCLEAR: Final = "!unclear"
_PLAIN: Final = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?((0|[1-9][0-9]*)\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?(0|[1-9][0-9]*)[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "timestamp": r"[0-9]{4}-[0-9]{2}-[0-9]{2}(([Tt]|[ \t]+)[0-9]{1,2}:[0-9]{2}:[0-9]{2}(\.[0-9]*)?"
    r"([ \t]*(Z|[-+][0-9]{1,2}(:[0-9]{2})?))?)?",
    _UNCLEAR: r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?|[-+]?0[bBoOxX][0-9a-fA-F_]+",
}
"""The type of a value without quotes: the first pattern that matches. Otherwise it is text."""


def load_yaml(text: str, problems: Problems) -> ValueOnLine:
    """Load the text's only document. Errors that YAML itself ignores silently are added to `problems`."""
    import yaml

    try:
        node = yaml.compose(text, Loader=_loader_class())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add(mark.line + 1 if mark else 1, f"this is not YAML: {error.problem or error.context}")
        return ValueOnLine(None, 1)
    except yaml.YAMLError as error:
        problems.add(1, f"this is not YAML: {error}")
        return ValueOnLine(None, 1)
    if node is None:
        problems.add(1, "the file is empty")
        return ValueOnLine(None, 1)
    return _load_node(node, _loader_class()(""), problems, ())


def dump_yaml(value: Any) -> str:
    """Return YAML that is read as this value, here and by YAML 1.1 parsers. A text that either would not read as text
    is quoted."""
    import yaml

    resolvers = {letter: list(forms) for letter, forms in yaml.SafeDumper.yaml_implicit_resolvers.items()}
    dumper = _with_plain_forms(type("Dumper", (yaml.SafeDumper,), {"yaml_implicit_resolvers": resolvers}))
    return str(yaml.dump(value, Dumper=dumper, sort_keys=False, allow_unicode=True, width=120))


@functools.cache
def _loader_class() -> Any:
    """Return PyYAML's loader of plain data, with our own types for values without quotes."""
    import yaml

    return _with_plain_forms(type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}}))


def _with_plain_forms(kind: Any) -> Any:
    """Return the loader or dumper, with our patterns after its own."""
    import re

    for name, form in _PLAIN.items():
        tag = name if name == _UNCLEAR else _TAG + name
        kind.add_implicit_resolver(tag, re.compile(f"^(?:{form})$"), None)
    return kind


def _load_node(node: Node, loader: Any, problems: Problems, parents: tuple[Node, ...]) -> ValueOnLine:
    import yaml

    line = node.start_mark.line + 1
    if node in parents:
        problems.add(line, "an alias that contains itself")
        return ValueOnLine(None, line)
    if isinstance(node, yaml.SequenceNode):
        return ValueOnLine([_load_node(item, loader, problems, (*parents, node)) for item in node.value], line)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[Any, ValueOnLine] = {}
        for key_node, value_node in node.value:
            key = _load_node(key_node, loader, problems, (*parents, node)).plain()
            if not isinstance(key, str):
                problems.add(key_node.start_mark.line + 1, f"key {key!r} is not a text: put it in quotes")
            elif key in mapping:
                problems.add(key_node.start_mark.line + 1, f"key {key!r} is there twice")
            else:
                mapping[key] = _load_node(value_node, loader, problems, (*parents, node))
        return ValueOnLine(mapping, line)
    if node.tag == _UNCLEAR:
        problems.add(line, f"{node.value} is a different number to some YAML parsers: write it plainly, or in quotes")
        return ValueOnLine(None, line)
    try:
        return ValueOnLine(loader.construct_object(node), line)
    except (yaml.YAMLError, ValueError) as error:
        problems.add(line, f"{node.value!r} cannot be read: {getattr(error, 'problem', None) or error}")
        return ValueOnLine(None, line)
