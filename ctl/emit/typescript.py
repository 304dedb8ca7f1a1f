"""Writes typed TypeScript functions that call tools with a client of the official SDK."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import indent
from typing import ClassVar

from ctl.emit.types import Language, Member, TypedTool, quoted

_HEADER = """\
/* eslint-disable */
/**
 * Typed functions for tools. Written by `mcpctl emit-types --typescript`: write it again instead of changing.
 *
 *     await time__get_current_time(client, { timezone: "UTC" });
 *
 * The client is connected to mcpd's /mcp (or to a profile) or to `mcpctl bridge`. A function whose tool
 * declares the members of its structured content returns that, another one the result. Both throw if the
 * tool failed.
 */

import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import type { RequestOptions } from "@modelcontextprotocol/sdk/shared/protocol.js";
import type { CallToolResult } from "@modelcontextprotocol/sdk/types.js";

async function call(client: Client, name: string, args: object, options?: RequestOptions) {
  const params = { name, arguments: { ...args } };
  const result = (await client.callTool(params, undefined, options)) as CallToolResult;
  if (!result.isError) return result;
  const texts = result.content.map((block) => (block.type === "text" ? block.text : `[${block.type}]`));
  throw new Error(`${name}: ${texts.join("\\n")}`, { cause: result });
}

async function data(client: Client, name: string, args: object, options?: RequestOptions): Promise<unknown> {
  const { structuredContent } = await call(client, name, args, options);
  if (structuredContent === undefined) throw new Error(`${name}: the result has no structured content`);
  return structuredContent;
}
"""


class TypeScript(Language):
    unknown = "unknown"
    scalars: ClassVar = {kind: kind for kind in ("null", "boolean", "number", "string")} | {
        "integer": "number"
    }
    reserved = frozenset(
        {"Array", "CallToolResult", "Client", "Error", "Promise", "Record", "RequestOptions", "call", "data"}
    )

    def enumeration(self, values: Sequence[object]) -> str:
        return " | ".join(dict.fromkeys(map(quoted, values)))

    def array(self, item: str) -> str:
        return f"Array<{item}>"

    def map(self, value: str) -> str:
        return f"Record<string, {value}>"

    def declare_object(self, name: str, members: Sequence[Member], text: str) -> None:
        body = "".join(
            indent(f"{_comment(each.text)}{_key(each.name)}{'?:'[each.is_required :]} {each.type};\n", "  ")
            for each in members
        )
        self.declarations.append(f"{_comment(text)}export interface {name} {{\n{body}}}\n")

    def declare_function(self, tool: TypedTool) -> None:
        arguments = f"{tool.arguments}{' = {}' if tool.may_omit_arguments else ''}"
        called = f"(client, {quoted(tool.public_name)}, args, options)"
        call = f"call{called}" if tool.result is None else f"(await data{called}) as {tool.result}"
        self.declarations.append(
            f"{_comment(tool.text)}export async function {tool.function}(\n"
            f"  client: Client,\n  args: {arguments},\n  options?: RequestOptions,\n"
            f"): Promise<{tool.result or 'CallToolResult'}> {{\n  return {call};\n}}\n"
        )

    def file(self) -> str:
        return "\n".join([_HEADER, *self.declarations])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else quoted(name)


def _comment(text: str) -> str:
    if not text:
        return ""
    safe = text.replace("*/", "*\\/")
    return f"/** {safe} */\n" if "\n" not in safe else f"/**\n{indent(safe, ' * ', lambda line: True)}\n */\n"
