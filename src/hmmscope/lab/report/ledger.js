for (const button of document.querySelectorAll("nav button")) button.onclick = () => {
  const shown = button.getAttribute("aria-pressed") !== "true";
  button.setAttribute("aria-pressed", shown);
  for (const one of document.querySelectorAll("article")) if (one.dataset.answer === button.dataset.answer) one.hidden = !shown;
};
