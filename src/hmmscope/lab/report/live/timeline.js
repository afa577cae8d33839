"use strict";

/** The tape, column by column, with the hidden states below it; elsewhere each head's attention from the chosen moment. */
class Timeline {
  static CELL = 24;

  constructor(tape, attention, { session, move, silence }) {
    this.session = session;
    this.chips = element("div", {
      class: "chips", role: "slider", tabindex: 0, "aria-label": "position in the sequence", "aria-valuemin": 0,
      keydown: (event) => {
        const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, Home: -Infinity, End: Infinity }[event.key];
        if (step === undefined) return;
        event.preventDefault();
        move(this.shown + step);
      },
      pointerdown: (event) => {
        const chip = event.target.closest("[data-n]");
        if (chip) move(Number(chip.dataset.n));
      },
    });
    this.hidden = element("div", { class: "chips states", "aria-hidden": true });
    this.repeated = element("div", { class: "chips", "aria-hidden": true });
    this.heads = [];
    const { layers, heads } = session.network.about;
    for (let layer = 0; layer < layers && heads; layer++) {
      for (let head = 0; head < heads; head++) {
        const name = `layer ${layer + 1}, head ${head + 1}`;
        const toggle = element("button", {
          type: "button", "aria-pressed": "false", title: `ablate ${name}`,
          click: () => silence(`${layer}.${head}`, toggle.getAttribute("aria-pressed") !== "true"),
        }, name);
        this.heads.push({ layer, head, name, toggle, cells: element("canvas", { role: "img" }) });
      }
    }
    tape.append(element("span", { class: "name" }, "symbols seen"), this.chips,
      element("span", { class: "name states" }, "hidden state"), this.hidden);
    if (heads) attention.append(element("span"), this.repeated, ...this.heads.flatMap(({ toggle, cells }) => [toggle, cells]));
  }

  show(shown) {
    this.shown = shown;
    const { session } = this;
    const columns = this.#columns();
    const moment = session.moments[shown];
    const room = Math.max(6, Math.floor(this.chips.getBoundingClientRect().width / Timeline.CELL));
    const end = Math.min(columns.length, Math.max(room, moment.columns + Math.floor(room / 4)));
    const first = Math.max(0, end - room);
    const visible = columns.slice(first, end);
    for (const row of [this.chips, this.repeated]) row.replaceChildren(...visible.map((column) => this.#chip(column, shown)));
    this.chips.setAttribute("aria-valuemax", session.length);
    this.chips.setAttribute("aria-valuenow", shown);
    const symbol = shown ? session.process.symbols[session.tape[shown - 1].symbol] : "nothing";
    this.chips.setAttribute("aria-valuetext", `after ${shown} of ${session.length} symbols; the last is ${symbol}`);
    this.hidden.replaceChildren(...visible.map(({ n, delimiter }) => this.#state(delimiter ? null : session.tape[n - 1].hidden)));
    for (const row of this.heads) this.#attention(row, moment, first);
  }

  #columns() {
    const { session } = this;
    const columns = [];
    session.moments.forEach(({ n, columns: count }) => {
      if (n > 0) columns.push({ n, delimiter: false });
      if (count > columns.length) columns.push({ n, delimiter: true });
    });
    return columns;
  }

  #chip({ n, delimiter }, shown) {
    const { session } = this;
    const held = !delimiter && session.push?.n === n;
    const classes = ["chip", delimiter && "delimiter", n > shown && "later", n === shown && !delimiter && "now", held && "held"];
    const text = delimiter ? "·" : session.process.symbols[session.tape[n - 1].symbol];
    return element("span", { class: classes.filter(Boolean).join(" "), "data-n": n }, text.length > 2 ? text.slice(0, 2) : text);
  }

  #state(hidden) {
    if (!hidden) return element("span", { class: "chip" });
    const { process } = this.session;
    const own = process.numStates === 3 ? `background: var(--state-${hidden.state}); color: var(--page)` : "";
    return element("span", { class: "chip", style: own }, process.states[hidden.state].slice(0, 2));
  }

  #attention({ layer, head, name, toggle, cells }, moment, first) {
    const silent = this.session.silent.has(`${layer}.${head}`);
    toggle.setAttribute("aria-pressed", String(silent));
    const pattern = moment.patterns[layer]?.[head] ?? [];
    const room = sharpen(cells);
    if (!room) return;
    room.pen.fillStyle = colour(silent ? "--rule" : "--model");
    pattern.slice(first).forEach((weight, i) => {
      room.pen.globalAlpha = Math.sqrt(weight);
      room.pen.fillRect(i * Timeline.CELL + 1, 1, Timeline.CELL - 2, room.height - 2);
    });
    const best = pattern.length ? pattern.reduce((most, weight, u) => (weight > pattern[most] ? u : most), 0) : 0;
    const back = pattern.length - 1 - best;
    const where = pattern.length ? `most on ${back ? `${back} back` : "the last position"}, ${percent(pattern[best])}` : "no input yet";
    cells.setAttribute("aria-label", `${name}${silent ? ", ablated" : ""}: ${where}`);
  }
}
