"""The table on storage: snapshots, transactions, rollbacks, savepoints and scheduled plans."""
