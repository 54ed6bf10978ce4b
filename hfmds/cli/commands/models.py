"""`hfmds model ...`: show and save the models of a run."""

from __future__ import annotations

import enum
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from hfmds.cli.connections import DEFAULT_COORDINATOR, CoordinatorOption, ask_coordinator
from hfmds.cli.downloads import download_model, replacing
from hfmds.cli.json_values import to_json
from hfmds.cli.tables.runs import models_table
from hfmds.cli.terminal import output
from hfmds.domain.runs import ModelVersion, Round, Run
from hfmds.errors import ConfigurationError, NotFound
from hfmds.wire.clients.admin_client import AdminClient

app = typer.Typer(help="Show and save the models of a run.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run.")]

_LAST, _BEST = "last", "best"


class ModelFormat(enum.StrEnum):
    """The form of a saved model."""

    SAFETENSORS = "safetensors"
    ONNX = "onnx"


@app.command("list")
def list_models(
    run_id: RunId,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Show the models of a run: the best one, and those that the coordinator keeps."""
    run, rounds = ask_coordinator(coordinator, lambda client: _ask_all(client, run_id))
    if as_json:
        fields = ("number", "accuracy", "weights", "model_dropped")
        models = [{name: getattr(done, name) for name in fields} for done in rounds]
        typer.echo(to_json({"best_round": run.best_round, "models": models}))
    elif rounds:
        output().print(models_table(run, rounds))
    else:
        output().print(f"run {run_id} has no model yet", markup=False)


@app.command()
def export(
    run_id: RunId,
    which: Annotated[
        str, typer.Option("--round", metavar="N|best|last", help="Round of the model.")
    ] = _LAST,
    form: Annotated[
        ModelFormat,
        typer.Option(
            "--format",
            help="safetensors: the weights. onnx: the network, from pixels in [0, 1] to logits.",
        ),
    ] = ModelFormat.SAFETENSORS,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write.",
            show_default="RUN-roundN.FORMAT",
        ),
    ] = None,
    coordinator: CoordinatorOption = DEFAULT_COORDINATOR,
) -> None:
    """Save the model of a round, after a check of its digest.

    An ONNX file takes images as float32 [n, channels, height, width] in [0, 1], normalises them
    itself and has the names of the classes in its metadata. The command compares it with the
    network in torch before it saves it.

    In safetensors, tensors with a slash in their name do not belong to the classifier: generator/
    and fedgen/ of FedGen, gan/ of FedGAN.
    """

    async def download(client: AdminClient) -> tuple[Round, Path]:
        run, rounds = await _ask_all(client, run_id)
        done = find_round(run, rounds, which)
        path = file or Path(f"{run_id}-round{done.number}.{form}")
        if form is ModelFormat.SAFETENSORS:
            await download_model(client, run_id, done, path)
            return done, path
        with tempfile.TemporaryDirectory(prefix="hfmds-") as folder:
            weights = Path(folder, "model.safetensors")
            await download_model(client, run_id, done, weights)
            _save_as_onnx(run, done, weights, path)
        return done, path

    done, path = ask_coordinator(coordinator, download)
    output().print(
        f"{path}: model of run {run_id} after round {done.number}, sha256 {done.weights.sha256}"
        + (" as safetensors" if form is ModelFormat.ONNX else ""),
        markup=False,
        soft_wrap=True,
    )


async def find_version(client: AdminClient, text: str) -> ModelVersion:
    """Return the model that RUN, RUN:ROUND, RUN:best or RUN:last names."""
    run_id, _, which = text.partition(":")
    run, rounds = await _ask_all(client, run_id)
    return ModelVersion(run_id, find_round(run, rounds, which or _LAST).number)


def find_round(run: Run, rounds: tuple[Round, ...], which: str) -> Round:
    """Return the round that a number, "best" or "last" names; its model must still be kept."""
    if which == _BEST and not run.best_round:
        raise NotFound(
            f"run {run.run_id} has no best round: none was evaluated; name a round, or last"
        )
    if which not in (_BEST, _LAST) and not which.isdecimal():
        raise ConfigurationError(f"{which!r} is not a round; write a number, {_BEST} or {_LAST}")
    last = rounds[-1].number if rounds else 0
    named = {_BEST: run.best_round, _LAST: last or 1}
    number = named[which] if which in named else int(which)
    for done in rounds:
        if done.number == number:
            return _require_kept(run, rounds, done)
    progress = f"its last completed round is {last}" if last else "it has none yet"
    raise NotFound(f"run {run.run_id} has not completed round {number}; {progress}")


def _require_kept(run: Run, rounds: tuple[Round, ...], done: Round) -> Round:
    if done.model_dropped:
        kept = ", ".join(str(other.number) for other in rounds if not other.model_dropped)
        raise NotFound(
            f"the model of run {run.run_id} after round {done.number} is no longer kept; "
            f"choose one of the rounds {kept}"
        )
    return done


def _save_as_onnx(run: Run, done: Round, weights: Path, path: Path) -> None:
    # Imported late: torch takes seconds, and not every operator has it.
    try:
        from hfmds.algorithm.models.onnx_model import save_onnx
    except ImportError as error:
        raise ConfigurationError(
            f"--format onnx needs {error.name}, which is not installed; install hfmds-fl[torch]"
        ) from error
    from hfmds.wire.tensors import StoredWeights

    origin = f"run {run.run_id}, round {done.number}, sha256 {done.weights.sha256}"
    with replacing(path) as draft:
        save_onnx(run.spec.recipe, StoredWeights(weights, "the model"), draft, origin)


async def _ask_all(client: AdminClient, run_id: str) -> tuple[Run, tuple[Round, ...]]:
    """Return the run and its rounds, with the run's best round among them."""
    rounds = await client.list_rounds(run_id)
    run = await client.get_run(run_id)
    newer = run.completed_rounds > (rounds[-1].number if rounds else 0)
    return run, await client.list_rounds(run_id) if newer else rounds
