"use strict";

/**
 * A tape of symbols with all that observer, network and n-gram say after each of them.
 *
 * `moments[n]`, after n symbols: {known, optimum, ngram, model, streams, patterns, column, columns, cost}; the laws are of
 * the next symbol, streams and their column of the last one, and cost sums nats above the optimum. Where the network has
 * read nothing, its parts are null.
 */
class Session {
  constructor(data, seed = 1) {
    this.process = new HiddenProcess(data.process);
    this.network = makeNetwork(data.model, data.tensors);
    this.ngram = new NGram(data.ngram, this.process.numSymbols);
    this.delimiter = data.layout.delimiter ? this.process.numSymbols : null;
    this.positions = data.layout.lengths.flatMap((length) => Array.from({ length }, (_, position) => position));
    this.readouts = data.readouts.map((layer) => ({
      belief: Readout.of(layer.belief),
      component: layer.component ? Readout.of(layer.component) : null,
    }));
    this.uniform = Numbers.generator(seed);
    this.silent = new Set();
    this.push = null;
    this.clear();
  }

  get length() {
    return this.tape.length;
  }

  get full() {
    return this.length === this.positions.length;
  }

  clear() {
    this.tape = [];
    this.push = null;
    this.moments = [];
    this.#recompute();
  }

  /** Append a symbol; false if the process never shows it here, or there is no room. */
  type(symbol) {
    if (this.full || !(this.moments.at(-1).optimum[symbol] > 0)) return false;
    this.#append({ symbol, hidden: null });
    return true;
  }

  /** Append what the process says next. */
  speak() {
    if (this.full) return false;
    const last = this.tape.at(-1)?.hidden;
    const restart = this.#starts(this.length);
    const from = last && !restart
      ? { component: last.component, state: last.next }
      : this.process.imagine(this.#single(last), restart, this.uniform);
    const spoken = this.process.speak(from, this.uniform);
    this.#append({ symbol: spoken.symbol, hidden: { component: from.component, state: spoken.shown, next: spoken.next } });
    return true;
  }

  /** Keep the first n symbols. */
  rewind(n) {
    this.tape.length = n;
    this.moments.length = n + 1;
    if (this.push && this.push.column > this.moments[n].column) this.release();
    this.network.rewind(this.memory, this.moments[n].columns);
  }

  silence(head, silent) {
    this.silent[silent ? "add" : "delete"](head);
    this.#recompute();
  }

  /** Change the stream of a layer, after the n-th symbol, so that another belief is read there. */
  pushTo(n, layer, belief) {
    const moment = this.moments[n];
    const free = this.push ? this.#unpushed(n) : moment;
    const read = this.readouts[layer].belief.read(free.streams[layer]);
    const change = belief.map((wanted, s) => wanted - read[s]);
    this.push = { n, column: moment.column, layer, belief, delta: this.readouts[layer].belief.write(change) };
    this.#recompute();
  }

  release() {
    this.push = null;
    this.#recompute();
  }

  /** The component or, after a restart, what the hidden component of the tape is. */
  #single(hidden) {
    const known = this.moments.at(-1).known;
    if (!hidden) return known;
    return { ...known, posterior: known.posterior.map((_, m) => Number(m === hidden.component)) };
  }

  #starts(n) {
    return n < this.positions.length && this.positions[n] === 0;
  }

  #append(entry) {
    this.tape.push(entry);
    this.#extend();
  }

  #recompute() {
    this.moments = [];
    this.memory = this.network.begin();
    for (let n = 0; n <= this.length; n++) this.#extend();
  }

  /** The moment n without a push, for what the push is to be measured against. */
  #unpushed(n) {
    const push = this.push;
    this.push = null;
    this.#recompute();
    const found = this.moments[n];
    this.push = push;
    return found;
  }

  /** Compute the next moment. */
  #extend() {
    const n = this.moments.length;
    const before = this.moments.at(-1);
    const { process, ngram } = this;
    const seen = this.tape.slice(0, n).map((entry) => entry.symbol);
    const known = n ? process.see(before.known, seen.at(-1), this.#starts(n - 1)) : process.begin();
    const read = n ? this.#read(seen.at(-1)) : null;
    const column = this.memory.length - 1;
    const last = this.delimiter !== null && this.#starts(n) ? this.#read(this.delimiter) : read;
    const moment = {
      n,
      known,
      column,
      columns: this.memory.length,
      optimum: process.predict(known, n > 0 && this.#starts(n)),
      ngram: ngram.predict(seen, this.positions, this.positions[n] ?? this.positions.at(-1) + 1),
      model: last?.law ?? null,
      streams: read?.streams ?? null,
      patterns: last?.patterns ?? [],
    };
    moment.cost = this.#cost(before, moment);
    this.moments.push(moment);
  }

  #read(token) {
    return this.network.step(this.memory, token, { silent: this.silent, push: this.push });
  }

  /** Nats above the optimum summed so far, of the network and of the n-gram, and of how many predictions. */
  #cost(before, { optimum, model, ngram }) {
    const sum = before?.cost ?? { count: 0, model: 0, ngram: 0 };
    if (!model || this.moments.length >= this.positions.length) return sum;
    return {
      count: sum.count + 1,
      model: sum.model + Numbers.divergence(optimum, model),
      ngram: sum.ngram + Numbers.divergence(optimum, ngram),
    };
  }
}

/** The affine map from a layer to what is read there, and how the layer changes where that changes. */
class Readout {
  static of(packed) {
    return Object.assign(new Readout(), {
      r2: packed.r2,
      weights: Numbers.unpack(packed.read),
      offset: Numbers.unpack(packed.offset),
      writing: packed.write ? Numbers.unpack(packed.write) : null,
    });
  }

  read(stream) {
    return Numbers.times(stream, this.weights, this.offset);
  }

  write(change) {
    return Numbers.times(change, this.writing);
  }
}
