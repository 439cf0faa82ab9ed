"""Which file systems a state directory may lie on: told by real tables of mounts (F75)."""

from pathlib import Path

import pytest

from gpurun.filesystem import by_program, by_table, is_network, kind_of

TABLE = r"""
21 26 0:20 / /sys rw,nosuid,nodev,noexec,relatime shared:7 - sysfs sysfs rw
26 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
30 26 259:3 / /home rw,relatime shared:12 - xfs /dev/nvme0n1p3 rw
41 30 0:51 / /home/ada rw,relatime shared:44 - nfs4 files:/export/ada rw,vers=4.2,hard
42 41 259:4 / /home/ada/scratch rw,relatime - btrfs /dev/nvme1n1 rw
43 26 0:60 / /home/ada\040b/my\134disk rw,nosuid master:3 propagate_from:2 - fuse.sshfs h:/x rw
44 26 0:61 / /mnt/auto rw,relatime - autofs systemd-1 rw,fd=30
45 44 0:62 / /mnt/auto rw,relatime - cifs //server/share rw,vers=3.1.1
46 26 0:63 / /mnt/dav rw,nosuid - fuse https://dav.example.com/ada rw,user_id=0
47 26 0:64 / /mnt/crypt rw,nosuid - fuse.gocryptfs /home/.crypt rw
"""
MACOS = """\
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)
//ada@server/share on /Volumes/share (smbfs, nodev, nosuid, mounted by ada)
files:/export on /Volumes/my disk (1) (nfs)
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text(TABLE)
    return file


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/home", "xfs"),
        ("/home/adam/state", "xfs"),
        ("/home/ada", "nfs4"),
        ("/home/ada/.local/state/gpurun", "nfs4"),
        ("/home/ada/scratch/gpurun", "btrfs"),
        ("/home/ada b/my\\disk/gpurun", "fuse.sshfs"),
        ("/mnt/auto/x", "cifs"),
        ("/mnt/dav/x", "fuse.davfs"),
        ("/mnt/crypt", "fuse.gocryptfs"),
    ],
)
def test_the_deepest_mount_above_a_path_counts_and_the_last_of_two(
    table: Path, path: str, kind: str
) -> None:
    assert kind_of(Path(path), table) == kind


def test_a_link_lies_where_it_points_to(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
        f"2 1 0:9 / {tmp_path.resolve()}/there rw - nfs server:/there rw\n"
    )
    assert kind_of(tmp_path / "link" / "state", table) == "nfs"


@pytest.mark.parametrize("text", ["", "garbage", "1 2 3 - ", "a b c d\n - - -\n", "\udcff - \0"])
def test_a_table_that_says_nothing_forbids_nothing(tmp_path: Path, text: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(text, errors="surrogateescape")
    assert not is_network(kind_of(Path("/home"), table))


def test_the_table_of_this_machine_can_be_read(tmp_path: Path) -> None:
    assert kind_of(tmp_path) or not Path("/proc/self/mountinfo").exists()


def test_what_macos_says_of_its_mounts_is_understood() -> None:
    assert by_program(MACOS) == [
        (Path("/"), "apfs"),
        (Path("/System/Volumes/Data"), "apfs"),
        (Path("/Volumes/share"), "smbfs"),
        (Path("/Volumes/my disk (1)"), "nfs"),
    ]
    assert by_program("") == by_table("") == []


@pytest.mark.parametrize(
    "kind",
    [
        *("nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph"),
        *("lustre", "beegfs", "gpfs", "glusterfs", "davfs", "webdav"),
        *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs"),
        *("fuse.davfs", "fuse.mount-s3", "macfuse.sshfs"),
    ],
)
def test_these_are_of_another_machine(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize(
    "kind",
    [
        *("", "ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "apfs", "hfs", "fuseblk", "f2fs"),
        *("fuse", "fuse.gocryptfs", "fuse.encfs", "fuse.fuse-overlayfs", "fuse.mergerfs"),
    ],
)
def test_these_are_not(kind: str) -> None:
    assert not is_network(kind)
