"use strict";

/** Light or dark: as the reader's system has it, until the button is pressed. */
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const button = document.querySelector(".theme");
  const set = (theme) => {
    document.documentElement.dataset.theme = theme;
    button.textContent = theme === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", `${button.textContent.toLowerCase()} colours`);
  };
  set(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => set(dark.matches ? "dark" : "light"));
  let before = null;
  window.addEventListener("beforeprint", () => ((before = document.documentElement.dataset.theme), set("light")));
  window.addEventListener("afterprint", () => before && set(before));
  button.addEventListener("click", () => set(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
})();
