"""Champions in the MLflow registry: alias and history of one registered model.

    history   tags ``champion.<time>.<key>`` of the registered model, one JSON event each, never rewritten; what stands is a
              stack: a promotion puts a version on top, a rollback takes the top off
    alias     ``champion`` points to the top; the history is the truth, an alias that an interrupted call left behind is mended
    verdicts  tags ``verdict.000001``, … of a version, one for every trial that the gate judged, and the last as ``verdict``

A promotion names the champion that its evidence was measured against, and is refused if another one stands there right before
the alias is set: MLflow has no check-and-set, so two calls within the same moment both append, and the later one stands.
"""

import getpass
import json
import os
import re
import socket
import uuid
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from pipelines.gate.verdict import CHALLENGER, CHAMPION, VERSION
from pipelines.registry.versions import BUNDLE_TAG, PAIR_TAG, registered_model

EVENT = "champion."
OWN = re.compile(r"(champion\.\d{4}-\d\d-\d\dT[\d:.]+Z\.[0-9a-f]{8}|verdict\.\d{6})$")  # other tags are users' notes
PROMOTED, ROLLED_BACK = "promoted", "rolled back"
VERDICT_TAG = "verdict"


@dataclass(frozen=True)
class Event:
    """One change of the champion: ``version`` (its content ``sha256``) was ``action``; ``forced``: why the gate's refusal was
    overridden; ``verdict``: what the gate said, of a promotion."""

    action: str
    version: str
    sha256: str
    at: str
    by: str
    forced: str | None = None
    verdict: str | None = None


@dataclass(frozen=True)
class Version:
    """A version of the registered model, and the content hash of its bundle."""

    version: str
    sha256: str


class Champions:
    """The champions of registered model ``name`` at the server of ``client``."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name = client, name

    def history(self) -> list[Event]:
        """All events, oldest first; `ValueError` if nothing of this name is registered."""
        tags = registered_model(self.client, self.name).tags
        return [Event(**json.loads(tags[key])) for key in sorted(tags) if OWN.match(key)]

    def _standing(self) -> list[Version]:
        """The promoted versions that stand, the newest last; one that was deleted stands no more."""
        standing: list[Version] = []
        for event in self.history():
            if event.action == PROMOTED:
                standing.append(Version(event.version, event.sha256))
            else:
                while standing.pop().version != event.version:
                    pass  # deleted since
        return [one for one in standing if self._version(one.version) is not None]

    def champion(self) -> Version | None:
        """The version on top of the history's stack."""
        return next(reversed(self._standing()), None)

    def challenger(self) -> Version | None:
        """The version under alias ``challenger``."""
        return self._version(self._alias(CHALLENGER))

    def promote(self, version: str, over: str | None, verdict: dict[str, Any], forced: str | None = None) -> Event:
        """Make ``version`` the champion. What the gate said is kept before (`keep`): a trial counts, however this ends.

        ``over``: content hash of the champion that the evidence was measured against (``None``: there was none); ``forced``: why
        the verdict is overridden, which is recorded. `ValueError` if the verdict is not a pass and nothing forces it, if
        another champion stands there by now, or if ``version`` is it."""
        if not verdict["passed"] and not forced:
            raise ValueError(
                f"{self.name} version {version} did not pass the gate ({verdict['verdict']}), and nothing forces it. "
                "Say --force."
            )
        standing = self.champion()
        found = None if standing is None else standing.sha256
        if found != over:
            raise ValueError(
                f"the evidence on {self.name} version {version} was measured against {_shown(over)}, and by now "
                f"{_shown(found)} is the champion. Measure again."
            )
        made = self._version(version)
        if made is None or made.sha256 == over:
            what = "is the champion already" if made else "does not exist"
            raise ValueError(f"{self.name} version {version} {what}: nothing was changed.")
        return self._record(PROMOTED, made, forced, verdict["verdict"])

    def keep(self, version: str, verdict: dict[str, Any]) -> None:
        """Keep the gate's record, whatever it says, as a tag of the version."""
        number, text = len(self.verdicts(version)) + 1, json.dumps(verdict, sort_keys=True)
        for key in (f"{VERDICT_TAG}.{number:06d}", VERDICT_TAG):
            self.client.set_model_version_tag(self.name, version, key, text)

    def verdicts(self, version: str) -> list[dict[str, Any]]:
        """The gate's records that were kept on a version, oldest first; those of a gate of another version count for nothing."""
        tags = self.client.get_model_version(self.name, version).tags
        kept = [json.loads(tags[key]) for key in sorted(tags) if OWN.match(key)]
        return [record for record in kept if record.get("version") == VERSION]

    def earlier(self) -> Version:
        """The champion before this one, which a rollback puts back; `ValueError` if there is none."""
        standing = self._standing()
        if len(standing) < 2:
            found = f"version {standing[0].version} is the only champion there was" if standing else "there is none"
            raise ValueError(f"{self.name} has no earlier champion to go back to: {found}. Nothing was changed.")
        return standing[-2]

    def rollback(self) -> Event:
        """Put back the champion before this one; `ValueError` if there is none."""
        self.earlier()
        return self._record(ROLLED_BACK, self._standing()[-1])

    def mend(self) -> None:
        """Point the alias to what the history says."""
        if not self.follows():
            self._follow()

    def _record(self, action: str, version: Version, forced: str | None = None, verdict: str | None = None) -> Event:
        """Append an event, and let the alias follow."""
        event = Event(action, version.version, version.sha256, _now(), _who(), forced, verdict)
        key = f"{EVENT}{event.at}.{uuid.uuid4().hex[:8]}"
        self.client.set_registered_model_tag(self.name, key, json.dumps(asdict(event), sort_keys=True))
        self._follow()
        return event

    def follows(self) -> bool:
        """Whether the alias is where the history says."""
        top = self.champion()
        return self._alias(CHAMPION) == (None if top is None else top.version)

    def _follow(self) -> None:
        top = self.champion()
        if top is None:
            self.client.delete_registered_model_alias(self.name, CHAMPION)
        else:
            self.client.set_registered_model_alias(self.name, CHAMPION, top.version)

    def _alias(self, alias: str) -> str | None:
        version = self.client.get_registered_model(self.name).aliases.get(alias)
        return None if version is None else str(version)

    def _version(self, version: str | None) -> Version | None:
        from mlflow.exceptions import MlflowException

        if version is None:
            return None
        try:
            found = self.client.get_model_version(self.name, version)
        except MlflowException as error:
            if error.error_code not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
            return None
        return Version(str(found.version), found.tags.get(BUNDLE_TAG, ""))


def names_of(client: Any, pair: str) -> list[str]:
    """Names of the registered models whose versions are tagged with ``pair``."""
    found, token = set(), None
    while True:
        page = client.search_model_versions("", page_token=token)
        found |= {version.name for version in page if version.tags.get(PAIR_TAG) == pair}
        token = page.token
        if not token:
            return sorted(found)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")  # MLflow has no + in the names of tags


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # nobody of that number in the system's list; Python 3.13 says OSError
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()} (process {os.getpid()})"


def _shown(sha256: str | None) -> str:
    return f"champion {sha256[:12]}" if sha256 else "no champion"
