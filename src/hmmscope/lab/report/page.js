"use strict";

/** A figure: its legend, its lists and sliders, its panels with one hover for all that share an axis, its downloads. */
class FigureView {
  static HEIGHT = { 1: 330, 2: 290, 3: 240, 4: 230, 5: 200 };
  static MOST_TOLD = 9; // series whose values are told at once

  constructor(host, data) {
    this.data = data;
    this.hidden = new Set();
    this.panels = data.panels.map((panel) => ({ panel, shown: null, drawn: null }));
    let colours = "";
    data.panels.forEach((panel, i) => {
      colours = data.colours[i] || colours;
      if (panel.kind === "cloud") panel.colours = colours;
    });
    host.append(this.#legend(data.looks, host), this.#grid());
    host.querySelector("[data-download]")?.remove();
    host.append(this.#downloads());
    const changed = () => this.panels.some((view) => Math.round(view.plot.clientWidth) !== view.width);
    new ResizeObserver(() => requestAnimationFrame(() => changed() && this.draw())).observe(host);
    new MutationObserver(() => this.draw()).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  }

  draw() {
    for (const view of this.panels) {
      const [width, height] = [Math.round(view.plot.clientWidth), Math.round(view.plot.clientHeight)];
      view.width = width;
      if (!width) continue;
      view.drawn = Charts.draw(view.svg, width, height, view.panel, this.#series(view));
      view.tip.hidden = true;
    }
    this.legend?.replaceChildren(...this.#buttons(this.data.looks));
    for (const view of this.panels.filter(({ legend }) => legend)) {
      view.legend.replaceChildren(...this.#buttons([...new Map(view.shown.map(({ look }) => [look.name, look])).values()]));
    }
  }

  /** Show what all panels know of this key of a panel; null hides it. */
  point(from, key) {
    for (const view of this.panels) {
      const same = view === from || view.drawn?.kind === from.drawn.kind;
      const told = same ? view.drawn?.tell(key) : view.drawn?.tell(null);
      view.tip.hidden = !told || !told.rows.length;
      if (view.tip.hidden) continue;
      const rows = told.rows.slice(0, FigureView.MOST_TOLD).map(({ name, color, value, interval }) =>
        Charts.node("div", {}, Charts.node("i", { style: `background:${color || "transparent"}` }), Charts.node("span", {}, name),
          Charts.node("b", {}, value), Charts.node("small", {}, interval)));
      view.tip.replaceChildren(Charts.node("strong", {}, told.head), ...rows);
      const right = told.at > view.plot.clientWidth / 2;
      view.tip.style.left = right ? "auto" : `${told.at + 12}px`;
      view.tip.style.right = right ? `${view.plot.clientWidth - told.at + 12}px` : "auto";
    }
    this.key = key;
  }

  #grid() {
    return Charts.node("div", { class: "panels" }, ...this.panels.map((view) => {
      const { panel } = view;
      view.svg = Charts.node("svg:svg", {
        tabindex: 0, role: "group", "aria-roledescription": "chart",
        "aria-label": [panel.title, panel.y_label, panel.x_label && `by ${panel.x_label}`].filter(Boolean).join(", "),
        pointermove: (event) => this.#hover(view, event), pointerdown: (event) => this.#hover(view, event),
        pointerleave: () => this.point(view, null), blur: () => this.point(view, null),
        keydown: (event) => this.#step(view, event),
      });
      view.tip = Charts.node("div", { class: "tip", role: "status", hidden: true });
      const size = panel.kind === "cloud" ? "aspect-ratio: 1" : `height: ${FigureView.HEIGHT[this.data.columns]}px`;
      view.plot = Charts.node("div", { class: "plot", style: size }, view.svg, view.tip);
      const box = Charts.node("div", {});
      if (panel.title) box.append(Charts.node("p", { class: "panel" }, panel.title));
      if (panel.kind === "cloud" && panel.options.length > 1) {
        const set = (value) => ((panel.frame = value), this.draw());
        box.append(Charts.node("div", { class: "choices" }, this.#slider(panel, set)));
      }
      if (panel.kind === "explorer") box.append(...this.#choices(view));
      box.append(view.plot);
      return box;
    }));
  }

  #hover(view, event) {
    const box = view.svg.getBoundingClientRect();
    this.point(view, view.drawn.find(event.clientX - box.left, event.clientY - box.top));
  }

  #step(view, event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity, Escape: 0 }[event.key];
    const { keys } = view.drawn;
    if (step === undefined || !keys.length) return;
    event.preventDefault();
    const at = keys.indexOf(this.key);
    this.point(view, step === 0 ? null : keys[Math.min(Math.max(at < 0 ? 0 : at + step, 0), keys.length - 1)]);
  }

  /** The series of a panel that are not hidden, with their looks. */
  #series(view) {
    const { panel } = view;
    if (panel.kind === "explorer") view.shown = this.#chosen(view);
    else view.shown = (panel.series ?? []).map((one) => ({ ...one, look: this.data.looks[one.look] }));
    return view.shown.filter(({ look }) => !this.hidden.has(look.name));
  }

  #legend(looks, host) {
    if (!looks.length) return "";
    this.legend = Charts.node("div", { class: "legend", role: "group", "aria-label": "Series; press one to hide or show it" });
    host.append(this.legend);
    return this.legend;
  }

  #buttons(looks) {
    return looks.map((look) => {
      const icon = Charts.node("svg:svg", { width: 26, height: 12, viewBox: "0 0 26 12", "aria-hidden": true });
      if (this.data.bars && !look.mark) icon.append(Charts.node("svg:rect", { x: 4, y: 1, width: 18, height: 10, fill: Charts.themed(look.color) }));
      else icon.append(Charts.node("svg:line", { x1: 0, x2: 26, y1: 6, y2: 6, ...Charts.stroke(look) }), look.path ? Charts.marker(look, 13, 6) : "");
      return Charts.node("button", {
        type: "button", "aria-pressed": String(!this.hidden.has(look.name)),
        click: (event) => {
          this.hidden[this.hidden.has(look.name) ? "delete" : "add"](look.name);
          const place = [...event.currentTarget.parentNode.children].indexOf(event.currentTarget);
          const group = event.currentTarget.parentNode;
          this.draw();
          group.children[place].focus();
        },
      }, icon, Charts.node("span", {}, look.name));
    });
  }

  /** Lists, and sliders where values are numbers, which choose the curves of an explorer. */
  #choices(view) {
    view.chosen = view.panel.choices.map(({ first }) => first);
    view.legend = Charts.node("div", { class: "legend", role: "group", "aria-label": "Series; press one to hide or show it" });
    view.note = Charts.node("p", { class: "note", "aria-live": "polite" });
    const controls = view.panel.choices.map((choice, i) => {
      const set = (value) => ((view.chosen[i] = value), this.draw());
      return choice.slider ? this.#slider(choice, set) : this.#list(choice, set);
    });
    return [Charts.node("div", { class: "choices" }, ...controls), view.legend, view.note];
  }

  #list(choice, set) {
    const options = choice.options.map((name, n) => Charts.node("option", { value: n, selected: n === choice.first }, name));
    const all = Charts.node("option", { value: "", selected: choice.first === null }, `all ${choice.options.length}`);
    const list = Charts.node("select", { change: () => set(list.value === "" ? null : Number(list.value)) },
      ...(choice.options.length > 1 ? [all] : []), ...options);
    return Charts.node("label", {}, `${choice.name} `, list);
  }

  #slider(choice, set) {
    const value = Charts.node("output", {}, choice.options[choice.first]);
    const slider = Charts.node("input", {
      type: "range", min: 0, max: choice.options.length - 1, step: 1, value: choice.first, "aria-valuetext": choice.options[choice.first],
      input: () => {
        const text = choice.options[Number(slider.value)];
        value.textContent = text;
        slider.setAttribute("aria-valuetext", text);
        set(Number(slider.value));
      },
    });
    return Charts.node("label", {}, `${choice.name} `, slider, value);
  }

  /** The curves that the lists choose, no more than there is room for; values of one choice take turns. */
  #chosen({ panel, chosen, note }) {
    const view = panel.views[chosen.reduce((sum, value, i) => sum + (value === null ? 2 ** i : 0), 0)];
    const fits = panel.curves
      .map((curve, i) => ({ ...curve, look: view.looks[view.of[i]] }))
      .filter(({ values }) => values.every((own, i) => [own, chosen[i]].includes(null) || own === chosen[i]));
    const open = chosen[panel.overlay] === null ? panel.overlay : chosen.indexOf(null);
    const left = [...panel.most];
    const seen = new Map();
    const turns = fits.map((curve, i) => {
      const key = `${curve.reference} ${open < 0 ? i : curve.values[open]}`;
      seen.set(key, (seen.get(key) ?? -1) + 1);
      return { i, curve, turn: open < 0 ? 0 : seen.get(key) };
    });
    const some = turns.sort((a, b) => a.turn - b.turn || a.i - b.i).filter(({ curve }) => left[Number(curve.reference)]-- > 0);
    const more = `${some.length} of ${fits.length} curves are shown; choose a value in a list to see the others.`;
    note.textContent = fits.length ? (some.length < fits.length ? more : "") : "There is no curve for this choice.";
    return some.sort((a, b) => a.i - b.i).map(({ curve }) => curve);
  }

  #downloads() {
    const { name } = this.data;
    return Charts.node("p", { class: "downloads" },
      Charts.node("button", { type: "button", click: () => save(`${name}.svg`, "image/svg+xml", this.#svg()) }, "SVG"),
      Charts.node("button", { type: "button", click: () => save(`${name}.csv`, "text/csv", this.#csv()) }, "CSV"));
  }

  /** All panels beside one another, as one picture with their titles and the legend. */
  #svg() {
    const whole = Charts.node("svg:svg", { xmlns: "http://www.w3.org/2000/svg", "font-family": "Helvetica, Arial, sans-serif" });
    const { columns } = this.data;
    const [width, height] = [this.panels[0].plot.clientWidth, this.panels[0].plot.clientHeight + 24];
    this.panels.forEach(({ panel, svg }, i) => {
      const [left, top] = [(i % columns) * (width + 16), Math.floor(i / columns) * height];
      const copy = Charts.node("svg:g", { transform: `translate(${left} ${top + 20})` }, ...[...svg.childNodes].map((one) => one.cloneNode(true)));
      whole.append(Charts.node("svg:text", { x: left + 8, y: top + 13, "font-size": 13, "font-weight": "bold", fill: Charts.token("--ink") }, panel.title), copy);
    });
    const looks = [...new Map(this.panels.flatMap(({ shown }) => shown ?? []).map(({ look }) => [look.name, look])).values()];
    const rows = Math.ceil(this.panels.length / columns);
    looks.forEach((look, i) => {
      const y = rows * height + 16 + 18 * i;
      const line = this.data.bars && !look.mark
        ? Charts.node("svg:rect", { x: 8, y: y - 9, width: 26, height: 10, fill: Charts.themed(look.color) })
        : Charts.node("svg:line", { x1: 8, x2: 34, y1: y - 4, y2: y - 4, ...Charts.stroke(look) });
      whole.append(line, Charts.node("svg:text", { x: 42, y, "font-size": 12, fill: Charts.token("--ink") }, look.name));
    });
    const size = [columns * (width + 16), rows * height + 18 * looks.length + 24];
    whole.setAttribute("viewBox", `0 0 ${size.join(" ")}`);
    whole.prepend(Charts.node("svg:rect", { width: size[0], height: size[1], fill: Charts.token("--page") }));
    return new XMLSerializer().serializeToString(whole);
  }

  #csv() {
    const rows = [["panel", "series", "x", "y", "low", "high"]];
    for (const { panel, shown } of this.panels) {
      if (panel.kind === "heatmap") panel.z.forEach((line, j) => line.forEach((value, i) => rows.push([panel.title, panel.y[j], panel.x[i], value])));
      else if (panel.kind === "cloud") Charts.unpackPlaces(panel.places[panel.frame]).forEach(([x, y], i) => rows.push([panel.title, i, x, y]));
      else shown.forEach((one) => one.y.forEach((y, i) =>
        rows.push([panel.title, one.look.name, panel.categories ? panel.categories[i] : one.x[i], y, one.low?.[i], one.high?.[i]])));
    }
    return csvText(rows);
  }
}

/** Comma-separated values; text that a spreadsheet would take for a formula is kept text. */
function csvText(rows) {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    const text = typeof value === "string" && /^[=+@\t\r-]/.test(value) && !Number.isFinite(Number(value)) ? `'${value}` : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return `${rows.map((row) => row.map(cell).join(",")).join("\r\n")}\r\n`;
}

function save(name, type, content) {
  const link = Charts.node("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const figures = JSON.parse(document.getElementById("figures").textContent);
const views = [...document.querySelectorAll("[data-figure]")].map((host) => new FigureView(host, figures[Number(host.dataset.figure)]));
views[0]?.draw(); // the lead figure is seen before the others are drawn
requestAnimationFrame(() => setTimeout(() => views.slice(1).forEach((view) => view.draw())));

for (const button of document.querySelectorAll("[data-table]")) {
  button.addEventListener("click", () => {
    const table = button.closest("details").querySelector("table");
    const rows = [...table.rows].map((row) => [...row.cells].map((cell) => cell.dataset.full ?? cell.textContent));
    save(`${button.dataset.table}.csv`, "text/csv", csvText(rows));
  });
}
