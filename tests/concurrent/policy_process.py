"""A process that saves policies of a table, one after the other, and says which."""

from __future__ import annotations

import sys

from lakewright.interfaces.ttl import TableTtl
from lakewright.storage.local import LocalStorage

# A killed holder of the lock is waited for only this long.
OPTIONS = {
    "hoodie.write.lock.filesystem.expire": "1",
    "hoodie.write.lock.wait_time_ms_between_retry": "10",
}


def main(path: str, name: str, count: str) -> None:
    ttl = TableTtl.of(LocalStorage.at(path, {}), OPTIONS)
    for number in range(int(count)):
        ttl.save({"spec": f"{name}{number}", "units": "DAYS", "value": number + 1})
        print(f"{name}{number}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
