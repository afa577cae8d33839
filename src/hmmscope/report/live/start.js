"use strict";

const explorer = new Explorer(document.querySelector("[data-live]"), JSON.parse(document.getElementById("live-data").textContent));
