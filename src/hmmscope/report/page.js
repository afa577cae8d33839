"use strict";
// Draws each figure over its picture. If anything fails, the picture stays.
const plots = JSON.parse(document.getElementById("plots").textContent);
for (const figure of document.querySelectorAll("figure[data-plots]")) {
  const config = { displayModeBar: false, responsive: true, showTips: false };
  const panels = [...figure.querySelectorAll("[data-plot]")];
  figure.classList.add("live");
  Promise.all(
    panels.map((panel) => {
      const plot = plots[Number(panel.dataset.plot)];
      return Plotly.newPlot(panel, plot.data, plot.layout, config);
    }),
  ).catch((error) => {
    figure.classList.remove("live");
    console.error(error);
  });
  for (const button of figure.querySelectorAll("button[data-series]")) {
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(shown));
      for (const panel of panels) {
        const traces = panel.data
          .map((trace, index) => (trace.legendgroup === button.dataset.series ? index : -1))
          .filter((index) => index >= 0);
        if (traces.length) Plotly.restyle(panel, { visible: shown }, traces);
      }
    });
  }
}
