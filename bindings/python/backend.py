"""Builds the wheel: maturin, and the program `uzswap` beside the module.

maturin packs either a module or programs. So the program is built here, put where maturin finds the wheel's scripts, and
the rest is maturin's. Both are built with the same flags and features, so that cargo compiles what they share once.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import get_requires_for_build_wheel  # noqa: F401  (what pip calls)

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PACKAGING = ROOT / "crates" / "program" / "packaging"


class UnsupportedOperation(Exception):
    """What PEP 517 has a backend raise."""


def scripts_folder():
    """Where maturin finds the wheel's scripts, which it wants to be there even to say what the wheel is."""
    scripts = HERE / "uzswap.data" / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    return scripts


def build_program():
    """Builds the program and puts it among the wheel's scripts."""
    command = [PACKAGING / "cargo", "build", "--package", "uzswap", "--bin", "uzswap", "--release"]
    command += ["--features", "zstd,deflate,iaa", "--message-format", "json-render-diagnostics"]
    output = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    made = [message["executable"] for message in messages if message.get("executable")]
    shutil.copy2(made[-1], scripts_folder() / "uzswap")


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    scripts_folder()
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build_program()
    # maturin runs the cargo that this names.
    os.environ["CARGO"] = str(PACKAGING / "cargo")
    # The wheel's name says which C library it needs at least; not that of the metadata before it.
    os.environ.setdefault("MATURIN_PEP517_ARGS", "--compatibility pypi")
    # The time of the wheel's files: of the last change, unless the builder names another.
    if "SOURCE_DATE_EPOCH" not in os.environ:
        log = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        os.environ["SOURCE_DATE_EPOCH"] = log.stdout.strip() or "315532800"
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise UnsupportedOperation("a wheel is built in a clone of the repository, which has all that the program is made of")
