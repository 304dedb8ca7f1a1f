// Logging in to a server: the button, the link to the authorization server, and the progress.

import { say } from "./actions.js";
import { button, clean, make, withCode } from "./dom.js";
import { line } from "./state.js";

const logins = new Map(); // name → { step, url, issuer, redirect_uri, attempt, error }

/** What the header depends on. */
export const loginKey = (name) => logins.get(name) ?? null;

/** Begin a login, and follow it to its end. `redraw` is called after every step. */
async function logIn(name, redraw) {
  const set = (login) => {
    if (login) logins.set(name, login);
    else logins.delete(name);
    redraw();
  };
  set({ step: "begin" });
  try {
    const offer = await line.get("mcpd/login/begin", { server: name });
    set({ step: "wait", ...offer });
    await line.get("mcpd/login/wait", { attempt: offer.attempt });
    set(null);
    say(`${name}: logged in`);
  } catch (error) {
    set({ step: "failed", error: error.message });
  }
}

const cancel = (name) => line.get("mcpd/login/cancel", { attempt: logins.get(name).attempt }).catch(() => {});

export function loginButton(name, redraw) {
  const step = logins.get(name)?.step;
  return button("Log in", () => logIn(name, redraw), { id: "log-in", disabled: step === "begin" || step === "wait" });
}

/** The link and the progress; null if no login is in progress. mcpd opens no window: the person follows the link. */
export function loginPanel(name) {
  const login = logins.get(name);
  if (!login) return null;
  if (login.step === "begin") return make("p", { className: "panel login", role: "status" }, "Preparing the login");
  if (login.step === "failed") return make("div", { className: "trouble panel", role: "status" }, make("p", {}, "Not logged in: ", make("bdi", {}, ...withCode(login.error))));
  if (!/^https?:\/\//.test(login.url)) return make("p", { className: "trouble panel" }, "The login URL is not an HTTP URL.");
  return make("div", { className: "panel login", id: "login", role: "status" },
    make("p", {}, make("a", { href: login.url, target: "_blank", rel: "noopener noreferrer", id: "login-link" }, "Continue to ", make("bdi", {}, clean(login.issuer)))),
    make("p", { className: "dim" }, "Waiting for you to finish there. The browser then returns to ", make("code", {}, clean(login.redirect_uri)), ", which must lead to the machine that mcpd runs on. ",
      button("Cancel", () => cancel(name), { className: "small", id: "cancel-login" })));
}
