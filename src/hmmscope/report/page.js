"use strict";
// Draws each figure over its picture. If anything fails, the picture stays.
const plots = JSON.parse(document.getElementById("plots").textContent);
const config = { displayModeBar: false, responsive: true, showTips: false };

// Text as it is, of text that was written for Plotly.
function plain(text) {
  const characters = { lt: "<", gt: ">", amp: "&", "#36": "$" };
  return text.replace(/&(lt|gt|amp|#36);/g, (_, name) => characters[name]);
}

// A button of the legend that hides a series and shows it again.
function legendButton(name, look, shown, toggle) {
  const button = document.createElement("button");
  const icon = document.getElementById("icon").content.firstElementChild.cloneNode(true);
  const [line, path] = icon.children;
  line.setAttribute("stroke", look.line.color);
  line.setAttribute("stroke-width", look.line.width);
  if (look.line.dash !== "solid") line.setAttribute("stroke-dasharray", look.line.dash.replaceAll("px", ""));
  path.setAttribute("d", look.path);
  path.setAttribute("fill", look.line.color);
  const text = document.createElement("span");
  text.textContent = plain(name);
  button.type = "button";
  button.setAttribute("aria-pressed", String(shown));
  button.append(icon, text);
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(now));
    toggle(now);
  });
  return button;
}

// A curve and, under it, its band.
function traces(curve, name, look, explorer) {
  const few = curve.x.length <= 40;
  const line = {
    type: "scatter",
    mode: (look.marker && few) || curve.x.length === 1 ? "lines+markers" : "lines",
    name,
    x: curve.x,
    y: curve.y,
    line: look.line,
    marker: { symbol: look.marker || "circle", size: 6, color: look.line.color },
    hovertemplate: "%{y:.4~g}",
  };
  if (!curve.low) return [line];
  const floor = explorer.floor === null ? -Infinity : explorer.floor;
  const clip = (values) => values.map((value) => Math.max(floor, value));
  line.customdata = curve.low.map((low, i) => [low, curve.high[i]]);
  line.hovertemplate = "%{y:.4~g}  [%{customdata[0]:.4~g}, %{customdata[1]:.4~g}]";
  const band = {
    type: "scatter",
    mode: "lines",
    name,
    x: [...curve.x, ...[...curve.x].reverse()],
    y: [...clip(curve.high), ...clip(curve.low).reverse()],
    fill: "toself",
    fillcolor: look.band,
    line: { width: 0 },
    hoverinfo: "skip",
  };
  return [band, line];
}

// The curves that the lists choose. What is hidden in the legend stays hidden, by name.
function explore(panel, plot) {
  const explorer = plot.explorer;
  const box = panel.closest("[data-explorer]");
  const lists = [...box.querySelectorAll("select")];
  const hidden = new Set();
  let shown = [];
  const draw = () => {
    const seen = shown.filter(({ name }) => !hidden.has(name)).sort((a, b) => a.look.level - b.look.level);
    const drawn = seen.map(({ curve, name, look }) => traces(curve, name, look, explorer));
    for (const axis of [plot.layout.xaxis, plot.layout.yaxis]) {
      axis.autorange = true;
      delete axis.range;
    }
    const bands = drawn.flatMap((pair) => pair.slice(0, -1));
    return Plotly.react(panel, [...bands, ...drawn.map((pair) => pair.at(-1))], plot.layout, config);
  };
  const choose = () => {
    const chosen = lists.map((list) => (list.value === "" ? null : Number(list.value)));
    const view = explorer.views[chosen.reduce((sum, value, i) => sum + (value === null ? 2 ** i : 0), 0)];
    const fits = explorer.curves
      .map((curve, i) => ({ curve, name: view.names[view.of[i]], look: explorer.looks[view.looks[view.of[i]]] }))
      .filter(({ curve }) => curve.values.every((own, i) => [own, chosen[i]].includes(null) || own === chosen[i]));
    const left = [...explorer.most];
    shown = fits.filter(({ curve }) => left[Number(curve.reference)]-- > 0);
    const buttons = shown.map(({ name, look }) =>
      legendButton(name, look, !hidden.has(name), (now) => {
        hidden[now ? "delete" : "add"](name);
        draw();
      }),
    );
    box.querySelector("[data-legend]").replaceChildren(...buttons);
    const more = `${shown.length} of ${fits.length} curves are shown; choose a value in a list to see the others.`;
    const text = fits.length ? (shown.length < fits.length ? more : "") : "There is no curve for this choice.";
    box.querySelector("[data-shown]").textContent = text;
    return draw();
  };
  for (const list of lists) list.addEventListener("change", choose);
  return choose();
}

for (const figure of document.querySelectorAll("figure[data-plots]")) {
  const panels = [...figure.querySelectorAll("[data-plot]")];
  figure.classList.add("live");
  Promise.all(
    panels.map((panel) => {
      const plot = plots[Number(panel.dataset.plot)];
      return plot.explorer ? explore(panel, plot) : Plotly.newPlot(panel, plot.data, plot.layout, config);
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
