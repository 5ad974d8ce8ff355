"""Intel's offline compiler for its GPUs, from Debian's packages, unpacked into a private folder.

The packages come from the folder named by OCTET_DEBS if that is set; else from Debian, through
apt-get with a state of its own (no root, nothing installed), which checks Debian's signature. The
pinned versions are asked for in unstable, then in the snapshot of the day they were pinned; if
neither has them, what unstable has today is taken, and `versions` says so.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import CACHE, Missing, OfflineError

# Package, version, sha256 of the file. intel-ocloc needs a newer libc than Debian 12 has; it is
# started with the loader of the libc here.
PACKAGES = (
    (
        "intel-ocloc",
        "26.27.39122.14-1",
        "6157b864ac4ffa9ab7c9e099bd41713e4a9f051ec007262c11f8f95e328535f4",
    ),
    (
        "libigc2",
        "2.40.14-1",
        "5ccd335c0427ece223409aafa83e7fbf0980663015dd31cf0bbd4268bb7b4831",
    ),
    ("libc6", "2.43-7", "5c71715c51103beb4fbba9fe9f8dff604af6610dfa71c70bff342f54a7860803"),
    ("libgcc-s1", "16.2.0-4", "d251ea642c3795e8723ac2b9eeebe511467ca04590ba70f3d555a7616787d7e3"),
    ("libstdc++6", "16.2.0-4", "cef6654bba1daece0bc0dbe0e3f69fa5a26eb6ba139f3536e6f4806bd787f3e7"),
    (
        "zlib1g",
        "1:1.3.dfsg+really1.3.2-4",
        "8506ce550a81ac14b047608e0df121037d9cbb10c3cc28446f68cf8c1d9d31ce",
    ),
)
UNSTABLE = "http://deb.debian.org/debian"
SNAPSHOT = "http://snapshot.debian.org/archive/debian/20261130T000000Z"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _apt(state: Path, mirror: str, *arguments: str) -> None:
    """Runs apt-get with its state in `state`; raises CalledProcessError or TimeoutExpired."""
    for folder in ("lists/partial", "cache/archives/partial", "parts"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "sources.list").write_text(
        f"deb [signed-by={KEYRING} check-valid-until=no] {mirror} sid main\n"
    )
    config = state / "apt.conf"
    config.write_text(
        f'Dir::Etc::sourcelist "{state}/sources.list";\n'
        f'Dir::Etc::sourceparts "{state}/parts";\n'
        f'Dir::Etc::preferencesparts "{state}/parts";\n'
        f'Dir::State "{state}";\nDir::State::lists "{state}/lists";\n'
        f'Dir::State::status "{state}/status";\nDir::Cache "{state}/cache";\n'
        'APT::Architecture "amd64";\nAPT::Architectures "amd64";\n'
        'APT::Sandbox::User "";\nAcquire::Languages "none";\nAcquire::Retries "2";\n'
        'Acquire::http::Timeout "20";\n'
    )
    subprocess.run(
        ["apt-get", "-q", *arguments],
        cwd=state,
        env={**os.environ, "APT_CONFIG": str(config)},
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )


def _download(folder: Path) -> None:
    """The packages as .deb files in `folder`, by the first of the ways above that works."""
    pinned = [f"{name}={version}" for name, version, _ in PACKAGES]
    newest = [name for name, _, _ in PACKAGES]
    reason = ""
    with tempfile.TemporaryDirectory() as scratch:
        for i, (mirror, names) in enumerate(
            ((UNSTABLE, pinned), (SNAPSHOT, pinned), (UNSTABLE, newest))
        ):
            state = Path(scratch) / str(i)
            state.mkdir()
            try:
                _apt(state, mirror, "update", "--error-on=any")
                _apt(state, mirror, "download", *names)
            except (OSError, subprocess.SubprocessError) as error:
                lines = [x for x in (getattr(error, "stderr", "") or str(error)).splitlines() if x]
                reason = lines[-1] if lines else str(error)
                continue
            for deb in state.glob("*.deb"):
                if names is pinned and _sha256(deb) not in {p[2] for p in PACKAGES}:
                    raise OfflineError(f"{deb.name} from {mirror} is not the file that was pinned")
                shutil.move(deb, folder)
            return
    raise Missing(
        f"Debian's packages of ocloc cannot be had ({reason}); "
        "put them into a folder and name it in OCTET_DEBS"
    )


class Ocloc:
    """The offline compiler; `versions` is {package: version}."""

    def __init__(self, root: Path):
        """`root`: where the packages are unpacked."""
        self._lib = root / "usr/lib/x86_64-linux-gnu"
        programs = sorted((root / "usr/bin").glob("ocloc-*"))
        if not programs:
            raise OfflineError(f"{root} holds no ocloc; remove that folder and try again")
        self._program = programs[-1]
        lines = (root / "versions").read_text().splitlines()
        self.versions = dict(line.split(" ", 1) for line in lines)
        # What it compiles depends on these alone.
        self.key = "-".join(self.versions[p] for p in ("intel-ocloc", "libigc2"))

    def run(self, *arguments: str, dump: Path | None = None) -> str:
        """Runs it, with IGC's intermediate files left in `dump`; returns its output."""
        environment = dict(os.environ)
        if dump:
            dump.mkdir(parents=True, exist_ok=True)
            environment |= {"IGC_ShaderDumpEnable": "1", "IGC_DumpToCustomDir": str(dump)}
        loader = self._lib / "ld-linux-x86-64.so.2"
        done = subprocess.run(
            [loader, "--library-path", self._lib, self._program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        if done.returncode:
            raise OfflineError(
                f"ocloc {' '.join(arguments)}: {(done.stdout + done.stderr)[-2000:]}"
            )
        return done.stdout


def ocloc() -> Ocloc:
    """The compiler, fetched at first use and kept in the cache folder."""
    local = os.environ.get("OCTET_DEBS")
    debs = sorted(Path(local).glob("*.deb")) if local else []
    if local and not debs:
        raise Missing(f"OCTET_DEBS={local} holds no .deb file; unset it to fetch them from Debian")
    names = [x.name for x in debs] or [f"{n}_{v}" for n, v, _ in PACKAGES]
    root = CACHE / ("ocloc-" + hashlib.sha256("\n".join(names).encode()).hexdigest()[:16])
    if not (root / "versions").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            unpacked = Path(scratch) / "root"
            if not debs:
                _download(Path(scratch))
                debs = sorted(Path(scratch).glob("*.deb"))
            versions = []
            for deb in debs:
                subprocess.run(["dpkg", "-x", deb, unpacked], check=True)
                shown = ["dpkg-deb", "--show", "--showformat=${Package} ${Version}\n", deb]
                versions.append(
                    subprocess.run(shown, check=True, capture_output=True, text=True).stdout
                )
            (unpacked / "versions").write_text("".join(versions))
            try:
                unpacked.rename(root)
            except OSError:  # another process was faster
                if not (root / "versions").exists():
                    raise
    return Ocloc(root)
