from __future__ import annotations

import pytest
from obstore.exceptions import (
    GenericError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
)

from lakewright.errors import InvalidError, LakewrightError, UnavailableError
from lakewright.storage.base import MissingFileError
from lakewright.storage.object_store import (
    ObjectLocation,
    ObjectStorage,
    client_for,
    normal_options,
    storage_error,
)

PLACES = {
    "s3": ("s3://b/x/t", ObjectLocation("s3a://b/x/t", "s3", "b", "x/t")),
    "s3a with a trailing slash": ("s3a://b/t/", ObjectLocation("s3a://b/t", "s3", "b", "t")),
    "a whole bucket": ("s3a://b", ObjectLocation("s3a://b", "s3", "b", "")),
    "a blank and a per cent are literal": (
        "s3://b/a b%20",
        ObjectLocation("s3a://b/a b%20", "s3", "b", "a b%20"),
    ),
    "gcs": ("gs://b/t", ObjectLocation("gs://b/t", "gcs", "b", "t")),
    "azure, as Hadoop writes it": (
        "abfss://c@acc.dfs.core.windows.net/t",
        ObjectLocation("abfss://c@acc.dfs.core.windows.net/t", "azure", "c", "t", "acc"),
    ),
    "azure, without an account": ("az://c/t", ObjectLocation("az://c/t", "azure", "c", "t")),
}


@pytest.mark.parametrize(("uri", "expected"), PLACES.values(), ids=list(PLACES))
def test_a_uri_is_a_place(uri: str, expected: ObjectLocation) -> None:
    assert ObjectLocation.parse(uri) == expected


@pytest.mark.parametrize("uri", ["s3://", "s3:///t", "ftp://b/t", "bucket/t"])
def test_what_is_no_place(uri: str) -> None:
    with pytest.raises(InvalidError):
        ObjectLocation.parse(uri)


OPTIONS: dict[str, tuple[dict[str, str], dict[str, str]]] = {
    "the client's own names stay": (
        {"region": "eu-west-1", "timeout": "5s"},
        {"region": "eu-west-1", "timeout": "5s"},
    ),
    "Hadoop's names are translated": (
        {"fs.s3a.access.key": "k", "fs.s3a.secret.key": "s", "fs.s3a.session.token": "t"},
        {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"},
    ),
    "so are those of a Spark session": (
        {"spark.hadoop.fs.s3a.endpoint.region": "eu-west-1"},
        {"region": "eu-west-1"},
    ),
    "an endpoint without scheme is https": (
        {"fs.s3a.endpoint": "s3.example:9000"},
        {"endpoint": "https://s3.example:9000"},
    ),
    "or http where ssl is off": (
        {"fs.s3a.endpoint": "127.0.0.1:9000", "fs.s3a.connection.ssl.enabled": "false"},
        {"endpoint": "http://127.0.0.1:9000", "allow_http": "true"},
    ),
    "an endpoint with http needs no second word": (
        {"endpoint": "http://127.0.0.1:9000"},
        {"endpoint": "http://127.0.0.1:9000", "allow_http": "true"},
    ),
    "but a second word counts": (
        {"endpoint": "http://127.0.0.1:9000", "allow_http": "false"},
        {"endpoint": "http://127.0.0.1:9000", "allow_http": "false"},
    ),
    "a setting of the bucket beats the general one": (
        {"fs.s3a.bucket.b.access.key": "mine", "fs.s3a.access.key": "all"},
        {"access_key_id": "mine"},
    ),
    "a setting of another bucket is none of ours": ({"fs.s3a.bucket.c.access.key": "theirs"}, {}),
    "a plain name beats Hadoop's": (
        {"fs.s3a.access.key": "hadoop", "access_key_id": "plain"},
        {"access_key_id": "plain"},
    ),
    "Hadoop settings of no meaning here go": (
        {"fs.s3a.threads.max": "64", "fs.s3a.path.style.access": "true", "fs.gs.x": "1"},
        {},
    ),
    "anonymous access signs nothing": (
        {"fs.s3a.aws.credentials.provider": "org.x.AnonymousAWSCredentialsProvider"},
        {"skip_signature": "true"},
    ),
}


@pytest.mark.parametrize(("options", "expected"), OPTIONS.values(), ids=list(OPTIONS))
def test_options(options: dict[str, str], expected: dict[str, str]) -> None:
    place = ObjectLocation.parse("s3://b/t")
    assert dict(normal_options(place, options)) == expected
    assert dict(normal_options(place, dict(reversed(options.items())))) == expected


BAD_OPTIONS = {
    "an unknown name": {"speed": "11"},
    "a time that is none": {"timeout": "soon"},
    "retries that are no number": {"max_retries": "often"},
    "a flag that is none": {"fs.s3a.connection.ssl.enabled": "perhaps"},
}


@pytest.mark.parametrize("options", BAD_OPTIONS.values(), ids=list(BAD_OPTIONS))
def test_a_bad_option_is_invalid_at_once(options: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        ObjectStorage.at("s3://b/t", options)


def test_a_secret_is_neither_printed_nor_shown_in_an_error() -> None:
    keys = {"access_key_id": "k", "secret_access_key": "hush"}
    assert "hush" not in repr(ObjectStorage.at("s3://b/t", keys))
    # The client repeats a value that it cannot read, here one given for the wrong name.
    with pytest.raises(InvalidError) as caught:
        ObjectStorage.at("s3://b/t", {**keys, "timeout": "hush"})
    assert "as Duration" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_a_process_has_one_client_for_a_place() -> None:
    place = ObjectLocation.parse("s3://b/t")
    assert client_for(place, ()) is client_for(ObjectLocation.parse("s3a://b/t/"), ())


def test_clients_of_all_kinds_can_be_made() -> None:
    key = {"account_key": "a2V5"}
    assert ObjectStorage.at("abfss://c@acc.dfs.core.windows.net/t", key).root.startswith("abfss:")
    assert ObjectStorage.at("az://c/t", {"account_name": "acc", **key}).root == "az://c/t"
    assert ObjectStorage.at("gs://b/t").root == "gs://b/t"


ERRORS: dict[str, tuple[Exception, type[LakewrightError]]] = {
    "a missing object": (FileNotFoundError("404 <Code>NoSuchKey</Code>"), MissingFileError),
    "a missing bucket": (FileNotFoundError("404 <Code>NoSuchBucket</Code>"), InvalidError),
    "no permission": (PermissionDeniedError("403"), InvalidError),
    "no identity": (UnauthenticatedError("401"), InvalidError),
    "a bad request": (GenericError("non-2xx status code: 400 Bad Request"), InvalidError),
    "another region": (GenericError("status code: 301 Moved Permanently"), InvalidError),
    "too many requests": (GenericError("status code: 429 Too Many Requests"), UnavailableError),
    "a server that fails": (GenericError("status code: 503 Slow Down"), UnavailableError),
    "a network that fails": (GenericError("HTTP error: error sending request"), UnavailableError),
    "a socket that fails": (ConnectionResetError("reset by peer"), UnavailableError),
    "a key that is no path": (InvalidPathError('Error parsing Path "t/../f"'), InvalidError),
    "a value the client refuses": (ValueError("not a path"), InvalidError),
}


@pytest.mark.parametrize(("error", "kind"), ERRORS.values(), ids=list(ERRORS))
def test_an_error_of_the_client_is_one_of_ours(
    error: Exception, kind: type[LakewrightError]
) -> None:
    assert type(storage_error(error, "p")) is kind
