"""Commands run as a user runs them: what they print where they succeed, and the one line where they refuse."""

import json
from typing import Any

from typer.testing import CliRunner

from gem_ood.cli import app


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def run_json(*arguments: Any) -> dict[str, Any]:
    output = run(*arguments, "--json")
    assert output.count("\n") == 1
    return dict(json.loads(output))


def fail(*arguments: Any) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("gem-ood: error: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    return result.stderr
