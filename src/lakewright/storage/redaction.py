"""Recognise secret options by name, and redact their values in texts."""

from __future__ import annotations

import re
from collections.abc import Mapping

# What Spark redacts by default (`spark.redaction.regex`), and account keys of cloud stores.
_SECRET = re.compile(
    r"(?i)secret|password|passphrase|credential(?!s?[._]provider)|token(?!.*(?:provider|type))"
    r"|(?:access|account|shared|encryption)[._-]?key"
)
_HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Whether the value of the option `name` must not be shown."""
    return _SECRET.search(name) is not None


def without_secrets(text: str, options: Mapping[str, str]) -> str:
    """Return `text` with the values of secret options redacted."""
    secrets = {value for name, value in options.items() if value and is_secret(name)}
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return text
