// mcpc gives the bridge that it starts five seconds by the clock to be there, which is not always enough where the
// processor is shared. Preloaded (`drivers.Mcpc`), this has its clock go at a twentieth of the speed.
"use strict";

const now = Date.now;
const began = now();
Date.now = () => began + (now() - began) / 20;
