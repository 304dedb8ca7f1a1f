// The selection as an address: `#/SERVER/TAB/TOOL`. A login code has no slash.

const decode = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

/** `{ server, tab, tool }`, each optional; null if the address is a login code. */
export function route() {
  if (location.hash && !location.hash.startsWith("#/")) return null;
  const [server, tab, tool] = location.hash.slice(2).split("/").map(decode);
  return { server, tab, tool };
}

/** Update the address. `step`: add a history entry. */
export function goTo(parts, step = false) {
  const hash = `#/${parts.filter(Boolean).map(encodeURIComponent).join("/")}`;
  if (hash !== location.hash) history[step ? "pushState" : "replaceState"](null, "", hash);
}
