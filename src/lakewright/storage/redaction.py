"""Which options are secret, and texts without them."""

from __future__ import annotations

import re
from collections.abc import Mapping

# What Spark hides by default (`spark.redaction.regex`), and the keys of accounts of Azure's.
_SECRET = re.compile(
    r"(?i)secret|password|passphrase|credential(?!s?[._]provider)|token(?!.*(?:provider|type))"
    r"|(?:access|account|shared|encryption)[._-]?key"
)
_HIDDEN = "***"


def is_secret(name: str) -> bool:
    """Tell whether the value of an option is to be shown to nobody, by the option's name."""
    return _SECRET.search(name) is not None


def without_secrets(text: str, options: Mapping[str, str]) -> str:
    """A text in which no value of a secret option stands."""
    secrets = {value for name, value in options.items() if value and is_secret(name)}
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, _HIDDEN)
    return text
