"use strict";

/** The live section: what the reader does goes to the session, and what it says to the pictures. */
class Explorer {
  static FIRST = 14; // symbols on the tape when the page opens
  static TRAIL = 9; // beliefs that leave a trail
  static PACE = 750; // milliseconds between symbols that the process says
  static CLOUD = { points: 3200, slice: 14 }; // beliefs drawn behind the triangle; milliseconds of work at a time

  constructor(host, data) {
    this.host = host;
    this.data = data;
    this.session = new Session(data);
    this.layer = data.model.layers;
    this.part = Object.fromEntries([...host.querySelectorAll("[data-part]")].map((one) => [one.dataset.part, one]));
    this.triangular = this.session.process.numStates === 3 && !data.process.mixture;
    this.#controls();
    this.#pictures();
    this.#story();
    for (let n = 0; n < Explorer.FIRST && !this.session.full; n++) this.session.speak();
    this.move(this.session.length);
    const redraw = () => (this.render(), this.drawClouds());
    new ResizeObserver(() => requestAnimationFrame(redraw)).observe(this.part.tape);
    new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    if (this.triangular) this.#sampleCloud();
  }

  get moment() {
    return this.session.moments[this.shown];
  }

  move(n) {
    this.shown = Math.min(Math.max(n, 0), this.session.length);
    this.render();
  }

  type(symbol) {
    this.stop();
    if (this.shown < this.session.length) this.session.rewind(this.shown);
    const { process } = this.session;
    if (this.session.full) this.say(`The network was trained on sequences of ${this.session.positions.length} symbols; start a new sequence.`);
    else if (!this.session.type(symbol)) this.say(`${process.symbols[symbol]} cannot follow here: its probability is exactly zero.`);
    else this.move(this.session.length);
  }

  step() {
    if (this.shown < this.session.length) return this.move(this.shown + 1);
    if (!this.session.speak()) this.session.clear();
    this.move(this.session.length);
  }

  play() {
    this.timer = setInterval(() => this.step(), Explorer.PACE);
    this.render();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.render();
  }

  silence(head, silent) {
    this.session.silence(head, silent);
    this.render();
    if (this.triangular) this.#sampleCloud();
  }

  push(belief) {
    if (!this.moment.streams) return;
    this.stop();
    this.session.pushTo(this.shown, this.layer, belief);
    this.render();
  }

  pushTo(s) {
    const { states } = this.session.process;
    this.push(states.map((_, other) => (other === s ? 0.9 : 0.1 / (states.length - 1))));
  }

  restore() {
    this.session.push = null;
    this.session.silent.clear();
    this.session.release();
    this.render();
    if (this.triangular) this.#sampleCloud();
  }

  say(text) {
    this.part.said.textContent = text;
  }

  render() {
    const { session, moment, part } = this;
    const playing = Boolean(this.timer);
    part.said.setAttribute("aria-live", playing ? "off" : "polite");
    part.play.textContent = playing ? "Pause" : "Play";
    part.play.setAttribute("aria-pressed", String(playing));
    part.back.disabled = this.shown === 0;
    part.restore.hidden = !session.push && !session.silent.size;
    this.keys.forEach((key, v) => (key.disabled = !(moment.optimum[v] > 0)));
    this.timeline.show(this.shown);
    this.#beliefs();
    const held = session.push && session.push.n === this.shown && !this.data.process.mixture
      ? session.process.expect(session.push.belief) : null;
    this.predictions.show({ model: moment.model, exact: moment.optimum, ngram: moment.ngram }, held);
    part.heldKey.hidden = !held;
    this.#costs();
    this.say(this.#sentence(held));
  }

  drawClouds() {
    if (!this.triangular) return;
    this.exactPicture.draw(this.cloud && { at: this.cloud.exact, as: this.cloud.exact });
    this.readPicture.draw(this.cloud && { at: this.cloud.read[this.layer], as: this.cloud.exact });
    this.layers.forEach(({ canvas }, layer) =>
      drawCloud(canvas, this.cloud && { at: this.cloud.read[layer], as: this.cloud.exact }, 104, -2, -6),
    );
  }

  #read(layer, moment) {
    return moment.streams ? this.session.readouts[layer].belief.read(moment.streams[layer]) : null;
  }

  #beliefs() {
    const { session, moment, shown } = this;
    const held = session.push?.n === shown && session.push.layer === this.layer ? session.push.belief : null;
    if (this.triangular) {
      const recent = session.moments.slice(Math.max(0, shown - Explorer.TRAIL), shown + 1);
      this.exactPicture.show(recent.map(({ known }) => known.belief));
      this.readPicture.show(recent.map((one) => this.#read(this.layer, one)).filter(Boolean), held);
    } else {
      this.exactPicture.show(moment.known.belief, this.#read(this.layer, moment));
    }
    if (this.components) {
      const read = moment.streams ? session.readouts[this.layer].component.read(moment.streams[this.layer]) : null;
      this.components.show(moment.known.posterior, read);
    }
  }

  #costs() {
    const { session, shown } = this;
    const counted = session.moments.slice(0, shown + 1).map(({ cost }) => cost).filter(({ count }) => count);
    const series = Object.fromEntries(["model", "ngram"].map((kind) => [kind, counted.map((cost) => cost[kind] / cost.count)]));
    this.costs.show(series, session.positions.length);
    for (const kind of ["model", "ngram"]) {
      this.part[`${kind}Cost`].textContent = series[kind].length ? series[kind].at(-1).toFixed(4) : "–";
    }
  }

  #sentence(held) {
    const { session, shown, moment } = this;
    const { process } = session;
    if (!shown) return "No symbol yet: the belief is the prior.";
    const top = (law) => law.reduce((most, share, i) => (share > law[most] ? i : most), 0);
    const [state, next] = [top(moment.known.belief), top(moment.model ?? moment.optimum)];
    const read = this.#read(this.layer, moment);
    const { r2 } = this.data.readouts[this.layer].belief;
    const far = r2 !== null && r2 < 0.8 ? ` (R² ${r2.toFixed(2)}, so this stays near the average)` : "";
    const after = `After ${process.symbols[session.tape[shown - 1].symbol]}`;
    if (held) {
      const likely = top(held);
      return `${after} the belief in layer ${this.layer} was replaced by another: the network now predicts ${process.symbols[likely]} ` +
        `with ${percent(moment.model[likely])}; the Bayes-optimal predictor with that belief gives ${percent(held[likely])}.`;
    }
    return `${after}, the exact belief gives state ${process.states[state]} ${percent(moment.known.belief[state])}` +
      `${read ? `; regressed from the network: ${percent(read[state])}${far}` : ""}. ` +
      `The optimum predicts ${process.symbols[next]} with ${percent(moment.optimum[next])}` +
      `${moment.model ? `, the network with ${percent(moment.model[next])}` : ""}.`;
  }

  #controls() {
    const { part, session } = this;
    const { symbols } = session.process;
    part.play.addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    part.step.addEventListener("click", () => (this.stop(), this.step()));
    part.back.addEventListener("click", () => (this.stop(), this.move(this.shown - 1)));
    part.clear.addEventListener("click", () => (this.stop(), session.clear(), this.move(0)));
    part.restore.addEventListener("click", () => this.restore());
    part.hide.addEventListener("change", () => this.host.classList.toggle("secret", !part.hide.checked));
    this.keys = symbols.map((symbol, v) =>
      element("button", { type: "button", class: "key", "aria-label": `type ${symbol}`, click: () => this.type(v) }, symbol),
    );
    part.keys.append(...this.keys);
    this.host.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input[type=text], select, textarea")) return;
      const typed = symbols.findIndex((symbol) => symbol.toLowerCase() === event.key.toLowerCase());
      if (typed >= 0) this.type(typed);
    });
  }

  /** Five steps, each with a sentence and something to do. */
  #story() {
    const { part, session, host, data } = this;
    const least = () => session.process.states.map((_, s) => s).reduce((a, b) => (this.moment.known.belief[b] < this.moment.known.belief[a] ? b : a));
    const write = ["Write another belief", () => (this.shown || this.step(), this.pushTo(least()))];
    const ablate = ["Ablate a head", () => part.attention.querySelector("[aria-pressed=false]")?.click()];
    const deeds = [
      ["Type a symbol", () => this.type(this.moment.optimum.reduce((most, share, v, all) => (share > all[most] ? v : most), 0))],
      ["Hide or show the states", () => part.hide.click()],
      ["Add one symbol", () => (this.stop(), this.step())],
      ["Read another layer", () => part.layers.querySelectorAll("input")[(this.layer + data.readouts.length - 1) % data.readouts.length].click()],
      data.process.mixture ? data.model.heads && ablate : write,
    ];
    const steps = [...host.querySelectorAll("[data-step]")];
    const tales = host.querySelectorAll("[data-tale]");
    const show = (n) => {
      steps.forEach((step, at) => at === n ? step.setAttribute("aria-current", "step") : step.removeAttribute("aria-current"));
      tales.forEach((tale, at) => (tale.hidden = at !== n));
      part.try.hidden = !deeds[n];
      [part.try.textContent, this.deed] = deeds[n] || ["", null];
    };
    part.try.addEventListener("click", () => this.deed());
    steps.forEach((step, n) => step.addEventListener("click", () => show(n)));
    show(0);
  }

  #pictures() {
    const { part, session, data } = this;
    const { states, symbols } = session.process;
    const pushTo = (s) => this.pushTo(s);
    this.timeline = new Timeline(part.tape, part.attention, {
      session, move: (n) => (this.stop(), this.move(n)), silence: (head, silent) => this.silence(head, silent),
    });
    if (this.triangular) {
      this.exactPicture = new Triangle(part.exact, { states, kind: "exact" });
      this.readPicture = new Triangle(part.read, { states, kind: "model", push: (belief) => this.push(belief) });
    } else {
      this.exactPicture = new PairBars(part.exact, { names: states, push: data.process.mixture ? null : pushTo });
    }
    if (data.process.mixture) {
      const names = Array.from({ length: session.process.numComponents }, (_, m) => String(m));
      this.components = new PairBars(part.posterior, { names });
    }
    part.pushes?.append(...states.map((state, s) =>
      element("button", { type: "button", class: "small", click: () => pushTo(s) }, `to ${state}`)));
    this.predictions = new Predictions(part.laws, symbols, ["exact", "model", "ngram"]);
    this.costs = new CostChart(part.costs, { model: "network", ngram: "n-gram" });
    part.ngramName.textContent = session.ngram.title;
    this.#layers();
  }

  #layers() {
    this.layers = this.data.readouts.map((readout, layer) => {
      const name = layer ? `layer ${layer}` : this.data.tensors["embedding.weight"] ? "embedding" : "input";
      const canvas = element("canvas", { "aria-hidden": true });
      const { r2, twins } = readout.belief;
      const called = readout.name ? `${readout.name}: ` : "";
      const untrained = typeof twins === "number" ? `, untrained ${twins.toFixed(3)}` : "";
      const choice = element("input", {
        type: "radio", name: "layer", value: layer, checked: layer === this.layer,
        change: () => ((this.layer = layer), this.render(), this.drawClouds()),
      });
      this.part.layers.append(element("label", {}, choice, this.triangular ? canvas : "",
        element("span", {}, name), element("small", {}, r2 === null ? "" : `${called}R² ${r2.toFixed(3)}${untrained}`)));
      return { canvas };
    });
  }

  /** Beliefs of many sequences, exact and as read from each layer, computed in slices so that the page stays quick. */
  #sampleCloud() {
    const { session } = this;
    const sampler = new Session(this.data, 2);
    sampler.silent = new Set(session.silent);
    const next = { exact: [], read: session.readouts.map(() => []) };
    const job = (this.job = {});
    const slice = () => {
      if (this.job !== job) return;
      const until = performance.now() + Explorer.CLOUD.slice;
      while (performance.now() < until && next.exact.length < Explorer.CLOUD.points) {
        if (sampler.full) sampler.clear();
        sampler.speak();
        const moment = sampler.moments.at(-1);
        next.exact.push(moment.known.belief);
        next.read.forEach((points, layer) => points.push(this.#read(layer, moment)));
      }
      const done = next.exact.length >= Explorer.CLOUD.points;
      const [now, before] = [next, this.cloud].map((cloud) => cloud?.exact.length ?? 0);
      if (done || (!this.cloud?.whole && now > 1.5 * before)) {
        this.cloud = { exact: next.exact.slice(), read: next.read.map((points) => points.slice()), whole: done };
        this.drawClouds();
      }
      if (!done) setTimeout(slice, 0);
    };
    slice();
  }
}
