"""What of this machine, and of its network, a run's documents may come from.

Whoever wrote the run file may read anything. A volunteer reads what somebody else's run file names: files below the one
folder that it has named itself, wherever links lead; addresses of the public network, by https or hf; data sets of the
hub by their name.
"""

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.data import SourceConfig

SCHEMES = ("https", "hf")
DRIVE = "drive.google.com"
OF_HUB = "hf://datasets/"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""USER/NAME. A name by itself is, for `datasets`, a way of reading the files of the current folder as well: "text"."""
BARE_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
PRIVATE_ENDINGS = (".local", ".localhost", ".internal", ".lan", ".home", ".home.arpa", ".intranet", ".corp")


@dataclass(frozen=True)
class Reach:
    """Where documents may be read from. Its errors are DataErrors that name `data.path`."""

    root: Path | None = None
    """Folder that a relative `data.path` starts from; None: the current one, or, fenced, no file of this machine."""
    fenced: bool = False
    """Whether nothing outside of `root` is read, for the run file is somebody else's."""

    @property
    def base(self) -> Path:
        return self.root or Path.cwd()

    def located(self, data: SourceConfig) -> str:
        """The address of the documents as it is, or the absolute pattern of their files."""
        assert data.path is not None  # SourceConfig has checked it
        if "://" in data.path:
            self._check_address(data.path)
            return data.path
        pattern = os.path.normpath(os.path.join(self.base, os.path.expanduser(data.path)))
        if self.fenced:
            self._check_root(data)
            self._check_inside(data, _fixed_part(pattern))
        return pattern

    def check_files(self, data: SourceConfig, files: Sequence[str]) -> None:
        """Whether these files may be read, that `located` has led to: links may lead anywhere."""
        if self.fenced:
            for file in files:
                self._check_inside(data, os.path.realpath(file))

    def check_name(self, data: SourceConfig) -> None:
        """Whether the data set may be read whose name is `data.path`: a folder counts as files of this machine."""
        assert data.path is not None
        if not self.fenced or (HUB_NAME.fullmatch(data.path) and not os.path.exists(data.path)):
            return
        if "://" in data.path:
            self._check_address(data.path)
            return
        if BARE_NAME.fullmatch(data.path) and not os.path.exists(data.path):
            raise DataError(
                f'data.path="{data.path}" is no data set of the hub: its name is USER/NAME, and a volunteer reads no '
                "other. Ask the run's operator"
            )
        self._check_root(data)
        self._check_inside(data, os.path.realpath(os.path.expanduser(data.path)))

    def check_pattern(self, data: SourceConfig, start: str, pattern: str) -> None:
        """Whether files may be looked for so, from `start` on: a data set says itself where its files are."""
        if not self.fenced:
            return
        place = pattern if pattern.startswith(OF_HUB) else os.path.join(start, pattern)
        if pattern == data.path and "://" in pattern:
            self._check_address(pattern)
        elif _leads_away(place) or (_has_scheme(pattern) and not pattern.startswith(OF_HUB)):
            raise DataError(
                f'data.path="{data.path}" has its documents at {place[:200]}; of a data set a volunteer reads what is '
                "in it. Ask the run's operator"
            )
        elif not place.startswith(OF_HUB):
            self._check_root(data)
            self._check_inside(data, _fixed_part(place))

    def check_parts(self, data: SourceConfig, files: Sequence[str]) -> None:
        """Whether these may be read, which a data set says that it is made of: that may be anything."""
        if not self.fenced:
            return
        for file in files:
            if "://" in file:
                self._check_address(file)
            else:
                self._check_root(data)
                self._check_inside(data, os.path.realpath(file))

    def is_name_of_hub(self, name: str) -> bool:
        """Whether this is USER/NAME on the hub, and no folder here. Raises DataError for an address."""
        if "://" in name:
            raise DataError(f'data.prepared="{name}" is an address; name a folder, or a data set of the hub')
        here = os.path.join(self.base, os.path.expanduser(name))
        is_name = HUB_NAME.fullmatch(name) is not None
        return is_name and not (os.path.isdir(here) and (self.root or not self.fenced))

    @property
    def reads_no_folder(self) -> bool:
        return self.fenced and self.root is None

    def _check_root(self, data: SourceConfig) -> None:
        if self.root is None:
            raise DataError(
                f'this run reads files of your machine: data.path="{data.path}"; if you have its documents, name their '
                "folder with --data-root DIR, and nothing outside of it is read"
            )

    def _check_inside(self, data: SourceConfig, place: str) -> None:
        root = os.path.realpath(self.base)
        if os.path.commonpath([root, place]) != root:
            raise DataError(
                f'the run wants to read {place} (data.path="{data.path}"), which is outside of {root}; if you '
                "want that, name another folder with --data-root"
            )

    def _check_address(self, address: str) -> None:
        if self.fenced and (why := why_not_read(address)) is not None:
            raise DataError(f'the run reads data.path="{address}"{why}')


def why_not_read(address: str) -> str | None:
    """Why a volunteer reads no address like this one, as the end of a sentence; None: it does."""
    scheme, _, rest = address.partition("://")
    host = urlsplit(address).hostname or ""
    if scheme not in SCHEMES or "::" in rest:
        return "; of other machines a volunteer reads only https:// and hf://"
    if scheme == "https" and _is_private(host):
        return ", which is in your own network; ask its operator why"
    if DRIVE in address and host != DRIVE:  # `datasets` asks it itself, and goes wherever it is sent
        return f", which says {DRIVE} and is another server"
    return None


def _fixed_part(pattern: str) -> str:
    """The folder that all files of a pattern are in, or the file, wherever links lead."""
    fixed = re.split(r"[*?\[]", pattern, maxsplit=1)[0]
    return os.path.realpath(fixed if fixed == pattern else os.path.dirname(fixed))


def _leads_away(place: str) -> bool:
    """Whether it is several addresses in one, or has a folder's parent in it."""
    return place.count("://") > 1 or "::" in place or ".." in place.split("/")


def _has_scheme(pattern: str) -> bool:
    """Whether it is an address, however it is written: "file:/etc" is one, for fsspec."""
    return "://" in pattern or urlsplit(pattern).scheme != ""


def _is_private(host: str) -> bool:
    """Whether a host is one of this machine's own network, as far as its name tells."""
    host = host.rstrip(".").lower()
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        # a number without dots, or in another base, is an address too
        return "." not in host or host.endswith(PRIVATE_ENDINGS) or not re.search(r"[a-z]", host.rsplit(".", 1)[-1])
