"""YAML in which every value knows its line, and nothing is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yaml.nodes import Node

    from tidegate.gates.checking import Problems

__all__ = ["Line", "load_yaml"]


@dataclass(frozen=True)
class Line:
    """A value and the line that it begins on. Mappings and lists hold Lines."""

    value: Any
    line: int

    def plain(self) -> Any:
        """The value as YAML means it, without lines."""
        if isinstance(self.value, dict):
            return {key: each.plain() for key, each in self.value.items()}
        if isinstance(self.value, list):
            return [each.plain() for each in self.value]
        return self.value


def load_yaml(text: str, problems: Problems) -> Line:
    """The text's one document. What YAML itself would pass over in silence is a problem."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problems.add(mark.line + 1 if mark else 1, f"this is not YAML: {error.problem or error.context}")
        return Line(None, 1)
    except yaml.YAMLError as error:
        problems.add(1, f"this is not YAML: {error}")
        return Line(None, 1)
    if node is None:
        problems.add(1, "the file is empty")
        return Line(None, 1)
    return _line(node, yaml.SafeLoader(""), problems, ())


def _line(node: Node, loader: Any, problems: Problems, above: tuple[Node, ...]) -> Line:
    import yaml

    line = node.start_mark.line + 1
    if node in above:
        problems.add(line, "an alias that contains itself")
        return Line(None, line)
    if isinstance(node, yaml.SequenceNode):
        return Line([_line(each, loader, problems, (*above, node)) for each in node.value], line)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[Any, Line] = {}
        for key_node, value_node in node.value:
            key = _line(key_node, loader, problems, (*above, node)).plain()
            if not isinstance(key, str):
                problems.add(key_node.start_mark.line + 1, f"key {key!r} is not a text: put it in quotes")
            elif key in mapping:
                problems.add(key_node.start_mark.line + 1, f"key {key!r} is there twice")
            else:
                mapping[key] = _line(value_node, loader, problems, (*above, node))
        return Line(mapping, line)
    try:
        return Line(loader.construct_object(node), line)
    except (yaml.YAMLError, ValueError) as error:
        problems.add(line, f"{node.value!r} cannot be read: {getattr(error, 'problem', None) or error}")
        return Line(None, line)
