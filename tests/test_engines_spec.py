"""--engine KIND=URL: what is taken, what is refused, and that no secret of it is ever shown."""

import pytest

from vime_sync.engines.spec import EngineKind, EngineSettings, parse_engine, parse_engines
from vime_sync.errors import UsageError

SECRET = "S3CR3T"


@pytest.mark.parametrize(
    ("text", "kind", "url", "address"),
    [
        ("vllm=http://127.0.0.1:8000", EngineKind.VLLM, "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("vllm=http://127.0.0.1:8000/", EngineKind.VLLM, "http://127.0.0.1:8000", "127.0.0.1:8000"),
        ("sglang=https://gpu/prefix/", EngineKind.SGLANG, "https://gpu/prefix", "gpu"),
        ("vllm=http://[::1]:80", EngineKind.VLLM, "http://[::1]:80", "[::1]:80"),
        ("webhook=https://h/a/?x=1&y=2", EngineKind.WEBHOOK, "https://h/a/?x=1&y=2", "h"),
        ("  webhook=http://h/a=b  ", EngineKind.WEBHOOK, "http://h/a=b", "h"),
    ],
)
def test_what_is_taken(text: str, kind: EngineKind, url: str, address: str) -> None:
    spec = parse_engine(text)
    assert (spec.kind, spec.url, spec.address) == (kind, url, address)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "http://127.0.0.1:8000",
        "vllm",
        "vllm=",
        "vllm=127.0.0.1:8000",
        "VLLM=http://h",
        "trt=http://h",
        "vllm=ftp://h",
        "vllm=file:///etc/passwd",
        "vllm=http://",
        "vllm=http://:8000",
        "vllm=http://h:0",
        "vllm=http://h:65536",
        "vllm=http://h:port",
        "vllm=http://[::1",
        "vllm=http://h/?a=b",
        "vllm=http://h/#a",
        "webhook=http://h/\x07",
        "webhook=http://h/\u200b",
        "webhook=http://h/#part",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--engine"):
        parse_engine(text)


@pytest.mark.parametrize(
    "text",
    [
        f"vllm=http://user:{SECRET}@h:80",
        f"vllm=http://{SECRET}@h:80",
        f"vllm=http://user:p@{SECRET}@h:80",
        f"vllm=user:{SECRET}@h:80",
        f"vllm={SECRET}@h",
        f"user:{SECRET}@h:80",
        f"http://user:{SECRET}@h",
        f"vllm=http://h?key={SECRET}",
        f"vllm=http://h#{SECRET}",
        f"hook=https://h/x?token={SECRET}",
        f"https://h/x?token={SECRET}",
        f"webhook=http://h:99999/?k={SECRET}",
        f"webhook=ftp://h/?k={SECRET}",
        f"webhook=http://h/#{SECRET}",
        f"webhook=http://user:{SECRET}@h:99999/",
        f"webhook=http://user:{SECRET}@[::1/",
        f"webhook=http://h/\x07?k={SECRET}",
    ],
)
def test_a_refusal_does_not_show_what_may_be_a_secret(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_engine(text)
    problem = caught.value
    assert SECRET not in f"{problem.message} {problem.hint} {problem!r}"


@pytest.mark.parametrize("place", [f"?token={SECRET}", f"/path?token={SECRET}&x=/y?z"])
def test_a_webhook_is_never_shown_with_its_secret(place: str) -> None:
    spec = parse_engine(f"webhook=http://h{place}")
    for shown in (str(spec), spec.shown_url, spec.key, spec.address, f"{spec!r}"):
        assert SECRET not in shown


def test_settings_are_shown_without_the_key() -> None:
    assert SECRET not in repr(EngineSettings(api_key=SECRET))


def test_records_tell_webhooks_apart_that_look_the_same() -> None:
    one, other = (parse_engine(f"webhook=http://h/?token={number}") for number in (1, 2))
    assert one.shown_url == other.shown_url and one.key != other.key
    assert parse_engine("webhook=http://h/?token=1").key == one.key


def test_several_in_one_text() -> None:
    specs = parse_engines(["vllm=http://a\n sglang=http://b", "webhook=http://c"])
    assert [str(spec) for spec in specs] == ["vllm=http://a", "sglang=http://b", "webhook=http://c"]
    assert parse_engines(["", " "]) == ()


@pytest.mark.parametrize("second", ["vllm=http://a:1", "vllm=http://a:1/", "vllm=http://A:1", "sglang=http://a:1"])
def test_one_engine_twice_is_a_mistake(second: str) -> None:
    """Two loads at once of one engine would be on top of each other."""
    with pytest.raises(UsageError, match="twice"):
        parse_engines(["vllm=http://a:1", second])


def test_a_secret_given_twice_is_not_shown() -> None:
    with pytest.raises(UsageError) as caught:
        parse_engines([f"webhook=http://h/?k={SECRET}"] * 2)
    assert SECRET not in caught.value.message
