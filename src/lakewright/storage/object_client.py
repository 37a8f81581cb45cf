"""From a URI and plain options to a client of an object store, and from its errors to ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from obstore.exceptions import (
    BaseError,
    InvalidPathError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, ObjectStore, S3Store

from lakewright.errors import InvalidError, LakewrightError, UnavailableError
from lakewright.storage.base import MissingFileError, flag, is_hadoop_setting
from lakewright.storage.secrets import without_secrets

Options = tuple[tuple[str, str], ...]

# What Spark users have in their Hadoop settings already, by the name of the client's option.
_S3A_KEYS = {
    "fs.s3a.access.key": "access_key_id",
    "fs.s3a.secret.key": "secret_access_key",
    "fs.s3a.session.token": "session_token",
    "fs.s3a.endpoint": "endpoint",
    "fs.s3a.endpoint.region": "region",
    "fs.s3a.connection.ssl.enabled": "ssl",
    "fs.s3a.path.style.access": "path_style",
    "fs.s3a.aws.credentials.provider": "credentials_provider",
}
_HTTP_KEYS = (
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "proxy_url",
    "timeout",
    "user_agent",
)
_DEFAULTS = {"timeout": "120s", "max_retries": "6", "retry_timeout": "60"}
# What the client of each kind of store is configured with, without the place, which is the
# address; it takes the same names with a prefix, as they stand in the environment.
_CLIENT_KEYS = {
    "s3": (
        "access_key_id",
        "checksum_algorithm",
        "conditional_put",
        "container_authorization_token_file",
        "container_credentials_full_uri",
        "container_credentials_relative_uri",
        "copy_if_not_exists",
        "default_region",
        "disable_bulk_delete",
        "disable_tagging",
        "endpoint",
        "metadata_endpoint",
        "region",
        "request_payer",
        "role_arn",
        "role_session_name",
        "secret_access_key",
        "server_side_encryption",
        "session_token",
        "skip_signature",
        "sse_bucket_key_enabled",
        "sse_kms_key_id",
        "unsigned_payload",
        "virtual_hosted_style_request",
        "web_identity_token_file",
    ),
    "gcs": (
        "application_credentials",
        "base_url",
        "bearer_token",
        "service_account",
        "service_account_key",
        "skip_signature",
    ),
    "azure": (
        "account_key",
        "account_name",
        "authority_host",
        "client_id",
        "client_secret",
        "disable_tagging",
        "endpoint",
        "fabric_cluster_identifier",
        "fabric_session_token",
        "fabric_token_service_url",
        "fabric_workload_host",
        "federated_token_file",
        "msi_endpoint",
        "msi_resource_id",
        "object_id",
        "sas_key",
        "skip_signature",
        "tenant_id",
        "token",
        "use_azure_cli",
        "use_emulator",
        "use_fabric_endpoint",
    ),
}
_CLIENT_PREFIXES = {"s3": "aws_", "gcs": "google_", "azure": "azure_"}
_OF_STORAGE_ACCOUNTS = ("account_key", "account_name", "sas_key", "token", "use_emulator")
_OF_EVERY_KIND = frozenset({*_HTTP_KEYS, *_DEFAULTS, "ssl", "path_style", "credentials_provider"})

_STATUS = re.compile(r"status code: (\d{3})")
_PASSING_STATUS = {408, 409, 429}
# One request deletes many keys; what became of each is in the body of an answer that says OK.
_KEY_REFUSED = re.compile(r"request failed for key (?P<key>.*): .*\(code: (?P<code>\w+)\)")
_PASSING_CODES = {
    "InternalError",
    "OperationAborted",
    "RequestTimeout",
    "ServiceUnavailable",
    "SlowDown",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket (or container) and a prefix in it, on one kind of store.

    `text` is the URI as Spark wants it; `account` is set for Azure only.
    """

    text: str
    kind: str
    bucket: str
    prefix: str
    account: str | None = None

    @classmethod
    def parse(cls, uri: str) -> Place:
        """Read a URI such as `s3://bucket/folder/table`."""
        scheme, _, rest = uri.partition("://")
        authority, _, path = rest.partition("/")
        prefix = path.strip("/")
        kind = SCHEMES.get(scheme.lower())
        if kind is None or not authority:
            raise InvalidError("not the address of an object store", uri=uri, known=sorted(SCHEMES))
        bucket, _, host = authority.partition("@")
        # Spark reads S3 through s3a only; the others keep the scheme that they came with.
        spark_scheme = "s3a" if kind == "s3" else scheme.lower()
        text = f"{spark_scheme}://{authority}/{prefix}".rstrip("/")
        return cls(text, kind, bucket, prefix, host.partition(".")[0] or None)


def option_names(kind: str) -> frozenset[str]:
    """Return the plain options that a store of a kind takes, besides Hadoop's settings."""
    prefix = _CLIENT_PREFIXES[kind]
    prefixed = (
        f"{prefix}storage_{name}" if name in _OF_STORAGE_ACCOUNTS else f"{prefix}{name}"
        for name in _CLIENT_KEYS[kind]
    )
    return _OF_EVERY_KIND.union(_CLIENT_KEYS[kind], prefixed)


def normal_options(place: Place, options: Mapping[str, str]) -> Options:
    """Turn plain or Hadoop-style options into the client's own, sorted; others of Hadoop go."""
    found: dict[str, str] = {}
    plain = {name.removeprefix("spark.hadoop."): value for name, value in options.items()}
    of_bucket = f"fs.s3a.bucket.{place.bucket}."
    for name, value in plain.items():
        if not is_hadoop_setting(name):
            found[name] = value
        elif name in _S3A_KEYS and place.kind == "s3":
            found.setdefault(_S3A_KEYS[name], value)
    for name, value in plain.items():
        general = "fs.s3a." + name.removeprefix(of_bucket)
        if name.startswith(of_bucket) and general in _S3A_KEYS:
            found[_S3A_KEYS[general]] = value
    return tuple(sorted(_translated(found).items()))


def _translated(found: dict[str, str]) -> dict[str, str]:
    secure = flag(found, "ssl", default=True)
    # The client speaks path style unless told otherwise, which every store understands.
    flag(found, "path_style", default=True)
    if "Anonymous" in found.get("credentials_provider", ""):
        found["skip_signature"] = "true"
    if "endpoint" in found and "://" not in found["endpoint"]:
        found["endpoint"] = f"{'https' if secure else 'http'}://{found['endpoint']}"
    if found.get("endpoint", "").startswith("http://"):
        found.setdefault("allow_http", "true")
    for name in ("ssl", "path_style", "credentials_provider"):
        found.pop(name, None)
    return found


@lru_cache(maxsize=64)
def client_for(place: Place, options: Options) -> ObjectStore:
    """Return the client of this process for a place; a wrong option is an InvalidError."""
    given = {**_DEFAULTS, **dict(options)}
    http = {name: given.pop(name) for name in _HTTP_KEYS if name in given}
    try:
        retry = {
            "max_retries": int(given.pop("max_retries")),
            "retry_timeout": timedelta(seconds=float(given.pop("retry_timeout"))),
        }
        return _CLIENTS[place.kind](place, given, client_options=http, retry_config=retry)
    except (BaseError, ValueError, TypeError) as error:
        raise InvalidError(
            "the options do not make a client for this store",
            uri=place.text,
            options=[name for name, _ in options],
            reason=without_secrets(_first_line(error), dict(options)),
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:300]


def _s3(place: Place, config: Any, **settings: Any) -> ObjectStore:
    return S3Store(place.bucket, prefix=place.prefix or None, config=config, **settings)


def _gcs(place: Place, config: Any, **settings: Any) -> ObjectStore:
    return GCSStore(place.bucket, prefix=place.prefix or None, config=config, **settings)


def _azure(place: Place, config: Any, **settings: Any) -> ObjectStore:
    if place.account:
        config.setdefault("account_name", place.account)
    return AzureStore(place.bucket, prefix=place.prefix or None, config=config, **settings)


SCHEMES = {
    "s3": "s3",
    "s3a": "s3",
    "s3n": "s3",
    "gs": "gcs",
    "az": "azure",
    "abfs": "azure",
    "abfss": "azure",
}
_CLIENTS: dict[str, Callable[..., ObjectStore]] = {"s3": _s3, "gcs": _gcs, "azure": _azure}


@contextmanager
def translated_errors(path: str) -> Iterator[None]:
    """Turn what the client raises into one of this library's errors."""
    try:
        yield
    except (BaseError, OSError, ValueError) as error:
        raise storage_error(error, path) from error


def storage_error(error: Exception, path: str) -> LakewrightError:
    """Say what an error of the client means for the caller."""
    reason = _first_line(error)
    if "NoSuchBucket" in str(error):
        return InvalidError("there is no such bucket", path=path, reason=reason)
    if isinstance(error, FileNotFoundError):
        return MissingFileError("there is no such file", path=path)
    if isinstance(error, PermissionDeniedError | UnauthenticatedError):
        return InvalidError("the store denies access", path=path, reason=reason)
    if isinstance(error, InvalidPathError):
        return InvalidError(
            "the store holds a key that is no path of a table: remove it", path=path, reason=reason
        )
    if (key := _KEY_REFUSED.search(reason)) and key["code"] not in _PASSING_CODES:
        denied = "the store denies access" if "Denied" in key["code"] else "the store refused a key"
        return InvalidError(denied, path=path, key=key["key"], reason=reason)
    status = status_of(error)
    refused = 300 <= status < 500 and status not in _PASSING_STATUS
    if refused or isinstance(error, ValueError):
        return InvalidError("the store refused the request", path=path, reason=reason)
    return UnavailableError("the store did not answer", path=path, reason=reason)


def status_of(error: Exception) -> int:
    """Return the HTTP status that an error of the client tells of, or 0."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else 0
