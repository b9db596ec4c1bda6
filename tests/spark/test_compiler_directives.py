"""Java's second compiler leaves alone what only starts a query."""

from __future__ import annotations

import subprocess

from flowcore.installation.archive import driver_options
from flowcore.installation.java import find_java


def test_java_takes_the_compiler_directives_silently() -> None:
    """The SQL parser is excluded; Java names the classes as they are in files."""
    options = [option for option in driver_options() if "Shared" not in option and "share" not in option]

    def run(*more: str) -> str:
        command = [find_java().executable, *options, *more, "-version"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    silent, shown = run(), run("-XX:+CompilerDirectivesPrint", "-XX:+DisplayVMOutput")
    assert not silent

    given, _, default = shown.partition("Directive: (default)")
    assert "org/antlr/v4/*.*" in given
    assert "Exclude:true" in given
    assert "Exclude:true" not in default
