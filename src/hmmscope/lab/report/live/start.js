"use strict";

let explorer;
{
  const data = JSON.parse(document.getElementById("live-data").textContent);
  const start = () => (explorer = new Explorer(document.querySelector("[data-live]"), data));
  // in a page of figures the lead figure is seen first
  if (document.getElementById("figures")) requestAnimationFrame(() => setTimeout(start));
  else start();
}
