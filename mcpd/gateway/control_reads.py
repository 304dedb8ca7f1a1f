"""Prompts and resources for the control API, with suggestions for unknown names."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Raw

from mcpd.model.errors import InvalidArguments, Problem, UnknownPrompt, UnknownResource, UpstreamRefused
from mcpd.model.text import shorten
from mcpd.operations import Operations
from mcpd.supervision.catalog import Item, did_you_mean
from mcpd.supervision.managed_server import ManagedServer
from mcpd.wire import message as wire
from mcpd.wire.message import BadFrame

_RESOURCE_NOT_FOUND = (-32002, -32602)
"""Error codes for an unknown resource, until 2025-11-25 and since."""


async def get_prompt(core: Operations, name: str, prompt: str, arguments: Mapping[str, str]) -> Raw:
    """Send prompts/get. Raises UnknownPrompt, InvalidArguments, and as `Operations.send_request`."""
    server = core.supervisor.get(name)
    upstream = await core.wait_ready(server)
    known = _find_prompt(server, prompt)
    if known is None and server.lists_expired:  # the prompt may exist by now
        await server.refresh_expired_lists()
        known = _find_prompt(server, prompt)
    catalog = server.catalog
    if known is not None:
        _check_prompt_arguments(server, known, arguments)
    elif upstream.has("prompts") and catalog is not None and (catalog.prompts or not catalog.warnings):
        raise UnknownPrompt(
            f"{name} has no prompt {shorten(prompt, 80)!r}; "
            + (did_you_mean(prompt, catalog.prompts) or f"`mcpctl prompts {name}` lists them"),
            server=name,
        )
    return await core.send_request(name, "prompts", "prompts/get", {"name": prompt, "arguments": arguments})


async def read_resource(core: Operations, name: str, uri: str) -> Raw:
    """Return the result of resources/read. Raises UnknownResource, and as `Operations.send_request`.

    The server is always asked, because resources need not be listed to exist.
    """
    try:
        return await core.send_request(name, "resources", "resources/read", {"uri": uri})
    except UpstreamRefused as error:
        catalog = core.supervisor.get(name).catalog
        listed = () if catalog is None else catalog.resources
        if error.upstream_code not in _RESOURCE_NOT_FOUND or any(item.name == uri for item in listed):
            raise
        advice = did_you_mean(uri, listed) or f"`mcpctl resources {name}` lists its resources"
        raise UnknownResource(f"{error.message}; {advice}", uri, server=name) from None


def _find_prompt(server: ManagedServer, prompt: str) -> Item | None:
    catalog = server.catalog
    return None if catalog is None else next((item for item in catalog.prompts if item.name == prompt), None)


def _check_prompt_arguments(server: ManagedServer, prompt: Item, arguments: Mapping[str, str]) -> None:
    """Raise InvalidArguments if required arguments are missing."""
    missing = [name for name in required_arguments(prompt) if name not in arguments]
    if missing:
        words = "is a required argument"
        problems = [Problem("$.arguments", f'"{shorten(name, 80)}" {words}') for name in missing]
        raise InvalidArguments(
            f"{prompt.name}@{server.spec.name} was not requested: arguments are missing: "
            + "; ".join(map(str, problems)),
            problems,
            server=server.spec.name,
        )


def required_arguments(prompt: Item) -> list[str]:
    """Return the names of the prompt's required arguments, as far as its declaration is readable."""
    try:
        declared = wire.mapping(Raw(prompt.raw)).get("arguments")
    except BadFrame:
        return []
    every = declared if isinstance(declared, list) else []
    return [
        argument["name"]
        for argument in every
        if isinstance(argument, dict)
        and argument.get("required") is True
        and isinstance(argument.get("name"), str)
    ]
