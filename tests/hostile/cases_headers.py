"""Hostile headers: the shard of a delta whose safetensors header does not describe its data, or is no header."""

# ruff: noqa: E501 - one case a line, as in the README

import json
from collections.abc import Callable
from typing import Any

from tests.hostile.parts import (
    INDEX,
    SHARD,
    VICTIM,
    Case,
    delta,
    delta_header,
    digest,
    dump,
    frame,
    index,
    right_header,
    safetensors,
    with_header,
    xor,
)


def _malformed(name: str, tries: str, header: bytes, **how: Any) -> Case:
    return Case(f"header-{name}", tries, 11, "malformed", with_header(header, **how))


def _not_ready(name: str, tries: str, header: bytes, **how: Any) -> Case:
    return Case(f"header-{name}", tries, 10, "not_ready", with_header(header, **how))


def _changed(name: str, tries: str, change: Callable[[dict[str, Any]], None]) -> Case:
    header = right_header()
    change(header)
    return _malformed(name, tries, dump(header))


def _spec(name: str, tries: str, **fields: Any) -> Case:
    """The victim's dtype, shape or data_offsets are others; None takes a field out."""

    def change(header: dict[str, Any]) -> None:
        header[VICTIM].update(fields)
        header[VICTIM] = {key: value for key, value in header[VICTIM].items() if value != "absent"}

    return _changed(name, tries, change)


def _text(name: str, tries: str, old: str, new: str) -> Case:
    """The header's text with one part replaced, for what `json` would not write."""
    text = dump(right_header()).decode()
    assert text.count(old) >= 1
    return _malformed(name, tries, text.replace(old, new, 1).encode("utf-8", "surrogatepass"))


def _offsets() -> tuple[int, int]:
    begin, end = right_header()[VICTIM]["data_offsets"]
    return begin, end


def _metadata(name: str, tries: str, **digests: Any) -> Case:
    def change(header: dict[str, Any]) -> None:
        header["__metadata__"].update({VICTIM: digests["victim"]} if "victim" in digests else digests)

    return _changed(name, tries, change)


def _lengths() -> list[Case]:
    right = dump(right_header())
    return [
        _malformed("length-u64", "a header of 2^64-1 bytes: an allocation that cannot be", right, length=2**64 - 1),
        _malformed("length-sign", "a header of 2^63 bytes: negative where it is read signed", right, length=2**63),
        _malformed("length-over-cap", "a header one byte over the format's 100 MB", right, length=100_000_001),
        _malformed("length-one", "a header of one byte", b"{"),
        _not_ready("length-past-the-end", "a header of 50 MB in a file of 1 kB", right, length=50_000_000),
        _not_ready("length-zero", "no header at all, as in a file that is allocated but not yet written", right, length=0),
        _not_ready("length-short", "a length that ends in the middle of the JSON, so that data begins there", right, length=len(right) - 40),
        _malformed("length-long", "a length that takes a byte of the data for JSON", right, length=len(right) + 1),
        Case("header-file-empty", "a shard without a byte", 10, "not_ready", {**delta(), SHARD: b""}),
        Case("header-file-three-bytes", "a shard shorter than the length field", 10, "not_ready", {**delta(), SHARD: b"\1\0\0"}),
        _not_ready("zeros", "zeros where the header should be", bytes(len(right))),
        _malformed("data-left-over", "bytes behind the last tensor", right, data=bytes(2000)),
        _not_ready("data-short", "a shard cut in its last tensor", right, data=bytes(100)),
    ]  # fmt: skip


def _texts() -> list[Case]:
    right = dump(right_header())
    nested = b'{"x":' * 10_000 + b"1" + b"}" * 10_000
    keys = ",".join(f'"{number:04x}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for number in range(1000))
    return [
        _malformed("no-json", "text that is no JSON", b"{" + b"x" * 200),
        _malformed("array", "JSON, but an array", b"[" + right + b"]"),
        _malformed("byte-order-mark", "a UTF-8 byte order mark before the JSON", b"\xef\xbb\xbf" + right),
        _malformed("utf-16", "JSON in UTF-16", json.dumps(right_header()).encode("utf-16-le")),
        _malformed("not-utf-8", "a tensor name with bytes that are no UTF-8", right.replace(b"a.weight", b"a.w\xff\xfeght")),
        _malformed("overlong-utf-8", "an overlong form of `/` in a tensor name", right.replace(b"a.weight", b"a.\xc0\xafight")),
        _malformed("deep-arrays", "25,000 arrays in one another: the recursion of a parser", b'{"__metadata__":' + b"[" * 25_000 + b"]" * 25_000 + b"}"),
        _malformed("deep-objects", "10,000 objects in one another", nested),
        _malformed("deep-unclosed", "30,000 arrays that are never closed", b'{"a":' + b"[" * 30_000),
        _malformed("comment", "a comment, as JSON5 has them", b"{/**/" + right[1:]),
        _malformed("trailing-comma", "a comma before the last brace", right[:-1] + b",}"),
        _malformed("second-document", "a second JSON document behind the first", right + b"{}"),
        _malformed("control-character", "a raw newline in a tensor name", right.replace(b"a.weight", b"a.\neight")),
        _malformed("many-tensors", "1,000 empty tensors that the index does not name", b"{" + keys.encode() + b"," + right[1:]),
        _text("key-twice", "a tensor described twice: readers differ in which one counts", '{"__metadata__"', '{"z.bias":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"__metadata__"'),
        _text("key-twice-escaped", "a tensor described twice, once with an escape in its name", '{"__metadata__"', '{"z.b\\u0069as":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"__metadata__"'),
        _text("metadata-twice", "__metadata__ twice: which digests count?", '{"__metadata__"', '{"__metadata__":{},"__metadata__"'),
        _text("digest-twice", "two digests for one tensor", '"z.bias":"', f'"z.bias":"{digest(b"")}","z.bias":"'),
        _text("dtype-twice", "two dtypes for one tensor", '{"dtype":"U8"', '{"dtype":"F64","dtype":"U8"'),
        _text("lone-surrogate", "half a surrogate pair in a tensor name: cannot be printed or hashed", "a.weight", "a.\\ud800"),
        _text("nul-in-name", "a NUL in a tensor name", "a.weight", "a.weight\\u0000"),
        _text("nan-offset", "NaN as an offset", f"{_offsets()[1]}]", "NaN]"),
        _text("infinite-offset", "Infinity as an offset", f"{_offsets()[1]}]", "Infinity]"),
        _text("minus-infinite-shape", "-Infinity in a shape", '"shape":[', '"shape":[-Infinity,'),
        _text("integer-of-5000-digits", "an integer whose parsing takes quadratic time", f"{_offsets()[1]}]", "9" * 5000 + "]"),
        _text("exponent", "a size as 3e2", '"shape":[', '"shape":[3e0,'),
        _text("negative-zero", "-0.0 as a size", '"shape":[', '"shape":[-0.0,'),
    ]  # fmt: skip


def _specs() -> list[Case]:
    begin, end = _offsets()
    size = end - begin
    return [
        _spec("overlap", "a tensor that begins inside the one before it", data_offsets=[begin - 10, end - 10]),
        _spec("inside-another", "a tensor wholly inside another", data_offsets=[0, size]),
        _spec("hole", "a byte that belongs to no tensor", data_offsets=[begin + 1, end + 1]),
        _spec("offset-negative", "an offset before the data", data_offsets=[-size, 0]),
        _spec("offsets-reversed", "an end before its begin", data_offsets=[end, begin]),
        _spec("offset-past-the-end", "offsets far past the end of the file", data_offsets=[2**62, 2**62 + size]),
        _spec("offset-wraps", "offsets whose sum wraps in 64 bits", data_offsets=[2**64 - 1, size - 1]),
        _spec("offsets-three", "three offsets", data_offsets=[begin, end, end]),
        _spec("offsets-text", "offsets as text", data_offsets=[str(begin), str(end)]),
        _spec("offsets-bool", "true as an offset", data_offsets=[True, True]),
        _spec("offsets-null", "no offsets", data_offsets=None),
        _spec("shape-bool", "true as a size, which Python takes for 1", shape=[True, size]),
        _spec("shape-float", "a size with a fraction", shape=[float(size)]),
        _spec("shape-negative", "two negative sizes with the right product", shape=[-1, -size]),
        _spec("shape-huge", "sizes whose product has thousands of bits", shape=[2**62] * 60),
        _spec("shape-wraps", "sizes whose product is right modulo 2^64", shape=[2**63, 2, size]),
        _spec("shape-many", "5,000 dimensions", shape=[1] * 5000 + [size]),
        _spec("shape-nested", "a shape in a shape", shape=[[size]]),
        _spec("shape-two", "a payload in two dimensions", shape=[1, size]),
        _spec("shape-scalar", "a payload without dimensions", shape=[]),
        _spec("dtype-unknown", "a dtype that nobody knows", dtype="U9"),
        _spec("dtype-other", "a payload of 16-bit values", dtype="I16", shape=[size // 2]),
        _spec("dtype-list", "a list as dtype, which cannot be looked up", dtype=["U8"]),
        _spec("dtype-4-bit", "half a byte too much", dtype="F4", shape=[2 * size + 1]),
        _spec("field-more", "a field that the format does not have", stride=[1]),
        _spec("field-less", "no shape", shape="absent"),
        _changed("spec-null", "null instead of a description", lambda header: header.update({VICTIM: None})),
        _changed("metadata-list", "a list as __metadata__", lambda header: header.update(__metadata__=[])),
        _changed("metadata-null", "null as __metadata__", lambda header: header.update(__metadata__=None)),
        _metadata("digest-number", "a number as a digest", victim=7),
        _metadata("digest-empty", "an empty digest", victim=""),
        _metadata("digest-upper-case", "a digest in upper case", victim=digest(b"x").upper()),
        _metadata("digest-other-digits", "a digest in digits of another script", victim="\uff11" * 32),
        _metadata("digest-short", "a digest of adler32 where xxh3-128 is told", victim="00000001"),
        _metadata("digest-of-nothing", "a digest of a tensor that is not there", **{"zz.more": digest(b"")}),
    ]  # fmt: skip


def _tensors() -> list[Case]:
    def built(name: str, tries: str, code: int, identifier: str, frames: dict[str, bytes], inspect: int) -> Case:
        digests = {tensor: digest(tensor.encode()) for tensor in frames}
        files = {
            SHARD: safetensors(dump(delta_header(frames, digests)), b"".join(frames.values())),
            INDEX: dump(index(dict.fromkeys(frames, SHARD))),
        }
        return Case(f"tensor-{name}", tries, code, identifier, files, inspect)

    right = frame(xor(2, VICTIM))
    one = frame(b"x")
    mismatch = (13, "lineage_mismatch")
    return [
        built("unknown", "a tensor that the checkpoint does not have", *mismatch, {"nobody.knows": one}, 0),
        built("nul-in-name", "a NUL in the name of a tensor that the checkpoint does not have", *mismatch, {"a\0b": one}, 0),
        built("terminal", "a name that would steer a terminal", *mismatch, {"\x1b[2J\x1b]0;x\x07\r\n": one}, 0),
        built("right-to-left", "a name that would turn the text around it", *mismatch, {"\u202eereht\u2066": one}, 0),
        built("look-alike", "a Cyrillic letter in the name of a tensor", *mismatch, {"\u0430.weight": one}, 0),
        built("name-of-24-kb", "a name of 24,000 characters, twice in the answer", *mismatch, {"n" * 24_000: one}, 0),
        built("empty-name", "a tensor without a name", *mismatch, {"": one}, 0),
        built("other-size", "a payload of another size than the tensor", *mismatch, {VICTIM: one}, 0),
        built("no-bytes", "a payload without a byte", 11, "malformed", {VICTIM: b""}, 0),
        built("dunder", "a tensor that is called as the metadata is", 11, "malformed", {"__metadata__": right}, 11),
    ]  # fmt: skip


CASES = [*_lengths(), *_texts(), *_specs(), *_tensors()]
