"""Files and folders at an address that several servers share, through fsspec: `s3://BUCKET/FOLDER` and the like."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from indexes.errors import CoalesceError, InvalidInput, StorageUnavailable, first_line
from indexes.messages import msg


class SharedFiles:
    """Files and folders, each under a name. Light to make; the first call connects.

    Nothing replaces what lies under a name: it names its content.

    Args:
        url: where they lie. What it needs to get in stands in the environment, as the file system's package reads it.

    Raises:
        InvalidInput: no file system has such an address, or its package is not installed.
    """

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self._url = url
        try:
            if url.startswith("file:"):  # fsspec takes its path as it stands
                self._files, root = url_to_fs(unquote(url), auto_mkdir=True)
            else:
                self._files, root = url_to_fs(url, use_listings_cache=False)  # others change what it lists
        except ImportError as error:
            raise InvalidInput(
                msg("the uploads at {} need a package that is not installed: {}", url, first_line(error)),
                hint="pip install 'coalesce-rag[s3]'",
            ) from error
        except (ValueError, OSError) as error:
            raise InvalidInput(
                msg("{} is not an address for uploads: {}", repr(url), first_line(error)),
                hint="For example: COALESCE_UPLOADS_URL=s3://BUCKET/uploads",
            ) from error
        self._root = root.rstrip("/")

    def check(self) -> None:
        """Proves that files can be written and removed there. Raises StorageUnavailable."""
        with self._errors():
            probe = f"{self._root}/.write-probe-{uuid.uuid4().hex}"
            self._files.pipe_file(probe, b"")
            self._files.rm_file(probe)

    def put(self, source: Path, name: str, last: str = "") -> None:
        """Copies a file or a folder there; the file called `last` comes last, and says that it is whole."""
        with self._errors():
            paths = source.rglob("*") if source.is_dir() else (source,)
            for path in sorted(paths, key=lambda path: path.name == last):
                if path.is_file():
                    self._files.put_file(str(path), "/".join((self._root, name, *path.relative_to(source).parts)))

    def get(self, name: str, target: Path) -> bool:
        """Copies all that lies under a name into a folder; False where there is nothing."""
        with self._errors():
            found = self._files.find(f"{self._root}/{name}")
            for path in found:
                copy = target / path.partition(f"{self._root}/{name}/")[2]
                copy.parent.mkdir(parents=True, exist_ok=True)
                self._files.get_file(path, str(copy))
        return bool(found)

    def mirror(self, folder: Path, last: str) -> None:
        """Copies the folders that lie there whole into a folder, each under its name, unless it is there already."""
        with self._errors():
            parts = [path.partition(f"{self._root}/")[2].partition("/") for path in self._files.find(self._root)]
        folder.mkdir(parents=True, exist_ok=True)
        for name in [name for name, _, rest in parts if rest == last and not (folder / name).exists()]:
            with TemporaryDirectory(prefix=".part-", dir=folder) as part:
                copy = Path(part, name)
                self.get(name, copy)
                with suppress(OSError):  # another has copied it meanwhile
                    copy.rename(folder / name)

    def names(self) -> dict[str, tuple[str, datetime]]:
        """What lies under each name: its own name, and when it came. Not what begins with a dot, as for `glob`."""
        found = {}
        with self._errors():
            for path, about in self._files.find(self._root, detail=True).items():
                name, _, rest = path.partition(f"{self._root}/")[2].partition("/")
                if name.startswith("."):
                    continue
                came = about.get("LastModified") or about.get("created") or self._files.modified(path)
                found[name] = (rest.partition("/")[0], came if isinstance(came, datetime) else datetime.now(UTC))
        return found

    def remove(self, name: str) -> None:
        """Removes what lies under a name, if anything does."""
        with self._errors():
            for path in self._files.find(f"{self._root}/{name}"):
                self._files.rm_file(path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except CoalesceError:
            raise
        except Exception as error:  # every file system has errors of its own
            hint = "start it, or correct COALESCE_UPLOADS_URL"
            if isinstance(error, FileNotFoundError):
                hint = "make the bucket, or name another with COALESCE_UPLOADS_URL"
            elif isinstance(error, PermissionError) or "redentials" in str(error):
                hint = "give the keys of a user who may list, read, write and delete there, such as AWS_ACCESS_KEY_ID"
            raise StorageUnavailable(
                msg("The uploads at '{}' cannot be used: {}", self._url, first_line(error)), hint=hint
            ) from error
