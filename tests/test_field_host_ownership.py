"""FIELD_GUIDE H7, H8: whose files lie in LOCAL, and links in it.

Nothing of the user's is deleted or overwritten, and nothing is ever written through a link.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import toolkit
from tests.host import Host, everything, expect_error


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host.create(tmp_path)


# ---- H7: LOCAL holds the user's own files


def _readme(local: Path) -> None:
    (local / "README.md").write_text("mine")


def _weights(local: Path) -> None:
    toolkit.write_safetensors(local / "model.safetensors", toolkit.make_model(seed=9))


def _subdirectory(local: Path) -> None:
    (local / "experiments").mkdir()


def _dotfile(local: Path) -> None:
    (local / ".keep").write_text("")


def _whole_model(local: Path) -> None:
    toolkit.write_checkpoint(local, toolkit.make_model(seed=9))


def _other_model_and_notes(local: Path) -> None:
    """Adopting allows to replace what has our names; the rest is still not ours to remove."""
    files = {"config.json": b"{}", "generation_config.json": b"{}", "notes/plan.txt": b"mine"}
    toolkit.write_checkpoint(local, toolkit.make_model(seed=9), shards=3, extra_files=files)


OWN_FILES: list[Callable[[Path], None]] = [
    _readme,
    _weights,
    _subdirectory,
    _dotfile,
    _whole_model,
    _other_model_and_notes,
]


@pytest.mark.parametrize("put", OWN_FILES)
@pytest.mark.parametrize("version", [0, 1])
def test_h07_a_directory_with_the_users_files_is_refused_and_untouched(
    put: Callable[[Path], None], version: int, host: Host
) -> None:
    host.publish()
    host.local.mkdir()
    put(host.local)
    before = everything(host.local)

    for _ in range(2):  # the first refusal must not leave a mark that makes the directory ours
        error = expect_error(host.pull(version=version), 23, "not_ours")
        assert str(host.local) in error["message"]
        assert "--adopt" in error["hint"]
        assert everything(host.local) == before


@pytest.mark.parametrize("put", OWN_FILES)
def test_h07_adopt_takes_the_directory_over(put: Callable[[Path], None], host: Host) -> None:
    host.publish()
    host.local.mkdir()
    put(host.local)
    own = {name: entry for name, entry in toolkit.snapshot(host.local).items() if not (host.base / name).exists()}

    document = host.pulled("--adopt")

    assert (document["result"], document["version"]) == ("updated", 1)
    host.expect_local(1)
    after = toolkit.snapshot(host.local)
    assert {name: after.get(name) for name in own} == own
    assert after["config.json"] == ("file", (host.base / "config.json").read_bytes())
    host.publish()
    assert host.pulled()["version"] == 2  # once adopted it stays ours
    host.expect_local(2)


def test_h07_weights_that_no_index_names_are_pointed_out_after_adopt(host: Host) -> None:
    host.local.mkdir()
    _weights(host.local)

    result = host.pull("--adopt")

    assert result.code == 0, result.stderr
    assert "model.safetensors" in result.stderr  # an engine without an index would load it as well
    host.expect_local(0)


@pytest.mark.parametrize("extra", ["notes.txt", "extra.safetensors"])
def test_h07_a_full_version_removes_what_we_wrote_and_leaves_what_the_user_put(extra: str, host: Host) -> None:
    host.publish_full(shards=3, extra_files={"config.json": b"{}", "old/template.jinja": b"x", "old.json": b"{}"})
    host.pulled()
    (host.local / extra).write_bytes(b"the user's")
    host.publish_full(shards=2, extra_files={"config.json": b'{"new": 1}'})

    result = host.pull()

    assert (result.code, result.document.get("version")) == (0, 2), result.stderr
    assert extra in result.stderr
    names = {name for name, (kind, _) in toolkit.snapshot(host.local).items() if kind == "file"}
    published = {path.name for path in toolkit.version_path(host.shared, 2).iterdir()}
    assert names == published | {extra}
    assert (host.local / extra).read_bytes() == b"the user's"
    host.expect_local(2)


@pytest.mark.parametrize("name", ["notes.json", "model-00001-of-00003.safetensors", "chat/template.jinja"])
def test_h07_a_version_that_would_overwrite_a_users_file_is_refused(name: str, host: Host) -> None:
    host.pulled()
    (host.local / name).parent.mkdir(exist_ok=True)
    (host.local / name).write_bytes(b"the user's")
    host.publish_full(shards=3, extra_files={"notes.json": b"{}", "chat/template.jinja": b"{}"})
    before = toolkit.snapshot(host.local)

    error = expect_error(host.pull(), 23, "not_ours")

    assert name in error["message"]
    assert toolkit.snapshot(host.local) == before
    host.expect_local(0)


# ---- H8: LOCAL has symlinks


def _cache_snapshot(root: Path, checkpoint: Path) -> Path:
    """The checkpoint as a Hugging Face cache keeps it: blobs, and a snapshot of links into them."""
    blobs, snapshot = root / "blobs", root / "snapshots" / "5f0b02c"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in sorted(checkpoint.iterdir()):
        blob = blobs / toolkit.digest(path.read_bytes())
        shutil.copyfile(path, blob)
        (snapshot / path.name).symlink_to(Path("..", "..", "blobs", blob.name))
    return snapshot


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_h08_links_into_a_cache_become_files_and_the_cache_stays(encoding: str, host: Host) -> None:
    cache = host.root / "cache" / "models--org--name"
    local = _cache_snapshot(cache, host.base)
    blobs = everything(cache / "blobs")
    host.publish(encoding=encoding)

    for version in (1, 2):
        result = toolkit.pull(host.shared, local, "--adopt", base=host.base)
        assert (result.code, result.document.get("version")) == (0, version), result.stderr
        host.expect_local(version, local)
        host.publish(encoding=encoding)

    assert everything(cache / "blobs") == blobs
    assert not [path for path in local.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("kind", ["symlink", "hard link"])
def test_h08_a_shard_swapped_for_a_link_later_is_not_written_through(kind: str, host: Host) -> None:
    host.publish()
    host.pulled()
    shard = next(host.local.glob("*.safetensors"))
    elsewhere = host.root / "elsewhere.safetensors"
    shard.rename(elsewhere)
    if kind == "symlink":
        shard.symlink_to(elsewhere)
    else:
        shard.hardlink_to(elsewhere)
    content = elsewhere.read_bytes()
    host.publish()

    assert host.pulled()["version"] == 2

    assert elsewhere.read_bytes() == content
    assert not shard.is_symlink() and shard.stat().st_nlink == 1
    host.expect_local(2)
