"""The reference pages of commands, settings and REST, generated from the code.

`python -m plevel.document cli|rest|settings` prints one; MkDocs loads this file as a hook and adds all
of them to the site.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any


def cli() -> str:
    """The reference of commands with their options."""
    import typer

    from plevel.cli.main import app

    parts = [
        "# Commands",
        "The output of `plevel COMMAND --help`. [The command line](../cli.md) explains their use and the exit codes.",
    ]
    parts += _commands(typer.main.get_command(app), "plevel")
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        full = f"{path} {name}"
        if hasattr(command, "commands"):
            yield f"## {full}"
            yield command.help or ""
            yield from _commands(command, full)
            continue
        yield f"{'##' if path == 'plevel' else '###'} {full}"
        text, _, example = inspect.cleandoc(command.help or "").partition("Example: ")
        yield text.strip()
        if example:
            yield f"```text\n{example.strip()}\n```"
        arguments = [p for p in command.params if not p.opts[0].startswith("-")]
        options = [p for p in command.params if p.opts[0].startswith("-")]
        usage = [full, *(f"[{_shown(a)}]" if not a.required else _shown(a) for a in arguments)]
        yield f"```text\n{' '.join([*usage, '[OPTIONS]' if options else '']).strip()}\n```"
        rows = [(f"`{_shown(a)}`", a.help or "", "") for a in arguments]
        rows += [(_option(o), o.help or "", _default(o)) for o in options]
        if rows:
            yield _table(("option", "", "default"), rows)


def _shown(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _option(option: Any) -> str:
    names = ", ".join(f"`{n}`" for n in sorted(option.opts, key=len, reverse=True))
    return names if option.is_flag else f"{names} `{_shown(option)}`"


def _default(option: Any) -> str:
    if option.required:
        return "required"
    empty = option.is_flag or option.default is None or option.default == ""
    return "" if empty else f"`{option.default}`"


def settings() -> str:
    """The reference of the service's settings, from their declarations."""
    from service.settings import Settings

    fields = Settings.model_fields
    rows = []
    for name, field in fields.items():
        kind = inspect.formatannotation(field.annotation).replace("pathlib.", "")
        default = "" if field.default is None or field.default_factory else f"`{field.default}`"
        if name == "database":
            default = "a file in the user's data directory"
        rows.append((f"`PLEVEL_{name.upper()}`", (field.description or "").replace("\n", " "), kind, default))
    text = inspect.getdoc(Settings) or ""
    return (
        "# Settings of the service\n\n"
        "Set in the environment; `plevel serve` has options for the first ones, which take precedence. "
        f"{text}\n\n{_table(('variable', '', 'type', 'default'), rows)}\n\n"
        "`PLEVEL_URL` and `PLEVEL_DATABASE` also set [the database of "
        "commands](../cli.md#the-database-of-a-command).\n"
    )


def rest() -> str:
    """The reference of endpoints and types, from the OpenAPI document."""
    from service.app import create_app
    from service.settings import Settings

    document = create_app(Settings(database="sqlite://", tune=False)).openapi()
    parts = [
        "# REST",
        (
            "A service has the same as OpenAPI at `/openapi.json`, rendered at `/docs`. Errors are problem "
            "documents (RFC 9457): `type`, `title`, `status`, `detail` and, if fields are at fault, `errors`. "
            "Bodies are JSON; each is shown as an example, which `curl URL/v1/select -d '{…}'` sends. Once the "
            "service has tokens, a request carries one as the header `Authorization: Bearer …`."
        ),
    ]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault(operation["tags"][0], []).append(
                _endpoint(f"{method.upper()} {path}", operation)
            )
    for tag, endpoints in by_tag.items():
        parts += [f"## {tag.capitalize()}", *endpoints]
    parts.append("## Types")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts += [f"### {name} {{ #{name} }}", schema.get("description", "")]
        required = set(schema.get("required", ()))
        rows = [
            (f"`{field}`", _kind(of), "required" if field in required else _json(of.get("default")))
            for field, of in schema.get("properties", {}).items()
        ]
        parts.append(_table(("field", "type", "default"), rows) if rows else f"{_kind(schema)}.")
    return "\n\n".join(p for p in parts if p) + "\n"


def _endpoint(title: str, operation: Mapping[str, Any]) -> str:
    said = dict.fromkeys(s.removesuffix(".") for s in (operation["summary"], operation.get("description", "")) if s)
    lines = [f"### `{title}`", ". ".join(said) + "."]
    body = operation.get("requestBody", {}).get("content", {})
    answers = [
        (code, _kind(_first(answer.get("content", {})).get("schema", {})))
        for code, answer in operation["responses"].items()
    ]
    facts = [f"takes {_kind(content.get('schema', {})) or media}" for media, content in body.items()]
    facts += [f"{code}: {kind or 'nothing'}" for code, kind in answers if code < "400"]
    facts += [f"errors {', '.join(code for code, _ in answers if code >= '400')}"] if answers[-1][0] >= "400" else []
    lines.append(" · ".join(facts))
    lines += [f"```json\n{json.dumps(c['example'], indent=2)}\n```" for c in body.values() if "example" in c]
    rows = [
        (f"`{p['name']}`", _kind(p["schema"]),
         "required" if p["required"] else _json(p["schema"].get("default")))
        for p in operation.get("parameters", ())
    ]
    if rows:
        lines.append(_table(("parameter", "type", "default"), rows))
    return "\n\n".join(lines)


def _first(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(content.values()), {})


def _kind(schema: Mapping[str, Any]) -> str:
    """A schema in a few words, with links to the named types."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(s) for s in schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{v}`" for v in schema["enum"])
    kind = schema.get("type", "")
    if kind == "array":
        return f"array of {_kind(schema.get('items', {})) or 'anything'}"
    if isinstance(kind, list):
        return " or ".join(kind)
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    bounds = f" from {low}" if low is not None else ""
    return f"{kind}{bounds}{f' to {high}' if high is not None else ''}"


def _json(value: Any) -> str:
    from strategy.record import encode

    return "" if value is None or value in ("", [], {}) else f"`{encode(value).decode()}`"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


PAGES: dict[str, Callable[[], str]] = {"cli": cli, "rest": rest, "settings": settings}


def on_files(files: Any, config: Any) -> Any:
    """MkDocs' hook that adds the reference pages to the site."""
    from mkdocs.structure.files import File

    for name, write in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    return files


if __name__ == "__main__":
    print(PAGES[sys.argv[1]](), end="")
