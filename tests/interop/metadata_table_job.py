"""What real Hudi's classes read from HFiles and metadata tables; runs in the process of real Hudi.

The folder has `asked.json` with the files and keys that are asked for, and `record_keys.txt`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def job(spark: SparkSession, path: str) -> dict[str, Any]:
    """Return what each HFile has of its keys, and what the metadata table says."""
    asked = json.loads((Path(path) / "asked.json").read_text())
    jvm = spark._jvm
    table = metadata_table(spark, f"{path}/table")
    pair = jvm.org.apache.hudi.common.util.collection.Pair
    file = jvm.java.io.File(f"{path}/record_keys.txt")
    keys = jvm.java.nio.file.Files.readAllLines(file.toPath())
    found = table.readRecordIndexLocationsWithKeys(
        jvm.org.apache.hudi.common.data.HoodieListData.eager(keys)
    )
    storage_path = jvm.org.apache.hudi.storage.StoragePath
    listed = {
        partition: {
            info.getPath().getName(): info.getLength()
            for info in table.getAllFilesInPartition(storage_path(f"{path}/table/{partition}"))
        }
        for partition in table.getAllPartitionPaths()
    }
    bloom = table.getBloomFilter(*asked["bloom"]["file"], "bloom_filters").get()
    return {
        "hfiles": [
            [read_hfile(jvm, f"{path}/{name}", keys) for name, keys in asked["hfiles"].items()]
        ],
        # One text instead of many small answers.
        "locations": [[found.collectAsList().toString()]],
        "listed": [[listed]],
        "stats": [[stats(table, pair, jvm, name) for name in asked["stats"]]],
        "bloom": [[bloom.mightContain(key) for key in asked["bloom"]["keys"]]],
    }


def metadata_table(spark: SparkSession, path: str) -> Any:
    hudi = spark._jvm.org.apache.hudi
    conf = hudi.hadoop.fs.HadoopFSUtils.getStorageConf(spark._jsc.hadoopConfiguration())
    builder = hudi.common.table.HoodieTableMetaClient.builder()
    storage = builder.setBasePath(path).setConf(conf).build().getStorage()
    engine = hudi.common.engine.HoodieLocalEngineContext(conf)
    config = hudi.common.config.HoodieMetadataConfig.newBuilder().enable(True).build()
    return hudi.metadata.HoodieBackedTableMetadata(engine, storage, config, path)


def read_hfile(jvm: Any, path: str, keys: list[str]) -> dict[str, Any]:
    """Return the entries, the values of ascending keys, and the meta block of a file."""
    io = jvm.org.apache.hudi.io
    data = Path(path).read_bytes()

    def opened() -> Any:
        stream = io.ByteArraySeekableDataInputStream(io.ByteBufferBackedInputStream(data))
        reader = io.hfile.HFileReaderImpl(stream, len(data))
        reader.initializeMetadata()
        return reader

    reader = opened()
    reader.seekTo()
    values = []
    for key in keys:
        is_found = reader.seekTo(io.hfile.UTF8StringKey(key)) == 0
        values.append(value_of(reader.getKeyValue().get()) if is_found else None)
    scanned = opened()
    count = 0
    more = scanned.seekTo()
    while more:
        count += 1
        more = scanned.next()
    meta = scanned.getMetaBlock("bloomFilter")
    buffer = meta.get() if meta.isPresent() else None
    text = buffer and bytes(buffer.array())[buffer.position() : buffer.limit()].decode()
    return {
        "entries": scanned.getNumKeyValueEntries(),
        "scanned": count,
        "values": values,
        "meta": text,
    }


def value_of(entry: Any) -> str:
    start = entry.getValueOffset()
    return bytes(entry.getBytes())[start : start + entry.getValueLength()].hex()


def stats(table: Any, pair: Any, jvm: Any, file_name: str) -> str | None:
    """Return the statistics of the column `v` in a file as JSON, or None if Hudi fails."""
    files = jvm.java.util.ArrayList()
    files.add(pair.of("p1", file_name))
    try:
        (found,) = table.getColumnStats(files, "v").values()
    except Exception:
        return None
    return str(found)
