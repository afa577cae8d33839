"use strict";

/** Panels of figures as SVG. A drawn panel has {find, tell, keys}: what is under a place, what is known there, all such. */
const Charts = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MARGIN = { left: 54, right: 12, top: 8, bottom: 44 };

  function node(tag, attributes = {}, ...children) {
    const made = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (typeof value === "function") made.addEventListener(name, value);
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children);
    return made;
  }

  const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const mix = (from, to, share) => {
    const [a, b] = [channels(from), channels(to)];
    return `#${a.map((part, c) => Math.round(part + (b[c] - part) * share).toString(16).padStart(2, "0")).join("")}`;
  };
  const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const LIGHTER = 0.35; // share of white in colours on a dark page
  const dark = () => document.documentElement.dataset.theme === "dark";

  /** A colour that was chosen for white paper, on the page as it is. */
  function themed(color) {
    if (!dark()) return color;
    return color === "#000000" ? token("--ink") : mix(color, "#ffffff", LIGHTER);
  }

  const LABEL = 24; // characters of a turned label, whose end stays in the picture
  const cut = (name) => (name.length > LABEL ? `${name.slice(0, LABEL / 2)}…${name.slice(1 - LABEL / 2)}` : name);

  /** Four significant digits, with a minus sign and thin groups. */
  function number(value) {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("-", "−").replace(/\.?0+e/, "e");
    return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 7 }).replace("-", "−");
  }

  function tickText(value) {
    const size = Math.abs(value);
    if (size >= 1e4 && size < 1e6) return `${number(value / 1e3)}k`;
    if (size >= 1e6 && size < 1e9) return `${number(value / 1e6)}M`;
    return size !== 0 && (size >= 1e9 || size < 1e-3) ? Number(value.toPrecision(4)).toExponential().replaceAll("-", "−") : number(value);
  }

  /** Round numbers between two ends, about `count` of them. */
  function roundTicks(low, high, count, whole = false) {
    const raw = (high - low) / Math.max(count, 1) || 1;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max([1, 2, 5, 10].find((one) => one * power >= raw * 0.999) * power, whole ? 1 : 0);
    const ticks = [];
    for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++) ticks.push(Number((at * step).toPrecision(12)));
    return ticks;
  }

  /** From values to places. `at` gives null where a logarithm has no place. */
  function scale({ low, high, log, from, to, count, ticks = null, whole = false }) {
    const bend = log ? Math.log10 : (value) => value;
    const [start, end] = [bend(low), bend(high)];
    const at = (value) => (log && value <= 0 ? null : from + ((bend(value) - start) / (end - start || 1)) * (to - from));
    let marks = ticks ?? roundTicks(low, high, count, whole);
    if (log && !ticks && high >= 5 * low) {
      const few = end - start < 2;
      const every = few ? 1 : Math.ceil((end - start) / Math.max(count, 2));
      marks = [];
      for (let power = few ? Math.floor(start) : Math.ceil(start - 1e-9); power <= end + 1e-9; power += every) {
        for (const one of few ? [1, 2, 5] : [1]) marks.push(Number((one * 10 ** power).toPrecision(12)));
      }
    }
    return { at, ticks: marks.filter((value) => value >= low - 1e-12 && value <= high * (1 + 1e-9) + 1e-12) };
  }

  /** Ends of the values, wider by a little where nothing fixes them. */
  function ends(values, { log, low = null, high = null }) {
    const finite = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
    let [least, most] = [Math.min(...finite), Math.max(...finite)];
    if (!finite.length) [least, most] = log ? [0.1, 1] : [0, 1];
    if (log) return [low ?? least / 1.15, high ?? most * 1.15];
    const room = (most - least || Math.abs(most) || 1) * 0.05;
    return [low ?? least - room, high ?? most + room];
  }

  const text = (x, y, words, attributes = {}) =>
    node("svg:text", { x, y, fill: token("--ink"), "font-size": 12, ...attributes }, words);

  function frame(svg, area, { x_label: xLabel = "", y_label: yLabel = "" }) {
    svg.append(
      node("svg:line", { x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom, stroke: token("--edge") }),
      text((area.left + area.right) / 2, area.bottom + 37, xLabel, { "text-anchor": "middle", fill: token("--grey") }),
      text(0, 0, yLabel, {
        "text-anchor": "middle", fill: token("--grey"), transform: `translate(13 ${(area.top + area.bottom) / 2}) rotate(-90)`,
      }),
    );
  }

  function yAxis(svg, area, y) {
    for (const value of y.ticks) {
      const at = y.at(value);
      svg.append(
        node("svg:line", { x1: area.left, x2: area.right, y1: at, y2: at, stroke: token("--rule") }),
        text(area.left - 7, at + 4, tickText(value), { "text-anchor": "end", fill: token("--grey"), "font-size": 11.5 }),
      );
    }
  }

  function xAxis(svg, area, x) {
    for (const value of x.ticks) {
      svg.append(text(x.at(value), area.bottom + 17, tickText(value), {
        "text-anchor": "middle", fill: token("--grey"), "font-size": 11.5,
      }));
    }
  }

  const area = (width, height, more = {}) => {
    const margin = { ...MARGIN, ...more };
    return { left: margin.left, right: width - margin.right, top: margin.top, bottom: height - margin.bottom };
  };

  const stroke = (look) => ({
    fill: "none", stroke: themed(look.color), "stroke-width": look.width, "stroke-dasharray": look.dash.join(" ") || null,
    "stroke-linejoin": "round",
  });

  /** The shape of a marker, which is drawn around (13, 6). */
  const marker = (look, x, y) =>
    node("svg:path", { d: look.path, fill: themed(look.color), transform: `translate(${(x - 13).toFixed(1)} ${(y - 6).toFixed(1)})` });

  function drawLines(svg, width, height, panel, series) {
    const box = area(width, height);
    const floor = panel.floor ?? -Infinity;
    const clipped = (values) => values?.map((value) => Math.max(value, floor));
    const all = series.flatMap(({ y, low, high }) => [...y, ...(clipped(low) ?? []), ...(high ?? [])]);
    const [low, high] = ends(all, { log: panel.log_y, low: panel.y_min, high: panel.y_max });
    const positions = [...new Set(series.flatMap(({ x }) => x))].sort((a, b) => a - b);
    const [left, right] = panel.log_x ? ends(positions, { log: true }) : [positions[0] ?? 0, positions.at(-1) ?? 1];
    const pad = left === right ? 1 : (right - left) * 0.02;
    const x = scale({
      low: panel.log_x ? left : left - pad, high: panel.log_x ? right : right + pad, log: panel.log_x, from: box.left,
      to: box.right, count: (box.right - box.left) / 70, ticks: panel.ticks, whole: panel.whole,
    });
    const y = scale({ low, high, log: panel.log_y, from: box.bottom, to: box.top, count: (box.bottom - box.top) / 45 });
    yAxis(svg, box, y);
    xAxis(svg, box, x);
    frame(svg, box, panel);
    const clip = `clip-${Math.random().toString(36).slice(2)}`;
    svg.append(node("svg:clipPath", { id: clip }, node("svg:rect", {
      x: box.left - 4, y: box.top - 4, width: Math.max(0, box.right - box.left + 8), height: box.bottom - box.top + 8,
    })));
    const body = node("svg:g", { "clip-path": `url(#${clip})` });
    svg.append(body);
    const places = (one, values) => one.x.map((at, i) => [x.at(at), y.at(values[i])]).filter(([a, b]) => a !== null && b !== null);
    const path = (points) => points.map(([a, b], i) => `${i ? "L" : "M"}${a.toFixed(1)} ${b.toFixed(1)}`).join("");
    const sorted = [...series].sort((a, b) => a.look.level - b.look.level);
    for (const one of sorted.filter(({ low: ending }) => ending)) {
      const outline = [...places(one, one.high), ...places(one, clipped(one.low)).reverse()];
      body.append(node("svg:path", { d: `${path(outline)}Z`, fill: themed(one.look.color), "fill-opacity": one.look.opacity }));
    }
    for (const one of sorted) {
      const points = places(one, one.y);
      body.append(node("svg:path", { d: path(points), ...stroke(one.look) }));
      const every = Math.ceil(points.length / 12);
      const marked = one.look.path || points.length === 1;
      const shape = one.look.path ? one.look : { ...one.look, path: "M9.8 6a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0 -6.4 0z" };
      if (marked) points.filter((_, i) => i % every === 0).forEach(([a, b]) => body.append(marker(shape, a, b)));
    }
    const cursor = node("svg:line", { y1: box.top, y2: box.bottom, stroke: token("--grey"), visibility: "hidden" });
    svg.append(cursor);
    return {
      kind: `x: ${panel.x_label}`,
      keys: positions,
      find: (place) => positions.reduce((best, one) => (Math.abs(x.at(one) - place) < Math.abs(x.at(best) - place) ? one : best), positions[0]),
      tell(key) {
        const known = key !== null && positions.includes(key) && x.at(key) !== null;
        cursor.setAttribute("visibility", known ? "visible" : "hidden");
        if (!known) return null;
        for (const end of ["x1", "x2"]) cursor.setAttribute(end, x.at(key));
        const rows = series.flatMap((one) => {
          const i = one.x.indexOf(key);
          return i < 0 ? [] : [row(one.look, one.y[i], one.low?.[i], one.high?.[i])];
        });
        return { head: `${panel.x_label} ${number(key)}`, at: x.at(key), rows };
      },
    };
  }

  const row = (look, value, low, high) => ({
    name: look.name, color: themed(look.color), value: number(value),
    interval: low === undefined || low === null ? "" : `[${number(low)}, ${number(high)}]`,
  });

  function drawBars(svg, width, height, panel, series) {
    const count = panel.categories.length;
    const turned = panel.short.reduce((sum, one) => sum + one.length + 1, 0) * 6.6 > width - 70;
    const longest = Math.min(LABEL, Math.max(...panel.short.map((one) => one.length)));
    const box = area(width, height, turned ? { bottom: Math.max(84, 24 + 3.9 * longest) } : { bottom: 30 });
    const all = [0, ...series.flatMap(({ y, low, high }) => [...y, ...(low ?? []), ...(high ?? [])])];
    let [low, high] = ends(all, { low: panel.y_min, high: panel.y_max });
    if (panel.y_min === null && Math.min(...all) === 0) low = 0;
    const y = scale({ low, high, from: box.bottom, to: box.top, count: (box.bottom - box.top) / 45 });
    yAxis(svg, box, y);
    const step = (box.right - box.left) / count;
    const middle = (i) => box.left + (i + 0.5) * step;
    const bars = series.filter(({ look }) => !look.mark);
    const size = (0.76 * step) / Math.max(bars.length, 1);
    for (const one of series) {
      one.y.forEach((value, i) => {
        if (one.look.mark) {
          svg.append(node("svg:line", { x1: middle(i) - 0.42 * step, x2: middle(i) + 0.42 * step, y1: y.at(value), y2: y.at(value), ...stroke(one.look) }));
          return;
        }
        const at = middle(i) + (bars.indexOf(one) - bars.length / 2) * size;
        const [top, foot] = [y.at(Math.max(value, Math.max(low, 0))), y.at(Math.min(value, Math.max(low, 0)))];
        svg.append(node("svg:rect", { x: at + 0.04 * size, y: top, width: 0.92 * size, height: Math.max(foot - top, 0.5), fill: themed(one.look.color) }));
        if (one.low) {
          const center = at + size / 2;
          svg.append(node("svg:line", { x1: center, x2: center, y1: y.at(one.low[i]), y2: y.at(one.high[i]), stroke: token("--ink"), "stroke-width": 1.1 }));
        }
      });
    }
    panel.short.forEach((name, i) =>
      svg.append(turned
        ? text(0, 0, cut(name), { "text-anchor": "end", "font-size": 11.5, transform: `translate(${middle(i) + 4} ${box.bottom + 14}) rotate(-35)` })
        : text(middle(i), box.bottom + 17, name, { "text-anchor": "middle" })),
    );
    frame(svg, box, { y_label: panel.y_label });
    return {
      kind: `categories: ${panel.categories.join("|")}`,
      keys: panel.categories.map((_, i) => i),
      find: (place) => Math.min(Math.max(Math.floor((place - box.left) / step), 0), count - 1),
      tell: (key) => key === null ? null : {
        head: panel.categories[key], at: middle(key), rows: series.map((one) => row(one.look, one.y[key], one.low?.[key], one.high?.[key])),
      },
    };
  }

  function drawHeatmap(svg, width, height, panel) {
    const longest = Math.max(...panel.short.y.map((one) => one.length));
    const turned = panel.short.x.reduce((sum, one) => sum + one.length + 1, 0) * 6.6 > width - 150;
    const box = area(width, height, { left: Math.min(34 + 6.6 * longest, width / 3), right: 72, bottom: turned ? 96 : 44 });
    const [columns, rows] = [panel.x.length, panel.y.length];
    const [w, h] = [(box.right - box.left) / columns, (box.bottom - box.top) / rows];
    const [paper, blue, red] = [token("--heat-low"), token("--heat-high"), token("--heat-negative")];
    const fill = (value) => {
      if (value === null) return token("--missing");
      if (panel.signed) return mix(paper, value < 0 ? red : blue, Math.min(Math.abs(value) / panel.high, 1));
      return mix(paper, blue, Math.min(Math.max((value - panel.low) / (panel.high - panel.low), 0), 1));
    };
    panel.z.forEach((line, j) => line.forEach((value, i) => svg.append(node("svg:rect", {
      x: box.left + i * w, y: box.top + j * h, width: w + 0.4, height: h + 0.4, fill: fill(value),
    }))));
    panel.shown.x.forEach((i, n) => {
      const at = box.left + (i + 0.5) * w;
      svg.append(turned
        ? text(0, 0, panel.short.x[n], { "text-anchor": "end", "font-size": 11.5, transform: `translate(${at + 4} ${box.bottom + 14}) rotate(-35)` })
        : text(at, box.bottom + 17, panel.short.x[n], { "text-anchor": "middle", "font-size": 11.5 }));
    });
    panel.shown.y.forEach((j, n) =>
      svg.append(text(box.left - 6, box.top + (j + 0.5) * h + 4, panel.short.y[n], { "text-anchor": "end", "font-size": 11.5 })));
    frame(svg, { ...box, bottom: box.bottom + (turned ? 50 : 0) }, { x_label: panel.x_label });
    svg.append(text(0, 0, panel.y_label, { "text-anchor": "middle", fill: token("--grey"), transform: `translate(13 ${(box.top + box.bottom) / 2}) rotate(-90)` }));
    const steps = 40;
    for (let i = 0; i < steps; i++) {
      const value = panel.low + ((i + 0.5) / steps) * (panel.high - panel.low);
      const each = (box.bottom - box.top) / steps;
      svg.append(node("svg:rect", { x: box.right + 12, y: box.bottom - (i + 1) * each, width: 9, height: each + 0.4, fill: fill(value) }));
    }
    const bar = scale({ low: panel.low, high: panel.high, from: box.bottom, to: box.top, count: 4 });
    for (const value of bar.ticks) svg.append(text(box.right + 25, bar.at(value) + 4, tickText(value), { "font-size": 11, fill: token("--grey") }));
    svg.append(text(0, 0, panel.z_label, { "text-anchor": "middle", fill: token("--grey"), "font-size": 11, transform: `translate(${width - 3} ${(box.top + box.bottom) / 2}) rotate(-90)` }));
    const cursor = node("svg:rect", { width: w, height: h, fill: "none", stroke: token("--ink"), "stroke-width": 1.6, visibility: "hidden" });
    svg.append(cursor);
    return {
      kind: `cells: ${rows} ${columns} ${panel.x_label} ${panel.y_label}`,
      keys: panel.z.flatMap((line, j) => line.map((_, i) => `${j} ${i}`)),
      find: (x, y) => `${Math.min(Math.max(Math.floor((y - box.top) / h), 0), rows - 1)} ${Math.min(Math.max(Math.floor((x - box.left) / w), 0), columns - 1)}`,
      tell(key) {
        cursor.setAttribute("visibility", key === null ? "hidden" : "visible");
        if (key === null) return null;
        const [j, i] = key.split(" ").map(Number);
        cursor.setAttribute("x", box.left + i * w);
        cursor.setAttribute("y", box.top + j * h);
        const value = panel.z[j][i];
        return { head: `${panel.y_label} ${panel.y[j]}, ${panel.x_label} ${panel.x[i]}`, at: box.left + (i + 0.5) * w,
          rows: [{ name: panel.z_label, color: "", value: value === null ? "none" : number(value), interval: "" }] };
      },
    };
  }

  const bytesOf = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));

  /** Packed points of the unit square, y upwards. */
  function unpackPlaces(text) {
    const bytes = bytesOf(text);
    return Array.from({ length: bytes.length / 3 }, (_, i) => {
      const [high, middle, low] = bytes.subarray(3 * i, 3 * i + 3);
      return [((high << 4) | (middle >> 4)) / 4096, (((middle & 15) << 8) | low) / 4096];
    });
  }

  /** A picture of points: each is a small disc, and where many lie on one another the colour is full. */
  function raster(width, height, points, colours) {
    const ratio = Math.max(window.devicePixelRatio || 1, 2);
    const radius = ratio * Math.min(2.4, Math.max(0.55, 20 / points.length ** 0.35));
    const strength = Math.min(1.8, Math.max(0.5, 2.6 - 0.5 * Math.log10(points.length)));
    const [w, h, reach] = [Math.round(width * ratio), Math.round(height * ratio), Math.ceil(radius)];
    const sums = new Float32Array(4 * w * h);
    points.forEach(([x, y], n) => {
      const [middle, line] = [x * ratio, y * ratio];
      for (let j = Math.max(Math.floor(line) - reach, 0); j <= Math.min(Math.floor(line) + reach, h - 1); j++) {
        for (let i = Math.max(Math.floor(middle) - reach, 0); i <= Math.min(Math.floor(middle) + reach, w - 1); i++) {
          const covered = Math.min(Math.max(radius + 0.5 - Math.hypot(i + 0.5 - middle, j + 0.5 - line), 0), 1);
          const at = 4 * (j * w + i);
          for (let c = 0; c < 3; c++) sums[at + c] += covered * colours[3 * n + c];
          sums[at + 3] += covered;
        }
      }
    });
    const canvas = node("canvas", { width: w, height: h });
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(w, h);
    for (let at = 0; at < sums.length; at += 4) {
      if (!sums[at + 3]) continue;
      for (let c = 0; c < 3; c++) image.data[at + c] = sums[at + c] / sums[at + 3];
      image.data[at + 3] = 255 * (1 - Math.exp(-strength * sums[at + 3]));
    }
    pen.putImageData(image, 0, 0);
    return node("svg:image", { href: canvas.toDataURL(), width, height });
  }

  /** Points of a frame, and the triangle of beliefs around them. */
  function drawCloud(svg, width, height, panel) {
    const side = Math.min(width, height) - 4;
    const [left, top] = [(width - side) / 2, (height - side) / 2];
    const place = ([x, y]) => [left + x * side, top + (1 - y) * side];
    const corners = unpackPlaces(panel.outline);
    if (corners.length) svg.append(node("svg:polygon", { points: corners.map(place).join(" "), fill: "none", stroke: token("--edge") }));
    const points = unpackPlaces(panel.places[panel.frame]);
    const placed = points.map(place);
    svg.append(raster(width, height, placed, bytesOf(panel.colours).map((part) => (dark() ? part + (255 - part) * LIGHTER : part))));
    const middle = corners.reduce((sum, [, y]) => sum + y / 3, 0);
    corners.forEach((corner, s) => {
      const [x, y] = place(corner);
      svg.append(text(x, y + (corner[1] > middle ? -7 : 15), panel.corners[s], { "text-anchor": "middle", "font-weight": 650 }));
    });
    const ring = node("svg:circle", { r: 5, fill: "none", stroke: token("--ink"), "stroke-width": 1.8, visibility: "hidden" });
    svg.append(ring);
    const far = ([a, b], x, y) => (a - x) ** 2 + (b - y) ** 2;
    return {
      kind: `cloud: ${placed.length} ${panel.corners}`,
      keys: [],
      find: (x, y) => placed.reduce((best, one, i) => (far(one, x, y) < far(placed[best], x, y) ? i : best), 0),
      tell(key) {
        ring.setAttribute("visibility", key === null ? "hidden" : "visible");
        if (key === null) return null;
        const [x, y] = placed[key];
        ring.setAttribute("cx", x);
        ring.setAttribute("cy", y);
        const belief = corners.length ? barycentric(points[key], corners) : [];
        const rows = belief.map((share, s) => ({ name: panel.corners[s], color: "", value: share.toFixed(2).replace("-", "−"), interval: "" }));
        return { head: "", at: x, rows };
      },
    };
  }

  /** The shares of three corners in a point. */
  function barycentric([x, y], [[ax, ay], [bx, by], [cx, cy]]) {
    const area = (by - cy) * (ax - cx) + (cx - bx) * (ay - cy);
    const first = ((by - cy) * (x - cx) + (cx - bx) * (y - cy)) / area;
    const second = ((cy - ay) * (x - cx) + (ax - cx) * (y - cy)) / area;
    return [first, second, 1 - first - second];
  }

  const DRAW = { lines: drawLines, explorer: drawLines, bars: drawBars, heatmap: drawHeatmap, cloud: drawCloud };

  /** A panel drawn into an empty SVG element of this size, with the series that are shown. */
  function draw(svg, width, height, panel, series) {
    svg.replaceChildren();
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    return DRAW[panel.kind](svg, width, height, panel, series);
  }

  return { draw, node, stroke, themed, marker, token, unpackPlaces };
})();
