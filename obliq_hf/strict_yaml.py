"""YAML as this project reads it: plain values, and no key given twice."""

from __future__ import annotations

from typing import Any

import yaml

__all__ = ["load_yaml"]


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses a key given twice, where YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, list | dict):
                continue  # the base class refuses it
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def load_yaml(text: str) -> Any:
    """The value of a YAML document.

    Raises:
        yaml.YAMLError: It is not YAML, holds other than plain values, or repeats a key.
    """
    return yaml.load(text, Loader=_StrictLoader)
