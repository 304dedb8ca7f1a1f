// Preloaded into mcpc and the bridge that it starts (`drivers.Mcpc`), so that they work where the processor is shared.
"use strict";

const fs = require("node:fs");
const net = require("node:net");

// mcpc gives its bridge five seconds to be there. Its clock goes at a twentieth of the speed.
const now = Date.now;
const began = now();
Date.now = () => began + (now() - began) / 20;

// mcpc connects as soon as the socket file is there, which is before the bridge listens. The file gets its name later.
const listen = net.Server.prototype.listen;
net.Server.prototype.listen = function (path, ...rest) {
  if (typeof path !== "string") return listen.call(this, path, ...rest);
  this.prependOnceListener("listening", () => fs.renameSync(`${path}~`, path));
  return listen.call(this, `${path}~`, ...rest);
};
