// What is looked at, as an address: `#/SERVER/TAB/TOOL`. A code to come in with has no slash.

const decode = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

/** `{ server, tab, tool }`, each may be missing; null where the address is a code. */
export function route() {
  if (location.hash && !location.hash.startsWith("#/")) return null;
  const [server, tab, tool] = location.hash.slice(2).split("/").map(decode);
  return { server, tab, tool };
}

/** Say in the address what is looked at. `step`: the browser's way back leads to what was before. */
export function goTo(parts, step = false) {
  const hash = `#/${parts.filter(Boolean).map(encodeURIComponent).join("/")}`;
  if (hash !== location.hash) history[step ? "pushState" : "replaceState"](null, "", hash);
}
