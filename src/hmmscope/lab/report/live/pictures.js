"use strict";

/** An element of HTML or SVG with attributes and children; a function is a listener. */
function element(tag, attributes = {}, ...children) {
  const vector = ["svg", "g", "path", "circle", "line", "polyline", "polygon", "text", "rect"].includes(tag);
  const made = vector ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

const percent = (share) => `${(100 * Math.min(Math.max(share, 0), 1)).toFixed(share > 0.995 || share < 0.0005 ? 0 : 1)} %`;
const joined = (points) => points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");

/** A canvas as sharp as the screen, cleared, with one unit a CSS pixel; null where it is not laid out. */
function sharpen(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  if (!width) return null;
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  return { pen, width, height };
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The triangle of beliefs about three states: corners are certainty, the middle is none. */
class Triangle {
  static CORNERS = [[50, 4], [4, 83.67], [96, 83.67]];

  constructor(host, { states, kind, push = null }) {
    this.push = push;
    this.cloud = element("canvas", { "aria-hidden": true });
    this.trail = element("g", { class: "trail" });
    this.target = element("circle", { class: "target", r: 3.4, visibility: "hidden" });
    this.dot = element("circle", { class: `dot ${kind}`, r: 2.6 });
    const labels = Triangle.CORNERS.map(([x, y], s) =>
      element("text", { x, y: s ? y + 7.4 : y - 2.2, class: "corner", fill: `var(--state-${s})` }, states[s]),
    );
    const edge = element("polygon", { class: "edge", points: joined(Triangle.CORNERS) });
    this.picture = element("svg", { viewBox: "-2 -6 104 100", "aria-hidden": true }, edge, this.trail, this.target, this.dot, ...labels);
    host.classList.add("triangle");
    host.append(this.cloud, this.picture);
    if (push) this.#draggable(host);
  }

  static place(belief) {
    const at = [0, 0];
    Triangle.CORNERS.forEach(([x, y], s) => ((at[0] += belief[s] * x), (at[1] += belief[s] * y)));
    return at;
  }

  /** The belief at a place, moved into the triangle. */
  static belief(x, y) {
    const [[ax, ay], [bx, by], [cx, cy]] = Triangle.CORNERS;
    const area = (by - cy) * (ax - cx) + (cx - bx) * (ay - cy);
    const first = ((by - cy) * (x - cx) + (cx - bx) * (y - cy)) / area;
    const second = ((cy - ay) * (x - cx) + (ax - cx) * (y - cy)) / area;
    return [...Numbers.normalise([first, second, 1 - first - second].map((share) => Math.max(share, 0)))];
  }

  show(beliefs, held) {
    const points = beliefs.map(Triangle.place);
    this.trail.replaceChildren(
      ...points.slice(1).map(([x, y], i) => {
        const [fromX, fromY] = points[i];
        return element("line", { x1: fromX, y1: fromY, x2: x, y2: y, opacity: ((i + 1) / points.length) ** 1.5 });
      }),
    );
    const now = points.at(-1);
    this.dot.setAttribute("visibility", now ? "visible" : "hidden");
    if (now) this.dot.style.transform = `translate(${now[0]}px, ${now[1]}px)`;
    this.target.setAttribute("visibility", held ? "visible" : "hidden");
    if (held) this.target.style.transform = `translate(${Triangle.place(held).map((at) => `${at}px`).join(", ")})`;
  }

  draw(points) {
    drawCloud(this.cloud, points, 104, -2, -6);
  }

  #draggable(host) {
    const move = (event) => {
      const box = this.picture.getBoundingClientRect();
      const scale = 104 / box.width;
      this.push(Triangle.belief((event.clientX - box.left) * scale - 2, (event.clientY - box.top) * scale - 6));
    };
    this.dot.classList.add("held");
    this.dot.addEventListener("pointerdown", (event) => {
      this.dot.setPointerCapture(event.pointerId);
      event.preventDefault();
    });
    this.dot.addEventListener("pointermove", (event) => this.dot.hasPointerCapture(event.pointerId) && move(event));
  }
}

/** Beliefs as coloured points; `points` are {at: beliefs to be placed, as: beliefs that give the colours}. */
function drawCloud(canvas, points, units, left, top) {
  const room = sharpen(canvas);
  if (!room || !points) return;
  const corners = [0, 1, 2].map((s) => channels(colour(`--cloud-${s}`)));
  const scale = room.width / units;
  const size = room.width < 100 ? 1.3 : Math.max(1.1, Math.min(1.7, room.width / 230));
  room.pen.globalAlpha = points.at.length > 1500 ? 0.55 : 0.8;
  points.at.forEach((belief, i) => {
    const [x, y] = Triangle.place(belief);
    const mix = [0, 1, 2].map((c) => Math.round(corners.reduce((sum, one, s) => sum + points.as[i][s] * one[c], 0)));
    room.pen.fillStyle = `rgb(${mix})`;
    room.pen.fillRect((x - left) * scale - size / 2, (y - top) * scale - size / 2, size, size);
  });
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Pairs of bars, exact and read from the network, for states or components. */
class PairBars {
  constructor(host, { names, push = null }) {
    this.pairs = names.map((name, i) => {
      const [exact, read] = ["exact", "model"].map((kind) => element("i", { class: kind }));
      const label = element("span", {}, names.length <= 16 || i % 10 === 0 ? name : "");
      const group = push
        ? element("button", { type: "button", title: `push the belief to ${name}`, click: () => push(i) }, exact, read, label)
        : element("div", { title: name }, exact, read, label);
      if (push) group.setAttribute("aria-label", `push the belief to ${name}`);
      return { exact, read, group };
    });
    host.classList.add("pairs");
    host.classList.toggle("many", names.length > 8);
    host.append(...this.pairs.map(({ group }) => group));
  }

  show(exact, read) {
    this.pairs.forEach((pair, i) => {
      pair.exact.style.height = `${100 * exact[i]}%`;
      pair.read.style.height = `${100 * Math.min(Math.max(read?.[i] ?? 0, 0), 1)}%`;
    });
  }
}

/** The law of the next symbol as bars of model, optimum and n-gram; `held` marks what a held belief calls for.
 * Of many symbols the likeliest are shown, in their order, and the bars grow to the largest. */
class Predictions {
  static MOST = 12;

  constructor(host, symbols, kinds) {
    this.kinds = kinds;
    host.classList.add("laws");
    this.rows = symbols.map((symbol) => {
      const bars = Object.fromEntries(kinds.map((kind) => [kind, element("i", { class: kind })]));
      const mark = element("u", { hidden: true });
      const value = element("span", { class: "value" });
      const row = element("div", { class: "law" }, element("b", {}, symbol), element("div", { class: "bars" }, ...Object.values(bars), mark), value);
      host.append(row);
      return { row, bars, mark, value };
    });
    this.rest = element("p", { class: "rest", hidden: true });
    host.append(this.rest);
  }

  show(laws, held) {
    const all = [...this.kinds.map((kind) => laws[kind]), held].filter(Boolean);
    const largest = this.rows.map((_, v) => Math.max(...all.map((law) => law[v])));
    const few = this.rows.length <= Predictions.MOST;
    const shown = new Set([...largest.keys()].sort((a, b) => largest[b] - largest[a]).slice(0, Predictions.MOST));
    const whole = few ? 1 : Math.max(...largest);
    this.rows.forEach(({ row, bars, mark, value }, v) => {
      row.hidden = !shown.has(v);
      for (const kind of this.kinds) bars[kind].style.width = `${(100 * (laws[kind]?.[v] ?? 0)) / whole}%`;
      value.textContent = laws.model ? percent(laws.model[v]) : percent(laws.exact[v]);
      mark.hidden = !held;
      if (held) mark.style.left = `${(100 * held[v]) / whole}%`;
    });
    this.rest.hidden = few;
    const beyond = Math.max(...largest.filter((_, v) => !shown.has(v)));
    if (!few) this.rest.textContent = `and ${this.rows.length - shown.size} other symbols, each at most ${percent(beyond)}`;
  }
}

/** Curves over the number of predictions, from zero. */
class CostChart {
  static WIDTH = 340;
  static HEIGHT = 150;

  constructor(host, names) {
    this.names = names;
    this.lines = Object.fromEntries(Object.keys(names).map((kind) => [kind, element("polyline", { class: kind })]));
    this.top = element("text", { x: 0, y: 9 });
    const { WIDTH, HEIGHT } = CostChart;
    const floor = element("line", { class: "floor", x1: 0, x2: WIDTH, y1: HEIGHT - 1, y2: HEIGHT - 1 });
    host.append(element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 14}`, "aria-hidden": true }, floor, this.top,
      element("text", { x: 0, y: HEIGHT + 12 }, "0: the optimum"),
      element("text", { x: WIDTH, y: HEIGHT + 12, "text-anchor": "end" }, "symbols →"), ...Object.values(this.lines)));
  }

  show(series, length) {
    const most = Math.max(1e-3, ...Object.values(series).flat()) * 1.08;
    this.top.textContent = `${most.toPrecision(2)} nats`;
    for (const [kind, line] of Object.entries(this.lines)) {
      const scaled = series[kind].map((value, i) => [
        (i * CostChart.WIDTH) / Math.max(length - 1, 1), CostChart.HEIGHT - 1 - (value / most) * (CostChart.HEIGHT - 14),
      ]);
      line.setAttribute("points", joined(scaled));
    }
  }
}
