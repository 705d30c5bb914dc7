"""Builds the wheel: maturin, and the program `uzswap` beside the module.

maturin packs either a module or programs. So the program is built here, put where maturin finds the wheel's scripts, and
the rest is maturin's. `UZSWAP_PROFILE` names another profile of cargo's than `release` for both; `UZSWAP_PROGRAM` is the path of
a program that was built already; `UZSWAP_COMPATIBILITY` is for what machines the wheel is to be, in maturin's words (`pypi`,
`manylinux_2_34`), if not for this one alone.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import get_requires_for_build_wheel  # noqa: F401  (what pip calls)

HERE = Path(__file__).resolve().parent
PROFILE = os.environ.get("UZSWAP_PROFILE", "release")


class UnsupportedOperation(Exception):
    """What PEP 517 has a backend raise."""


def scripts_folder():
    """Where maturin finds the wheel's scripts, which it wants to be there even to say what the wheel is."""
    scripts = HERE / "uzswap.data" / "scripts"
    scripts.mkdir(parents=True, exist_ok=True)
    return scripts


def build_program():
    """Builds the program and puts it among the wheel's scripts."""
    scripts = scripts_folder()
    if "UZSWAP_PROGRAM" in os.environ:
        shutil.copy2(os.environ["UZSWAP_PROGRAM"], scripts / "uzswap")
        return
    command = ["cargo", "build", "--package", "uzswap", "--bin", "uzswap", "--profile", PROFILE]
    command += ["--message-format", "json-render-diagnostics"]
    output = subprocess.run(command, cwd=HERE.parent.parent, check=True, stdout=subprocess.PIPE, text=True).stdout
    messages = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    made = [message["executable"] for message in messages if message.get("executable")]
    shutil.copy2(made[-1], scripts / "uzswap")


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    scripts_folder()
    return maturin.prepare_metadata_for_build_wheel(metadata_directory, config_settings)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    build_program()
    # Not before: maturin takes these words for wheels, and not for their metadata.
    words = f"--profile {PROFILE} --compatibility {os.environ.get('UZSWAP_COMPATIBILITY', 'off')}"
    os.environ.setdefault("MATURIN_PEP517_ARGS", words)
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_sdist(sdist_directory, config_settings=None):
    raise UnsupportedOperation("a wheel is built in a clone of the repository, which has all that the program is made of")
