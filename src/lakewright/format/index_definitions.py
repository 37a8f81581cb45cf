"""The file with the definitions of a table's indexes, in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakewright.errors import CorruptError, UnsupportedError
from lakewright.model.index_definitions import IndexDefinition, IndexDefinitions
from lakewright.model.metadata_partitions import IndexVersion

_DEFINITIONS = "indexDefinitions"
_NAME, _TYPE, _FUNCTION = "indexName", "indexType", "indexFunction"
_FIELDS, _OPTIONS, _VERSION = "sourceFields", "indexOptions", "version"
_OWN_KEYS = frozenset({_NAME, _TYPE, _FUNCTION, _FIELDS, _OPTIONS, _VERSION})


def parse_index_definitions(data: bytes) -> IndexDefinitions:
    """Parse the file.

    Raises:
        CorruptError: it is not JSON of this form.
        UnsupportedError: an index has a version that this library does not know.
    """
    try:
        stored = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptError("the definitions of indexes are not JSON", cause=str(error)) from error
    entries = _object(_object(stored, "file").get(_DEFINITIONS), _DEFINITIONS)
    return IndexDefinitions({name: _definition(name, entry) for name, entry in entries.items()})


def format_index_definitions(definitions: IndexDefinitions) -> bytes:
    """Return the bytes of the file, as Hudi formats it."""
    stored = {name: _stored(definition) for name, definition in definitions.by_name.items()}
    return _pretty({_DEFINITIONS: stored}, 0).encode()


def _definition(name: str, entry: object) -> IndexDefinition:
    values = _object(entry, name)
    fields = values.get(_FIELDS) or []
    options = _object(values.get(_OPTIONS), _OPTIONS)
    texts = {key: values.get(key) or "" for key in (_NAME, _TYPE, _FUNCTION)}
    is_text = all(isinstance(text, str) for text in (*texts.values(), *options.values()))
    if not is_text or not isinstance(fields, list) or not all(isinstance(f, str) for f in fields):
        raise CorruptError("the definition of an index has another form", index=name)
    if texts[_NAME] != name:
        raise CorruptError("the definition of an index is of another one", index=name)
    version = values.get(_VERSION)
    if version is not None and version not in set(IndexVersion):
        raise UnsupportedError("an index of an unknown version", index=name, version=version)
    return IndexDefinition(
        name=name,
        index_type=str(texts[_TYPE]),
        function=str(texts[_FUNCTION]),
        source_fields=tuple(fields),
        options={key: str(value) for key, value in options.items()},
        version=None if version is None else IndexVersion(str(version)),
        extra={key: value for key, value in values.items() if key not in _OWN_KEYS},
    )


def _stored(definition: IndexDefinition) -> dict[str, object]:
    version = {} if definition.version is None else {_VERSION: definition.version.value}
    return {
        _NAME: definition.name,
        _TYPE: definition.index_type,
        _FUNCTION: definition.function,
        _FIELDS: list(definition.source_fields),
        _OPTIONS: dict(definition.options),
        **version,
        **definition.extra,
    }


def _object(value: object, name: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise CorruptError("the definition of an index has another form", part=name)
    return value


def _pretty(value: object, depth: int) -> str:
    if isinstance(value, dict):
        if not value:
            return "{ }"
        outer, inner = "  " * depth, "  " * (depth + 1)
        lines = [f"{inner}{_text(key)} : {_pretty(item, depth + 1)}" for key, item in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{outer}}}"
    if isinstance(value, list):
        return f"[ {', '.join(_pretty(item, depth) for item in value)} ]" if value else "[ ]"
    return _text(value)


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
