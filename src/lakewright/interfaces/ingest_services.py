"""Table services beside an ingestion: after each commit, in a thread of their own, or none."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from lakewright.clock import Clock
from lakewright.errors import InvalidError, LakewrightError
from lakewright.interfaces.writes import TableWriter
from lakewright.services.inline import InlineSettings
from lakewright.services.loop import Round, Step, run_continuously, run_round
from lakewright.services.runner import ServiceRunner
from lakewright.settings import option_keys, parse_bool, settings_from
from lakewright.table.snapshot import load_snapshot

_MODE = "hoodie.write.concurrency.mode"
_SEVERAL_WRITERS = {_MODE: "OPTIMISTIC_CONCURRENCY_CONTROL"}
_NOT_INLINE = {
    "hoodie.compact.inline": "false",
    "hoodie.compact.schedule.inline": "false",
    "hoodie.log.compaction.inline": "false",
    "hoodie.clustering.inline": "false",
    "hoodie.clustering.schedule.inline": "false",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
}
_FATE = "hoodie.fail.writes.on.inline.table.service.exception"
_SWITCHES = option_keys(InlineSettings) - {_FATE}


class ServiceMode(StrEnum):
    """Who takes care of the table while it is filled."""

    INLINE = "inline"  # the round that has committed
    ASYNC = "async"  # a thread beside the rounds
    OFF = "off"  # somebody else


def parse_mode(text: str) -> ServiceMode:
    """The mode of a name."""
    try:
        return ServiceMode(text.strip().lower())
    except ValueError as error:
        known = [str(mode) for mode in ServiceMode]
        raise InvalidError("no such mode of services", services=text, known=known) from error


def writer_options(options: Mapping[str, str], mode: ServiceMode) -> dict[str, str]:
    """The options of the rounds' own writes."""
    if mode is ServiceMode.INLINE:
        return dict(options)
    if mode is ServiceMode.ASYNC:
        return {**_SEVERAL_WRITERS, **options, **_NOT_INLINE}
    asked = [key for key in sorted(_SWITCHES & options.keys()) if parse_bool(options[key])]
    if asked:
        raise InvalidError(
            "services are off, and options ask for some: leave them out", options=asked
        )
    return {**options, **_NOT_INLINE}


@dataclass
class ServiceThread:
    """The services that options ask for, in a thread that rounds need not wait for."""

    writer: TableWriter
    options: Mapping[str, str]
    interval_s: float
    clock: Clock
    _steps: list[Step] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_begun(self) -> bool:
        """Whether it was started."""
        return self._thread is not None

    def start(self) -> None:
        """Begin; UnavailableError if the table could not be looked at, and nothing has begun."""
        work = partial(self._run, self._names)
        self._thread = threading.Thread(target=work, name="lakewright-services", daemon=True)
        self._thread.start()

    def run_once(self) -> tuple[Step, ...]:
        """One round of services, in the caller's own thread; errors are outcomes."""
        try:
            return tuple(run_round(self._runner, self._names))
        except LakewrightError as error:
            return (Step("services", error),)

    def taken(self) -> tuple[Step, ...]:
        """What was done since somebody asked last."""
        with self._guard:
            steps, self._steps = tuple(self._steps), []
        return steps

    def stop(self) -> None:
        """End after the step that is under way."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @property
    def _runner(self) -> ServiceRunner:
        told = {**_SEVERAL_WRITERS, **self.options}
        return replace(self.writer.services, options=told)

    @property
    def _names(self) -> tuple[str, ...]:
        config = load_snapshot(self.writer.storage).config
        settings = settings_from(InlineSettings, self.options)
        return tuple(name for name, _ in settings.steps(config))

    def _run(self, names: Sequence[str]) -> None:
        if not names:
            return
        try:
            run_continuously(
                self._runner,
                names,
                interval_s=self.interval_s,
                clock=self.clock,
                stop=self._stop.is_set,
                report=self._note,
            )
        except LakewrightError as error:
            # The steps have told of it; the rounds go on without services.
            self._note(Round(0, (Step("services", error),)))

    def _note(self, found: Round) -> None:
        with self._guard:
            self._steps += found.steps
