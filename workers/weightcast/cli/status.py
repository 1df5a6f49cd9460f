"""`weightcast status`: per model, what should be served and what each replica serves."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from weightcast.cli import options, output
from weightcast.cli.watch import watch as watch_loop
from weightcast.client import ControlPlane
from weightcast.contract.names import Role, WorkerState
from weightcast.contract.workers import Worker


def status(
    server: options.Server = None,
    token: options.Token = None,
    model: options.Model = None,
    as_json: options.AsJson = False,
    watch: options.Watch = False,
    interval: options.Interval = 1.0,
) -> None:
    """Show what each model should serve, and what each of its replicas does serve."""
    with options.connect(server, token) as control:
        if not watch:
            document = look(control, model)
            if as_json:
                output.emit(document)
            else:
                output.stdout().print(render(document))
        elif as_json:
            _watch_json(control, model, interval)
        else:
            _watch_live(control, model, interval)


def look(control: ControlPlane, model: str | None) -> dict[str, Any]:
    """The status of the server's models as one JSON-able document."""
    workers = list(options.every(lambda cursor: control.workers(model, limit=1000, cursor=cursor)))
    names = options.chosen(control, model)
    return {"server": control.url, "models": [_look_at(control, name, workers) for name in names]}


def _look_at(control: ControlPlane, model: str, workers: list[Worker]) -> dict[str, Any]:
    target = control.target(model)
    newest = control.versions(model, limit=1).items
    replicas = options.every(lambda cursor: control.replicas(model, limit=1000, cursor=cursor))
    counts = Counter((worker.role, worker.state) for worker in workers if worker.model == model)
    return {
        "model": model,
        "target": target.model_dump(mode="json"),
        "newest": newest[0].model_dump(mode="json", exclude={"holdings"}) if newest else None,
        "replicas": [replica.model_dump(mode="json") for replica in replicas],
        "workers": {role.value: {state.value: counts[role, state] for state in WorkerState} for role in Role},
    }


def render(document: dict[str, Any]) -> RenderableType:
    """The document as tables."""
    if not document["models"]:
        return Text(f"{document['server']}: no model yet; one appears when its first worker registers.")
    return Group(*(part for entry in document["models"] for part in _render_model(entry)))


def _render_model(entry: dict[str, Any]) -> list[RenderableType]:
    target, newest, workers = entry["target"], entry["newest"], entry["workers"]
    head = Text.assemble((entry["model"], "bold"), "  target ")
    if target["version"] is None:
        head.append("none", style="yellow")
    else:
        head.append(f"version {target['version']}", style="green")
        head.append(f" (step {target['step']}, ready {output.ago(target['ready_at'])} ago)")
    for role, states in workers.items():
        head.append(f"  {role}s {states['live']}")
        if states["lost"]:
            head.append(f" (+{states['lost']} lost)", style="red")
    parts: list[RenderableType] = [head]
    if newest and newest["version"] != target["version"]:
        why = f": {newest['failure']} {newest['reason'] or ''}".rstrip() if newest["state"] == "failed" else ""
        style = output.STATE_STYLES.get(newest["state"], "")
        parts.append(Text(f"  newest version {newest['version']} is {newest['state']}{why}", style=style))
    rows = [
        (
            replica["replica"],
            replica["serving_version"],
            replica["lag"],
            replica["staged_version"],
            f"{replica['live_ranks']}/{replica['world_size']}",
            "tainted" if replica["tainted"] else replica["servable"],
            output.seconds(replica["pause_seconds"]),
        )
        for replica in entry["replicas"]
    ]
    if rows:
        columns = ("replica", "serves", "behind", "staged", "ranks", "servable", "last pause")
        parts.append(output.table("", columns, rows))
    parts.append(Text(""))
    return parts


def _watch_json(control: ControlPlane, model: str | None, interval: float) -> None:
    shown: list[object] = [None]

    def show(document: object) -> None:
        if document != shown[0]:
            shown[0] = document
            output.emit(document)

    watch_loop(lambda: look(control, model), show, lambda why: show({"server": control.url, "error": why}), interval)


def _watch_live(control: ControlPlane, model: str | None, interval: float) -> None:
    last: list[RenderableType] = [Text("")]
    with Live(console=output.stdout(), auto_refresh=False, transient=False) as live:

        def show(document: dict[str, Any]) -> None:
            last[0] = render(document)
            live.update(last[0], refresh=True)

        def lost(why: str) -> None:
            live.update(Group(last[0], Text(why, style="red")), refresh=True)

        watch_loop(lambda: look(control, model), show, lost, interval)
