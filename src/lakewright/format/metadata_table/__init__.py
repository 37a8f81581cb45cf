"""The bytes of a metadata table: records, log and base files, and its properties.

Records of one kind are an Arrow table, whose columns `record_schema.py` names. To write, make such
tables (`listing.py`, `statistics.py`, `record_index.py`), encode them (`records.py`) and format the
file of each shard (`files.py`). To read, parse files or look up keys in them by ranges, decode what
is found, and merge it from the oldest file to the newest (`merging.py`). Which shard has a key is
in `model/metadata_partitions.py`, how keys are made in `model/metadata_keys.py`.
"""
