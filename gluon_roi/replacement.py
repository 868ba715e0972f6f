# SPDX-License-Identifier: Apache-2.0
"""Writes files that replace others when they are complete, or not at all.

New files lie in a hidden folder next to their target, ``.gluon_roi-XXXXXXXX``, until all files of
an operation are complete. The folder is removed after an error, and when SIGTERM or SIGHUP ends the
process. What SIGKILL leaves behind, the next operation in the same place removes: a process locks
its folder for as long as it lives, so a folder that can be locked has no owner any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path
from typing import Any, Iterator, NoReturn

_PREFIX = ".gluon_roi-"
#: Signals that by default end a process without its cleanup.
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Replacement:
    """Context manager: new files replace others at the end of the block, all of them or none.

    Readers never get an incomplete file, and of concurrent writers the last one wins. After an
    error, existing files are unchanged and no new one remains.
    """

    def __init__(self) -> None:
        self._folders = contextlib.ExitStack()
        #: The beginning of the error message, the complete file and its target.
        self._complete: list[tuple[str, Path, Path]] = []

    def __enter__(self) -> Replacement:
        return self

    def __exit__(self, error: Any, *_: Any) -> None:
        with self._folders:
            if error is None:
                self._replace()

    @contextlib.contextmanager
    def part(self, failure: str, file: Path) -> Iterator[Path]:
        """Context manager: yield the path of a new file, which is complete at the end of the block.

        Parameters
        ----------
        failure : str
            Beginning of the error message, in this block and when the file is replaced.
        file : Path
            The file to replace. If it is a symbolic link, its target is replaced.
        """
        target = through_links(file)
        with failing(failure):
            part = self.folder(target.parent) / target.name
            yield part
        self.add(failure, part, target)

    def folder(self, parent: Path) -> Path:
        """An empty temporary folder in `parent`, for files that `add` gets."""
        return self._folders.enter_context(work_folder(parent))

    def add(self, failure: str, part: Path, target: Path) -> None:
        """Let a complete file of a folder replace `target` at the end; `failure` as in `part`."""
        with failing(failure), part.open("rb") as stream:
            os.fsync(stream.fileno())
        self._complete.append((failure, part, target))

    def _replace(self) -> None:
        with contextlib.ExitStack() as undo:
            for number, (failure, part, target) in enumerate(self._complete):
                with failing(failure):
                    with contextlib.suppress(OSError):  # there is no previous file
                        shutil.copymode(target, part)
                    if len(self._complete) > 1:
                        undo.callback(_restore, _kept(target, number, part.parent), target)
                    os.replace(part, target)
            undo.pop_all()


def _kept(target: Path, number: int, folder: Path) -> Path | None:
    """The file at `target` under a second name, which is in a folder; None if there is no file."""
    if not os.path.lexists(target):
        return None
    previous = folder / f".previous-{number}"
    try:
        os.link(target, previous)
    except OSError:  # a file system without hard links
        shutil.copy2(target, previous, follow_symlinks=False)
    return previous


def _restore(previous: Path | None, target: Path) -> None:
    """Undo a replacement, or one that is about to happen."""
    with contextlib.suppress(OSError):  # another error is being raised
        if previous is None:
            target.unlink()
        else:
            os.replace(previous, target)


@contextlib.contextmanager
def replacing(failure: str, file: Path) -> Iterator[Path]:
    """Context manager: yield the path of a new file, which replaces `file` at the end.

    Parameters are those of `Replacement.part`.
    """
    with Replacement() as replacement, replacement.part(failure, file) as part:
        yield part


@contextlib.contextmanager
def failing(failure: str) -> Iterator[None]:
    """Context manager: errors of the file system get this message; their cause is the original."""
    try:
        yield
    except OSError as error:
        raise OSError(f"{failure}: {error.strerror or error}") from error


def through_links(path: str | os.PathLike[str]) -> Path:
    """The file that a path refers to, behind symbolic links."""
    return Path(os.path.realpath(path))


# ---- Temporary folders ---------------------------------------------------------------------------


@contextlib.contextmanager
def work_folder(parent: Path) -> Iterator[Path]:
    """Context manager: yield an empty folder in `parent`, which is removed at the end.

    It is removed as well if SIGTERM or SIGHUP ends the process, unless another thread than the main
    one writes. Folders of earlier processes, which could not remove them, are removed before.
    """
    _remove_abandoned(parent)
    with _cleanup_before_signals():
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            with _owned(folder):
                # Permissions of what is written there follow the umask.
                files = folder / "files"
                files.mkdir()
                yield files
        finally:
            _remove(folder)


def _remove(folder: Path) -> None:
    """Remove a temporary folder, its lock file last, so that a later process finds the rest."""
    shutil.rmtree(folder / "files", ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)


def _lock_file(folder: Path) -> Path:
    """The file whose lock shows that the owner of a folder lives.

    Its name has the running kernel, because locks on some network file systems are local to a host.
    """
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return folder / f"owner-{kernel}"


@contextlib.contextmanager
def _owned(folder: Path) -> Iterator[None]:
    """Context manager: lock a folder, if the file system can.

    The lock file gets its name when it is locked, so that its lock means what it says.
    """
    unlocked = folder / "owner"
    with unlocked.open("xb") as stream:
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unlocked.rename(_lock_file(folder))
        yield


def _remove_abandoned(parent: Path) -> None:
    """Remove the temporary folders whose owners have ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            with _lock_file(folder).open("r+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(folder)


@contextlib.contextmanager
def _cleanup_before_signals() -> Iterator[None]:
    """Context manager: SIGTERM and SIGHUP leave the block first, and then end the process.

    Nothing changes for signals that the program handles itself, and in other threads than the main
    one, which cannot handle signals.
    """
    is_main = threading.current_thread() is threading.main_thread()
    numbers = [n for n in _ENDING if is_main and signal.getsignal(n) == signal.SIG_DFL]
    process = os.getpid()
    received: list[int] = []

    def leave(number: int, _: Any) -> None:
        if os.getpid() != process:  # in a child
            _end(number)
        if not received:
            received.append(number)
            raise SystemExit(128 + number)

    try:
        for number in numbers:
            signal.signal(number, leave)
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
        if received:
            _end(received[0])


def _end(number: int) -> NoReturn:
    """End the process by a signal, as its default action does."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    raise AssertionError(f"signal {number} did not end the process")


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Context manager: lock a folder for one thread of one process, if the file system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # a folder that is writable, but not readable
        yield
        return
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
