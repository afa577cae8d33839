"use strict";
// Draws each figure over its picture. If anything fails, the picture stays.
const plots = JSON.parse(document.getElementById("plots").textContent);
const config = { displayModeBar: false, responsive: true, showTips: false };
const leastDecades = 1.5;

// Under a finger, moving over a plot moves the page.
if (matchMedia("(pointer: coarse)").matches) for (const plot of plots) plot.layout.dragmode = false;

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

// Where an axis ends at first; null where it follows its values.
function ends(plot) {
  return ["xaxis", "yaxis"].map((name) => plot.layout[name].range?.slice() ?? null);
}

// Powers of ten alone as ticks of a logarithmic axis, as long as some are in sight.
function fitTicks(panel) {
  const changes = {};
  for (const name of ["xaxis", "yaxis"]) {
    const { type, tickmode, range } = panel.layout[name];
    if (type !== "log" || tickmode === "array") continue;
    const wanted = Math.abs(range[1] - range[0]) < leastDecades ? null : 1;
    if ((panel.layout[name].dtick ?? null) !== wanted) changes[`${name}.dtick`] = wanted;
  }
  return Object.keys(changes).length ? Plotly.relayout(panel, changes) : null;
}

// A button that appears where the reader has zoomed, and undoes it.
function resetButton(panel, first) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "reset";
  button.textContent = "reset";
  button.hidden = true;
  button.addEventListener("click", () => {
    const changes = {};
    ["xaxis", "yaxis"].forEach((name, i) => {
      if (first[i]) changes[`${name}.range`] = first[i].slice();
      else changes[`${name}.autorange`] = true;
    });
    Plotly.relayout(panel, changes).then(() => (button.hidden = true));
  });
  panel.append(button);
  panel.on("plotly_relayout", (event) => {
    const keys = Object.keys(event);
    if (keys.some((key) => key.includes("axis.range"))) button.hidden = false;
    else if (keys.some((key) => key.includes("axis.autorange"))) button.hidden = true;
    fitTicks(panel);
  });
  return button;
}

// A curve and, under it, its band.
function traces(curve, name, look, explorer, unified) {
  const line = {
    type: "scatter",
    mode: look.marker || curve.x.length === 1 ? "lines+markers" : "lines",
    name,
    x: curve.x,
    y: curve.y,
    line: look.line,
    marker: { symbol: look.marker || "circle", size: 6, color: look.line.color, maxdisplayed: explorer.markers },
    hovertemplate: explorer.hover[`${Number(unified)}${Number(Boolean(curve.low))}`],
  };
  if (!curve.low) return [line];
  const floor = explorer.floor === null ? -Infinity : explorer.floor;
  const clip = (values) => values.map((value) => Math.max(floor, value));
  line.customdata = curve.low.map((low, i) => [low, curve.high[i]]);
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

// No more curves than there is room for; the values of one choice take turns, as in `explorer.selected`.
function some(fits, explorer, chosen) {
  const open = chosen[explorer.overlay] === null ? explorer.overlay : chosen.indexOf(null);
  const left = [...explorer.most];
  const seen = new Map();
  const turns = fits.map((one, i) => {
    const key = `${one.curve.reference} ${open < 0 ? i : one.curve.values[open]}`;
    seen.set(key, (seen.get(key) ?? -1) + 1);
    return { i, one, turn: open < 0 ? 0 : seen.get(key) };
  });
  return turns
    .sort((a, b) => a.turn - b.turn || a.i - b.i)
    .filter(({ one }) => left[Number(one.curve.reference)]-- > 0)
    .sort((a, b) => a.i - b.i)
    .map(({ one }) => one);
}

// The curves that the lists choose. What is hidden in the legend stays hidden, by name.
function explore(panel, plot) {
  const explorer = plot.explorer;
  const box = panel.closest("[data-explorer]");
  const lists = [...box.querySelectorAll("select")];
  const hidden = new Set();
  let shown = [];
  let reset = null;
  const draw = async () => {
    const seen = shown.filter(({ name }) => !hidden.has(name)).sort((a, b) => a.look.level - b.look.level);
    const unified = seen.length <= explorer.unified;
    const drawn = seen.map(({ curve, name, look }) => traces(curve, name, look, explorer, unified));
    for (const axis of [plot.layout.xaxis, plot.layout.yaxis]) {
      axis.autorange = true;
      delete axis.range;
    }
    plot.layout.hovermode = unified ? "x unified" : "closest";
    const bands = drawn.flatMap((pair) => pair.slice(0, -1));
    await Plotly.react(panel, [...bands, ...drawn.map((pair) => pair.at(-1))], plot.layout, config);
    reset ??= resetButton(panel, [null, null]);
    reset.hidden = true;
    await fitTicks(panel);
  };
  const choose = () => {
    const chosen = lists.map((list) => (list.value === "" ? null : Number(list.value)));
    const view = explorer.views[chosen.reduce((sum, value, i) => sum + (value === null ? 2 ** i : 0), 0)];
    const fits = explorer.curves
      .map((curve, i) => ({ curve, name: view.names[view.of[i]], look: explorer.looks[view.looks[view.of[i]]] }))
      .filter(({ curve }) => curve.values.every((own, i) => [own, chosen[i]].includes(null) || own === chosen[i]));
    shown = some(fits, explorer, chosen);
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

// The panel as it is drawn.
async function show(panel, plot) {
  const first = ends(plot);
  await Plotly.newPlot(panel, plot.data, plot.layout, config);
  resetButton(panel, first);
  return fitTicks(panel);
}

for (const figure of document.querySelectorAll("figure[data-plots]")) {
  const panels = [...figure.querySelectorAll("[data-plot]")];
  figure.classList.add("live");
  Promise.all(
    panels.map((panel) => {
      const plot = plots[Number(panel.dataset.plot)];
      return plot.explorer ? explore(panel, plot) : show(panel, plot);
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
