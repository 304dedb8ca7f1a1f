"""Paths for any environment, and the paths that are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mcpd.files import paths
from mcpd.files.paths import UnusablePath

UID = os.getuid()


@pytest.fixture
def run_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory in place of /run/user."""
    directory = tmp_path / "user"
    directory.mkdir()
    monkeypatch.setattr(paths, "_RUNTIME_DIRECTORIES", str(directory))
    return directory


UNUSABLE = pytest.mark.parametrize("runtime", [None, "", "run/user/0", "/proc/no/such"])
"""It may be unset, empty, relative (ignored per the XDG specification) or impossible to create."""


@UNUSABLE
def test_without_a_usable_runtime_directory_the_socket_is_below_tmp(
    runtime: str | None, run_user: Path
) -> None:
    assert not any(run_user.iterdir())
    environ = {} if runtime is None else {"XDG_RUNTIME_DIR": runtime}
    assert paths.socket_path(environ) == f"/tmp/mcpd-{UID}/mcpd.sock"


@UNUSABLE
def test_runtime_directory_of_the_login_is_used_without_the_variable(
    runtime: str | None, run_user: Path
) -> None:
    """The MCP SDKs start servers, such as `mcpctl bridge`, without XDG_RUNTIME_DIR."""
    (run_user / str(UID)).mkdir()
    environ = {} if runtime is None else {"XDG_RUNTIME_DIR": runtime}
    assert paths.socket_path(environ) == f"{run_user}/{UID}/mcpd/mcpd.sock"


def test_runtime_directory_of_the_login_must_belong_to_the_user(run_user: Path) -> None:
    _needs_root()
    (run_user / str(UID)).mkdir()
    os.chown(run_user / str(UID), 4321, 4321)
    assert paths.socket_path({}) == f"/tmp/mcpd-{UID}/mcpd.sock"


def test_a_runtime_directory_of_another_user_is_passed_over(tmp_path: Path, run_user: Path) -> None:
    """`su` keeps $XDG_RUNTIME_DIR; a daemon of root must not use a user's directory."""
    _needs_root()
    os.chown(tmp_path, 4321, 4321)
    assert paths.socket_path({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"/tmp/mcpd-{UID}/mcpd.sock"


def test_a_socket_path_that_the_kernel_would_cut_is_refused_with_its_length() -> None:
    """The limit is 108 bytes (not characters) with the final NUL."""
    assert paths.socket_path({"MCPD_SOCKET": "/" + "a" * 106})
    with pytest.raises(UnusablePath, match=r"108 bytes long.*set MCPD_SOCKET"):
        paths.socket_path({"MCPD_SOCKET": "/" + "a" * 107})
    with pytest.raises(UnusablePath, match="set MCPD_SOCKET"):
        paths.socket_path({"MCPD_SOCKET": "/" + "ä" * 54})


def test_the_xdg_directories_follow_their_variables_unless_relative() -> None:
    """A relative value is invalid and ignored."""
    environ = {"HOME": "/home/ann", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "cache"}
    assert paths.state_dir(environ) == "/s/mcpd"
    assert paths.cache_dir(environ) == "/home/ann/.cache/mcpd"
    assert paths.config_dir(environ) == "/home/ann/.config/mcpd"


def test_user_without_a_database_entry_gets_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run under a uid without an entry in the user database."""
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert paths.state_dir({}) == f"/tmp/mcpd-{UID}/state"
    assert paths.config_dir({}) == f"/tmp/mcpd-{UID}/config"


def test_a_private_directory_is_made_0700_whatever_the_umask(tmp_path: Path) -> None:
    """Missing parents are created private as well."""
    old = os.umask(0)
    try:
        path = paths.private_directory(f"{tmp_path}/a/b")
    finally:
        os.umask(old)
    assert _mode(path) == 0o700


def test_private_directory_loses_its_public_permissions(tmp_path: Path) -> None:
    """`mkdir` with umask 022 creates mode 0755."""
    (tmp_path / "mcpd").mkdir(mode=0o755)
    assert _mode(paths.private_directory(f"{tmp_path}/mcpd")) == 0o700


def test_a_symbolic_link_a_file_and_a_shared_directory_are_refused(tmp_path: Path) -> None:
    """Other users could read or replace mcpd's files there."""
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    for name, why in [("link", "symbolic link"), ("file", "not a directory"), ("shared", "shared with")]:
        with pytest.raises(UnusablePath, match=why):
            paths.private_directory(f"{tmp_path}/{name}")
    assert _mode(f"{tmp_path}/shared") == 0o1777


def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    """The owner of a directory controls its content."""
    _needs_root()
    os.chown(tmp_path, 4321, 4321)
    with pytest.raises(UnusablePath, match="belongs to user 4321"):
        paths.private_directory(str(tmp_path))
    with pytest.raises(UnusablePath, match="belongs to user 4321"):
        paths.socket_directory(f"{tmp_path}/x.sock")


def test_advice_about_a_directory_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state of a user whose home has another place, and what `sudo mcpctl` leaves behind."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "data" / "mcpd").mkdir(parents=True)
    (tmp_path / "mcpd").symlink_to(tmp_path / "data" / "mcpd")
    with pytest.raises(UnusablePath, match=f"instead: set XDG_STATE_HOME to {tmp_path}/data$"):
        paths.private_directory(f"{tmp_path}/mcpd")
    _needs_root()
    (tmp_path / "mcpd").unlink()
    (tmp_path / "mcpd").mkdir()
    os.chown(tmp_path / "mcpd", 4321, 4321)
    with pytest.raises(UnusablePath, match=f"; sudo chown -R 0 {tmp_path}/mcpd, or set XDG_STATE_HOME to a"):
        paths.private_directory(f"{tmp_path}/mcpd")


def test_the_directory_of_a_chosen_socket_is_not_changed_but_must_be_safe(tmp_path: Path) -> None:
    """`MCPD_SOCKET=~/m.sock` must not make the home directory 0700."""
    tmp_path.chmod(0o755)
    assert paths.socket_directory(f"{tmp_path}/x.sock") == str(tmp_path)
    assert _mode(str(tmp_path)) == 0o755
    tmp_path.chmod(0o777)
    with pytest.raises(UnusablePath, match="other users can write"):
        paths.socket_directory(f"{tmp_path}/x.sock")


def _mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def _needs_root() -> None:
    if UID != 0:
        pytest.skip("only root can give a directory to another user")
