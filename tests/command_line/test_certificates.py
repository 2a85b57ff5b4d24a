"""`fedstack certs` and what it makes; that the certificates work is in the tests of servers with TLS."""

import os
import shlex
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography import x509

from fedstack.__main__ import main
from fedstack.command_line.certificates import CertificateFiles, make_test_certificates
from fedstack.errors import InvalidValueError


def alternatives(path: Path) -> list[str]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def test_the_command_prints_the_files_and_says_how_to_use_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", str(tmp_path / "new" / "folder")]) == 0
    out, err = capsys.readouterr()
    files = CertificateFiles.in_folder(tmp_path / "new" / "folder")
    assert out.split() == [str(path) for path in files]
    assert f"--tls-cert {files.server_cert} --tls-key {files.server_key}" in err
    assert all(path.read_bytes().startswith(b"-----BEGIN ") for path in files)


def test_a_server_certificate_is_for_this_machine_or_for_the_names_given(tmp_path: Path) -> None:
    main(["certs", str(tmp_path / "here")])
    main(["certs", str(tmp_path / "there"), "--name", "worker.example", "--name", "10.0.0.7", "--name", "fd00::1"])
    assert alternatives(tmp_path / "here" / "server.pem") == ["localhost", "127.0.0.1", "::1"]
    assert alternatives(tmp_path / "there" / "server.pem") == ["worker.example", "10.0.0.7", "fd00::1"]


def test_certificates_are_valid_for_as_long_as_asked(tmp_path: Path) -> None:
    files = make_test_certificates(tmp_path, days=3)
    for path in (files.ca, files.server_cert, files.client_cert):
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        assert (certificate.not_valid_after_utc - certificate.not_valid_before_utc).days == 3


@pytest.mark.skipif(sys.platform == "win32", reason="has other ways to say who may read a file")
def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    (tmp_path / "server.key").touch(mode=0o644)
    files = make_test_certificates(tmp_path, force=True)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in files}
    assert (modes["server.key"], modes["client.key"]) == (0o600, 0o600)


def test_nothing_is_written_over_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = make_test_certificates(tmp_path)
    before = [path.read_bytes() for path in files]
    assert main(["certs", str(tmp_path)]) == 1
    assert "found ca.pem, server.pem" in capsys.readouterr().err
    assert [path.read_bytes() for path in files] == before
    assert main(["certs", str(tmp_path), "--force"]) == 0
    assert all(path.read_bytes() != old for path, old in zip(files, before))


@pytest.mark.skipif(os.name != "posix", reason="has other quotes")
def test_the_commands_that_follow_can_be_pasted_whatever_the_folder_is_called(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my certs"
    assert main(["certs", str(folder), "--name", "::1", "--days", "1"]) == 0
    said, serve, check = capsys.readouterr().err.splitlines()
    assert "Valid for 1 day," in said
    assert shlex.split(serve)[3::2] == [str(folder / name) for name in ("server.pem", "server.key", "ca.pem")]
    assert shlex.split(check)[2] == "[::1]:8000"
    assert shlex.split(check)[4::2] == [str(folder / name) for name in ("ca.pem", "client.pem", "client.key")]


@pytest.mark.parametrize("days", ["0", "-1", "3651", "9" * 30, "1.5"])
def test_a_time_that_is_no_time_or_too_long_is_wrong_usage(
    days: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["certs", str(tmp_path / "new"), f"--days={days}"]) == 2
    assert f"expected a whole number from 1 to 3650, found '{days}'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("days", [-1, 3651, 10**30])
def test_certificates_are_made_for_ten_years_at_most(days: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=f"Expected days to be between 0 and 3650, found {days}"):
        make_test_certificates(tmp_path, days=days)


def test_a_file_in_the_way_is_one_line_that_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder" / "ca.pem" / "more").mkdir(parents=True)
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "ca.pem").symlink_to(tmp_path / "nothing")
    for arguments, expected in (
        (["file"], f"{tmp_path / 'file'}: "),
        (["file/inside"], f"{tmp_path / 'file' / 'inside'}: "),
        (["folder", "--force"], f"({tmp_path / 'folder' / 'ca.pem'})"),
        (["link"], "found ca.pem in"),
    ):
        assert main(["certs", str(tmp_path / arguments[0]), *arguments[1:]]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(
            ("fedstack certs: error: Cannot write certificates to ", "fedstack certs: error: Expected a f")
        )
        assert expected in err
        assert "Errno" not in err
        assert err.count("\n") == 1


@pytest.mark.skipif(sys.platform == "win32", reason="has other ways to say who may write where")
def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in _unwritable_folders(tmp_path):
        assert main(["certs", str(folder)]) == 1
        assert "Cannot write certificates to " in capsys.readouterr().err


def _unwritable_folders(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid():
        for mode in (0o500, 0o000):
            (tmp_path / f"{mode}").mkdir(mode=mode)
            yield tmp_path / f"{mode}"
    else:  # whom only the kernel keeps out, or a file
        (tmp_path / "file").touch()
        yield Path("/sys/kernel/certs") if sys.platform == "linux" else tmp_path / "file" / "certs"


@pytest.mark.parametrize("name", ["worker.example", "*.example", "a_b", "büro.example", "xn--bro-hoa.example", "w-1"])
def test_a_host_name_is_taken(name: str, tmp_path: Path) -> None:
    files = make_test_certificates(tmp_path, [name])
    assert alternatives(files.server_cert) == [name.encode("idna").decode()]


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        "a b",
        "a.b ",
        "a" * 64 + ".example",
        "..",
        "-a",
        "a:80",
        "[::1]",
        "https://a",
        "a\nb",
        "a." * 127 + "bc",
    ],
)
def test_a_name_that_no_host_can_have_is_refused_before_anything_is_written(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="host name or an IP address"):
        make_test_certificates(tmp_path / "new", [name])
    assert not (tmp_path / "new").exists()


def test_without_the_extra_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "fedstack.command_line.certificates")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert main(["certs", str(tmp_path)]) == 1
    assert 'pip install "fedstack[certs]"' in capsys.readouterr().err
