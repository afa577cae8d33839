"use strict";

/** The page of one model: maps of beliefs with a switch, bars, an intervention that was computed, attention. */
{
  const data = JSON.parse(document.getElementById("look-data").textContent);
  const host = document.querySelector("[data-look]");
  const part = (name) => host.querySelector(`[data-part="${name}"]`);
  const bytes = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  const places = (text) => new Uint16Array(bytes(text).buffer);
  const redraws = [];

  class Maps {
    constructor({ exact, layers, colours, triangle, best }) {
      this.colours = bytes(colours);
      this.triangle = triangle;
      this.when = "after";
      this.panels = [
        this.#panel("exact", "by Bayes' rule", () => this.exact),
        ...layers.map((layer) => {
          const points = { after: places(layer.after), before: layer.before && places(layer.before) };
          const name = layer.name === best ? `${layer.name}, best layer` : layer.name;
          return this.#panel(name, () => this.#caption(layer), () => points[this.when]);
        }),
      ];
      this.exact = places(exact);
      for (const button of host.querySelectorAll("[data-when]")) {
        button.disabled = button.dataset.when === "before" && !layers[0].before;
        button.addEventListener("click", () => this.turn(button.dataset.when));
      }
      this.draw();
    }

    turn(when) {
      this.when = when;
      for (const button of host.querySelectorAll("[data-when]")) {
        button.setAttribute("aria-pressed", String(button.dataset.when === when));
      }
      this.draw();
    }

    draw() {
      for (const { canvas, told, caption, points } of this.panels) {
        told.textContent = typeof caption === "function" ? caption() : caption;
        this.#points(canvas, points());
      }
    }

    #caption(layer) {
      if (this.when === "before") return layer.r2_before === null ? "" : `R² ${layer.r2_before.toFixed(3)} before training`;
      const twins = layer.twins === null ? "" : `, untrained ${layer.twins.toFixed(3)}`;
      return `R² ${inDigits(layer.r2, layer.low, layer.high, 3)}${twins}`;
    }

    #panel(name, caption, points) {
      const canvas = element("canvas", { role: "img", "aria-label": `beliefs: ${name}` });
      const told = element("span");
      part("maps").append(element("figure", {}, canvas, element("figcaption", {}, element("b", {}, name), " ", told)));
      return { canvas, told, caption, points };
    }

    #points(canvas, points) {
      const room = sharpen(canvas);
      if (!room || !points) return;
      const { pen, width, height } = room;
      const place = (x, y) => [x * width, (1 - y) * height];
      if (this.triangle) {
        pen.strokeStyle = colour("--edge");
        pen.beginPath();
        for (const [x, y] of [[0.5, Math.sqrt(0.75)], [0, 0], [1, 0]]) pen.lineTo(...place((x + 0.15) / 1.3, (y + 0.15) / 1.2));
        pen.closePath();
        pen.stroke();
      }
      pen.globalAlpha = 0.6;
      const size = Math.max(1, Math.min(1.8, width / 170));
      const light = document.documentElement.dataset.theme === "dark" ? 40 : 0;
      for (let n = 0; n < points.length / 2; n++) {
        const [x, y] = place(points[2 * n] / 65535, points[2 * n + 1] / 65535);
        const mix = [0, 1, 2].map((c) => Math.min(255, this.colours[3 * n + c] + light));
        pen.fillStyle = `rgb(${mix})`;
        pen.fillRect(x - size / 2, y - size / 2, size, size);
      }
    }
  }

  /** Rows {name, role, value, low, high}: bars from `from`, and whiskers. */
  function bars(target, rows, { from, to, text }) {
    const at = (value) => `${(100 * Math.min(Math.max((value - from) / (to - from || 1), 0), 1)).toFixed(2)}%`;
    for (const row of rows) {
      const bar = element("div", { class: "bar" });
      if (row.value !== null) {
        bar.append(element("i", { class: row.role }), element("u"));
        bar.children[0].style.width = at(row.value);
        bar.children[1].style.left = at(row.low);
        bar.children[1].style.width = `calc(${at(row.high)} - ${at(row.low)})`;
      }
      target.append(element("span", {}, row.name), element("span", { class: "value" }, text(row)), bar);
    }
  }

  /** So many decimals, and as many more as leave an interval two units of the last one wide: none is rounded away. */
  function inDigits(value, low, high, least) {
    let decimals = least;
    while (high - low >= 2e-6 && high - low < 2 * 10 ** -decimals) decimals++;
    const [shown, first, last] = [value, low, high].map((x) => (Math.round(x * 10 ** decimals) / 10 ** decimals + 0).toFixed(decimals));
    return `${shown} [${first}, ${last}]`;
  }

  /** Bars from zero: of the optimum, or of no loss at all where nobody knows the optimum. */
  function losses() {
    const rows = data.losses.map((row) => ({ ...row, loss: row.value, ...row.above }));
    bars(part("losses"), rows, {
      from: 0, to: Math.max(...rows.map(({ high }) => high)),
      text: ({ role, above, loss, value, low, high }) =>
        role === "exact" ? `0 (${loss.toFixed(4)})` : `${inDigits(value, low, high, 3)}${above ? ` (${loss.toFixed(4)})` : ""}`,
    });
  }

  function shares({ layers }) {
    const rows = layers.map((layer) => ({
      name: layer.name, role: "model", value: layer.share, low: layer.share_low, high: layer.share_high,
    }));
    bars(part("shares"), rows, {
      from: 0, to: 1,
      text: ({ value, low, high }) => (value === null ? "not identifiable" : inDigits(value, low, high, 2)),
    });
  }

  function push(found) {
    const towards = part("towards");
    towards.append(...found.states.map((state, s) => element("option", { value: s }, state)));
    const seen = found.seen.slice(-12).join(" ");
    part("seen").textContent = found.seen.length > 12 ? `… ${seen}` : seen;
    const shown = new Predictions(part("pushed"), found.symbols, ["exact", "model"]);
    const redraw = () => {
      const [state, step] = [Number(towards.value), Number(part("amount").value)];
      const [model, exact] = [found.model[state][step], found.exact[state][step]];
      shown.show({ model, exact }, exact);
      part("moved").textContent = `${Math.round((100 * step) / found.steps)} %`;
      const distance = (one, other) => one.reduce((sum, share, v) => sum + Math.abs(share - other[v]), 0) / 2;
      part("push-said").textContent =
        `In this sequence the model's prediction has moved by ${distance(model, found.free).toFixed(3)} in total variation, and the optimal ` +
        `one for this belief by ${distance(exact, found.exact[state][0]).toFixed(3)}; the distance between them is ${distance(model, exact).toFixed(3)}.`;
    };
    for (const control of [towards, part("amount")]) control.addEventListener("input", redraw);
    part("amount").value = found.steps / 2;
    redraw();
  }

  function trace(found) {
    const chips = found.seen.map((symbol) => element("span", { class: "chip" }, symbol.slice(0, 2)));
    part("seen-all").append(...chips);
    const states = data.beliefs?.states ?? [];
    const belief = part("trace-belief") && new PairBars(part("trace-belief"), { names: states });
    const law = new Predictions(part("trace-law"), found.symbols, ["exact", "model"]);
    const redraw = () => {
      const at = Number(part("moment").value) - 1;
      part("at").textContent = `${at + 1} of ${found.seen.length}: ${found.seen[at]}`;
      chips.forEach((chip, n) => (chip.className = `chip${n > at ? " later" : n === at ? " now" : ""}`));
      belief?.show(found.belief[at], found.read[at]);
      law.show({ model: found.model[at], exact: found.exact[at] });
    };
    part("moment").addEventListener("input", redraw);
    part("moment").value = Math.ceil(found.seen.length / 2);
    redraw();
  }

  function heads({ size, heads: found }) {
    const drawn = found.map(({ name, pattern }) => {
      const canvas = element("canvas", { role: "img", "aria-label": `attention of ${name}` });
      part("heads").append(element("figure", {}, canvas, element("figcaption", {}, name)));
      return { canvas, pattern: bytes(pattern) };
    });
    const draw = () => {
      const [low, high] = ["--heat-low", "--heat-high"].map((name) => channels(colour(name)));
      for (const { canvas, pattern } of drawn) {
        canvas.width = canvas.height = size;
        const pen = canvas.getContext("2d");
        const image = pen.createImageData(size, size);
        pattern.forEach((value, n) => {
          const share = Math.sqrt(value / 255);
          for (let c = 0; c < 3; c++) image.data[4 * n + c] = low[c] + share * (high[c] - low[c]);
          image.data[4 * n + 3] = 255;
        });
        pen.putImageData(image, 0, 0);
      }
    };
    draw();
    redraws.push(draw);
  }

  if (data.beliefs) {
    const maps = new Maps(data.beliefs);
    redraws.push(() => maps.draw());
    shares(data.beliefs);
  }
  losses();
  if (part("towards")) push(data.push);
  if (data.trace) trace(data.trace);
  if (part("heads")) heads(data.attention);
  const redraw = () => redraws.forEach((draw) => draw());
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  addEventListener("resize", redraw);

  const live = document.getElementById("live-data");
  if (live) {
    const start = () => (window.explorer = new Explorer(document.querySelector("[data-live]"), JSON.parse(live.textContent)));
    requestAnimationFrame(() => setTimeout(start));
  }
}
