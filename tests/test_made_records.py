"""Records that somebody has made: their seals fit, and what they say makes no sense beside what else is there."""

from pathlib import Path
from typing import Any

import pytest

from tests.kill_points import no_disk_waits
from tests.records_story import applying, at_rest, change_record, heals


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    no_disk_waits(monkeypatch)


# Changes of a state's fields: each names what its digest table does not have.
STATES: list[dict[str, Any]] = [{"damaged": ["nosuch"]}, {"stats": {"nosuch.json": [1, 2, 3, 4]}}]


@pytest.mark.parametrize("fields", STATES, ids=lambda fields: next(iter(fields)))
def test_a_state_that_names_what_its_table_does_not_have(fields: dict[str, Any], tmp_path: Path) -> None:
    host = at_rest(tmp_path)
    change_record(host, "state.json", lambda document: document["vime_sync"].update(fields), made=True)
    heals(host, 3)


@pytest.mark.parametrize("offset", [0, 128, 300])
@pytest.mark.parametrize("version", [1, 2])
def test_an_intent_with_a_tensor_in_another_place(offset: int, version: int, tmp_path: Path) -> None:
    host = applying(tmp_path)
    change_record(host, "intent.json", lambda document: document["work"][-1][1].__setitem__(1, offset), made=True)
    heals(host, version)


def test_an_intent_with_a_tensor_that_its_version_does_not_have(tmp_path: Path) -> None:
    host = applying(tmp_path)
    change_record(host, "intent.json", lambda document: document["work"][0].__setitem__(0, "nosuch"), made=True)
    heals(host, 2)


def test_a_kept_pass_with_a_tensor_in_another_place(tmp_path: Path) -> None:
    host = at_rest(tmp_path)
    change_record(host, "kept/intent.json", lambda document: document["work"][-1][1].__setitem__(1, 0), made=True)
    heals(host, 1)


@pytest.mark.parametrize("field", [1, 5], ids=["size", "digest"])
def test_an_intent_with_a_payload_that_its_delta_does_not_have(field: int, tmp_path: Path) -> None:
    host = applying(tmp_path)

    def change(document: Any) -> None:
        payload = document["work"][-1][5][0]
        payload[field] = payload[field] + 1 if field == 1 else "ab" * 16
        document["work"][-1][4] = payload[5]

    change_record(host, "intent.json", change, made=True)
    heals(host, 2)
