"""The three steps of reading a source: find out what there is, fetch it, finish."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

Metadata = TypeVar("Metadata")
Data = TypeVar("Data")


class IncrementalQueryRunner(ABC, Generic[Metadata, Data]):
    """One incremental query, in the steps that sources have in common."""

    def run(self) -> Data:
        """All three steps."""
        metadata = self.get_metadata()
        return self.post_actions(metadata, self.fetch_data(metadata))

    @abstractmethod
    def get_metadata(self) -> Metadata:
        """What there is to read: instants, objects; no rows are touched."""

    @abstractmethod
    def fetch_data(self, metadata: Metadata) -> Data:
        """The rows themselves."""

    @abstractmethod
    def post_actions(self, metadata: Metadata, data: Data) -> Data:
        """What is left to do: columns to drop, figures, the next checkpoint."""
