"""`autofit completion`: prints a shell's completion script for autofit's options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a shell completion script.

    \b
    bash   eval "$(autofit completion bash)"                 in ~/.bashrc
    zsh    eval "$(autofit completion zsh)"                  in ~/.zshrc
    fish   autofit completion fish > ~/.config/fish/completions/autofit.fish
    """  # noqa: D301 - click looks for the character, and keeps these lines as they are
    completer = get_completion_class(shell)
    assert completer is not None, "the choices are shells that click knows"
    click.echo(completer(context.find_root().command, {}, "autofit", "_AUTOFIT_COMPLETE").source())
