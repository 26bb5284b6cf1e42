"""The documents of the command line contract: which fields they have, and of what kind each is."""

from collections.abc import Callable
from typing import Any


def _integer(value: object) -> bool:
    return type(value) is int and value >= 0


def _integer_or_null(value: object) -> bool:
    return value is None or _integer(value)


def _boolean(value: object) -> bool:
    return type(value) is bool


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _list(value: object) -> bool:
    return isinstance(value, list)


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(_text(item) for item in value)


def _object_or_null(value: object) -> bool:
    return value is None or isinstance(value, dict)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def _seconds(value: object) -> bool:
    keys = {"plan", "seed", "apply", "reload", "total"}
    return isinstance(value, dict) and keys <= set(value) and all(_number(second) for second in value.values())


Kinds = dict[str, Callable[[object], bool]]

PULL: Kinds = {
    "result": {"updated", "already_current", "rolled_back", "planned"}.__contains__,
    "version": _integer,
    "from_version": _integer_or_null,
    "seeded_from": _integer_or_null,
    "new_stream": _boolean,
    "tensors_changed": _integer,
    "tensors_repaired": _integer,
    "bytes_read": _integer,
    "bytes_written": _integer,
    "engines": _list,
    "seconds": _seconds,
}
STATUS: Kinds = {
    "local_version": _integer_or_null,
    "state": {"ready", "updating", "damaged", "absent"}.__contains__,
    "latest_version": _integer_or_null,
    "behind": _integer_or_null,
    "durable": _boolean,
    "lineage": _list,
    "engines": _list,
    "last_error": _object_or_null,
}
ERROR: Kinds = {
    "code": _integer,
    "id": _text,
    "message": _text,
    "hint": _text,
    "retryable": _boolean,
    "version": _integer_or_null,
    "tensors": _texts,
}
# One entry of `engines`, in every document that has them.
ENGINE: Kinds = {
    "url": _text,
    "state": {"at_version", "failed", "unreachable", "unknown"}.__contains__,
    "version": _integer_or_null,
    "error": lambda value: value is None or _text(value),
}
RELOAD: Kinds = {"version": _integer, "engines": _list, "seconds": _number}
WAIT: Kinds = {"version": _integer, "hosts": _list, "seconds": _number}
HOST: Kinds = {"host": _text, "local": _text, "version": _integer, "lineage": _text}


def expect_document(document: dict[str, Any], name: str, kinds: Kinds) -> None:
    assert document.get("schema") == f"vime-sync/{name}/1"
    assert set(kinds) <= set(document)
    wrong = {key: document[key] for key, kind in kinds.items() if not kind(document[key])}
    assert wrong == {}


def expect_fields(item: object, kinds: Kinds) -> None:
    """An object within a document."""
    assert isinstance(item, dict)
    assert {key: item.get(key) for key, kind in kinds.items() if key not in item or not kind(item[key])} == {}
