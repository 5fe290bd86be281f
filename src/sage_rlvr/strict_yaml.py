"""YAML, strict where PyYAML is lax."""

import re
from pathlib import Path
from typing import Any

import yaml

from sage_rlvr.errors import UserError

_Fast: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's, where PyYAML was built with it


class _Loader(_Fast):
    """A key written twice is an error, and 5e-6 is a number (YAML 1.1 wants 5.0e-6 and reads the other as text)."""


_Loader.yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeLoader.yaml_implicit_resolvers.items()}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(problem=f"{key!r} is there twice", problem_mark=node.start_mark)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str) -> Any:
    return yaml.load(text, _Loader)


def read_yaml(file: Path) -> dict[str, Any]:
    try:
        content = parse_yaml(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as e:
        raise UserError(f"{file} cannot be read ({' '.join(str(e).split())[:160]}): fix the YAML.") from e
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UserError(f"{file} is not a list of 'name: value' lines: write one setting per line.")
    return content
