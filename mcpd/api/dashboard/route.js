// The selection as an address: `#/SERVER/TAB/TOOL`, or `#//PAGE`. A login code has no slash.

const decode = (part) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

/** `{ server, tab, tool }` or `{ page }`, each optional; null if the address is a login code. */
export function route() {
  if (location.hash && !location.hash.startsWith("#/")) return null;
  const [server, tab, tool] = location.hash.slice(2).split("/").map(decode);
  return !server && tab ? { page: tab } : { server, tab, tool };
}

/** Update the address. `step`: add a history entry. */
export const goTo = (parts, step = false) => put(`#/${parts.filter(Boolean).map(encodeURIComponent).join("/")}`, step);

/** The address of another page than that of the servers. */
export const goToPage = (name) => put(`#//${name}`, true);

function put(hash, step) {
  if (hash !== location.hash) history[step ? "pushState" : "replaceState"](null, "", hash);
}
