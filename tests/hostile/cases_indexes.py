"""Hostile indexes: JSON that is none, metadata that lies, and files that lie outside of the version."""

# ruff: noqa: E501 - one case a line, as in the README

from typing import Any

from tests.hostile.parts import INDEX, OTHER, SHARD, VICTIM, Case, Link, checkpoint, delta, dump, index


def _raw(name: str, tries: str, raw: bytes, code: int = 11) -> Case:
    return Case(f"index-{name}", tries, code, {10: "not_ready", 11: "malformed"}[code], {**delta(), INDEX: raw})


def _metadata(name: str, tries: str, **metadata: Any) -> Case:
    return _raw(name, tries, dump(index(**metadata)))


def _texts() -> list[Case]:
    right = dump(index())
    many = {f"layer.{number}": SHARD for number in range(1000)}
    absent = {f"l{number}": f"m-{number}.safetensors" for number in range(1000)}
    return [
        _raw("empty", "an index without a byte", b"", 10),
        _raw("blanks", "an index of blanks", b" \n" * 100, 10),
        _raw("cut", "an index cut in the middle", right[: len(right) // 2], 10),
        _raw("zeros", "zeros where the index should be", bytes(300)),
        _raw("array", "an array", b"[]"),
        _raw("text", "a string", b'"model.safetensors"'),
        _raw("null", "null", b"null"),
        _raw("not-utf-8", "bytes that are no UTF-8", right.replace(b"a.weight", b"a.\xff")),
        _raw("byte-order-mark", "a UTF-8 byte order mark", b"\xef\xbb\xbf" + right),
        _raw("nan", "NaN in the metadata", right.replace(b'{"metadata":{', b'{"metadata":{"total_size":NaN,')),
        _raw("integer-of-5000-digits", "an integer of 5,000 digits", right.replace(b'{"metadata":{', b'{"metadata":{"total_size":' + b"9" * 5000 + b",")),
        _raw("deep-arrays", "25,000 arrays in one another", b'{"weight_map":' + b"[" * 25_000 + b"]" * 25_000 + b"}"),
        _raw("deep-unclosed", "30,000 arrays that are never closed", b"[" * 30_000),
        _raw("map-twice", "weight_map twice: which one counts?", right[:-1] + b',"weight_map":{}}'),
        _raw("tensor-twice", "a tensor in two files at once", right.replace(b'"z.bias":', b'"z.bias":"x.safetensors","z.bias":')),
        _raw("lone-surrogate", "half a surrogate pair in a tensor name", right.replace(b"a.weight", b"a.\\udfff")),
        _raw("no-map", "no weight_map", dump({"metadata": index()["metadata"]})),
        _raw("map-null", "null as weight_map", dump({**index(), "weight_map": None})),
        _raw("map-list", "a list as weight_map", dump({**index(), "weight_map": [[VICTIM, SHARD]]})),
        _raw("map-of-numbers", "a number as a file", dump({**index(), "weight_map": {VICTIM: 1}})),
        _raw("map-of-lists", "a list as a file, which cannot be looked up", dump({**index(), "weight_map": {VICTIM: [SHARD]}})),
        _raw("metadata-list", "a list as metadata", dump({**index(), "metadata": ["delta_encoding"]})),
        _raw("many-tensors", "1,000 tensors that the shard does not hold", dump(index(many))),
        _raw("many-files", "1,000 files that are not there", dump(index(absent)), 10),
    ]  # fmt: skip


def _facts() -> list[Case]:
    gone = {key: value for key, value in index()["metadata"].items() if key == "checksum_format"}
    return [
        _metadata("encoding-unknown", "an encoding that nobody knows: never to be taken for a full version", delta_encoding="add"),
        _metadata("encoding-null", "null as encoding: not thereby a full version", delta_encoding="") ,
        _metadata("encoding-list", "a list as encoding", delta_encoding=["xor"]),
        _metadata("encoding-object", "an object as encoding", delta_encoding={"xor": 1}),
        _metadata("compression-unknown", "another compression", compression_format="gzip"),
        _metadata("compression-absent", "no compression told", compression_format=None),
        _metadata("checksum-unknown", "another digest", checksum_format="md5"),
        _metadata("checksum-case", "a digest's name in upper case", checksum_format="XXH3-128"),
        _metadata("key-unknown", "metadata of a later format", delta_scale="2"),
        _metadata("version-other", "another version than the directory's", version="000003"),
        _metadata("version-number", "the version as a number", version=2),
        _metadata("version-negative", "a negative version", version="-00002"),
        _metadata("version-other-digits", "the version in digits of another script, which Python reads", version="\u0660\u0660\u0660\u0660\u0660\u0662"),
        _metadata("version-underscore", "an underscore in the version, which Python reads", version="00000_2"),
        _metadata("version-blank", "a blank and a newline about the version", version=" 2\n"),
        _metadata("version-5000-digits", "a version of 5,000 digits", version="0" * 4999 + "2"),
        _metadata("version-absent", "no version", version=None),
        _metadata("base-absent", "no base_version", base_version=None),
        _raw("delta-keys-without-encoding", "half of a delta's metadata: not thereby a full version", dump({"metadata": gone, "weight_map": index()["weight_map"]})),
        Case("index-base-itself", "a delta upon itself", 13, "lineage_mismatch", {**delta(), INDEX: dump(index(base_version="000002"))}),
        Case("index-base-older", "a delta upon the version before the last", 13, "lineage_mismatch", {**delta(), INDEX: dump(index(base_version="000000"))}),
        Case("index-base-far", "a delta upon version 10^17", 13, "lineage_mismatch", {**delta(), INDEX: dump(index(base_version="1" + "0" * 17))}),
    ]  # fmt: skip


def _named(name: str, tries: str, file: str, code: int = 11, **more: bytes | Link) -> Case:
    """The index names that file for the victim."""
    files = {**delta(), INDEX: dump(index({OTHER: SHARD, VICTIM: file})), **more}
    return Case(f"path-{name}", tries, code, {10: "not_ready", 11: "malformed"}[code], files)


def _linked(name: str, tries: str, target: str, code: int = 11) -> Case:
    """The shard is a link."""
    files = {**delta(), SHARD: Link(target)}
    return Case(f"path-{name}", tries, code, {10: "not_ready", 11: "malformed"}[code], files)


def _paths() -> list[Case]:
    return [
        _named("parent", "a file of the version before", f"../weight_v000001/{SHARD}"),
        _named("parent-deep", "a file far above", "../" * 40 + "etc/x.safetensors"),
        _named("parent-and-back", "out of the directory and in again", f"../weight_v000002/{SHARD}"),
        _named("dot-dot-inside", "a way that goes down and up again", f"a/../{SHARD}"),
        _named("dot", "the directory itself in the way", f"./{SHARD}"),
        _named("absolute", "an absolute path", "/etc/x.safetensors"),
        _named("absolute-double", "an absolute path with two slashes", "//etc/x.safetensors"),
        _named("double-slash", "an empty part", f"a//{SHARD}"),
        _named("empty", "no name", ""),
        _named("suffix-only", "nothing but a slash behind the name", f"{SHARD}/"),
        _named("nul", "a NUL, where C ends the name", f"{SHARD}\0.safetensors"),
        _named("newline", "a newline at the end of the name, where `$` matches", f"{SHARD}\n"),
        _named("backslash", "a path of another system: just a name here", "..\\..\\x.safetensors", 10),
        _named("percent", "an escape of URLs: just a name here", "%2e%2e%2fx.safetensors", 10),
        _named("home", "a home directory: just a name here", "~/x.safetensors", 10),
        _named("variable", "a variable: just a name here", "$HOME/x.safetensors", 10),
        _named("name-300", "a name longer than filesystems have", "x" * 300 + ".safetensors"),
        _named("path-of-20000", "a path longer than the kernel takes", "d/" * 10_000 + "x.safetensors"),
        _named("lone-surrogate-name", "a name that is no text", "\ud800.safetensors"),
        _named("right-to-left", "a name whose end is shown elsewhere", "\u202esrosnetefas.x.safetensors"),
        _named("zero-width", "a name with a letter that is not seen", f"\u200b{SHARD}"),
        _named("full-width", "full-width letters: another name, and not there", SHARD.replace("m", "\uff4d"), 10),
        _named("full-width-dots", "dots that a normalisation makes `..`", "\uff0e\uff0e/x.safetensors", 10),
        _named("terminal", "a name that would steer a terminal", "\x1b[2J.safetensors"),
        _named("own-records", "a file among our records", ".weight_sync/x.safetensors"),
        _named("git", "a file in a clone's history", ".git/x.safetensors"),
        _named("lost-and-found", "a file in a filesystem's own directory", "lost+found/x.safetensors"),
        _named("index-as-shard", "the index as a shard", INDEX),
        _named("config-as-shard", "another kind of file", "config.json"),
        _named("state-as-shard", "our state as a shard", "state.json"),
        _named("through-a-file", "a file in the place of a directory", f"{SHARD}/x.safetensors", 10),
        _linked("link-out", "the shard is a link out of the share", "/etc/hostname"),
        _linked("link-up", "the shard is a link to the version before", f"../weight_v000001/{SHARD}"),
        _linked("link-device", "the shard is a link to a device without an end", "/dev/zero"),
        _linked("link-pipe", "the shard is a link to a terminal or pipe, which could hang", "/proc/self/fd/0"),
        _linked("link-itself", "the shard is a link to itself", SHARD),
        _linked("link-directory", "the shard is a link to its directory", "."),
        _linked("link-nowhere", "the shard is a link to nothing", "nothing.safetensors", 10),
        Case("path-link-index", "the index is a link out of the share", 11, "malformed", {**delta(), INDEX: Link("/dev/zero")}),
        Case("path-link-folder", "a folder that is a link out", 11, "malformed", {**delta(), INDEX: dump(index({OTHER: SHARD, VICTIM: "d/x.safetensors"})), "d": Link("/etc")}),
        Case("path-link-inside", "a link that stays inside is no fault", 0, "", {**delta(), "real.safetensors": delta()[SHARD], SHARD: Link("real.safetensors")}),
    ]  # fmt: skip


def _full() -> list[Case]:
    whole = checkpoint(2)
    shard = whole["model.safetensors"]
    twice = dict.fromkeys((OTHER, "still", VICTIM), "model.safetensors")
    return [
        Case("full-tensor-twice", "a full version with a tensor in two shards", 11, "malformed", {**whole, "b.safetensors": shard, INDEX: dump({"weight_map": {**twice, "still": "b.safetensors"}})}),
        Case("full-tensor-absent", "a full version whose index names a tensor too many", 11, "malformed", {**whole, INDEX: dump({"weight_map": {**twice, "more": "model.safetensors"}})}),
        Case("full-outside", "a full version with a file outside", 11, "malformed", {**whole, INDEX: dump({"weight_map": dict.fromkeys(twice, "../x.safetensors")})}),
        Case("full-records", "a full version that would write among our records", 11, "malformed", {**whole, INDEX: dump({"weight_map": dict.fromkeys(twice, ".weight_sync/x.safetensors")})}),
        Case("full-config-link", "a full version whose config is a link out of the share", 11, "malformed", {**whole, "config.json": Link("/etc/passwd")}),
        Case("full-config-device", "a full version whose config is a link to a device without an end: no file, not copied", 0, "", {**whole, "config.json": Link("/dev/zero")}),
        Case("full-empty", "a full version without a tensor or a file: must not empty the checkpoint", 10, "not_ready", {INDEX: dump({"weight_map": {}})}),
        Case("full-no-index", "shards and no index: a delta's index may still come", 10, "not_ready", {"a.safetensors": shard, "b.safetensors": shard}),
        Case("full-lone-delta-shard", "one file and no index, and it is a delta's", 10, "not_ready", {"model.safetensors": delta()[SHARD]}),
        Case("full-nothing", "nothing but a config", 10, "not_ready", {"config.json": b"{}"}),
        Case("full-cut", "a full version cut in its data", 10, "not_ready", {**whole, "model.safetensors": shard[:-1]}),
    ]  # fmt: skip


CASES = [*_texts(), *_facts(), *_paths(), *_full()]
