"use strict";

/**
 * A hidden Markov model, or a mixture of several, and its ideal observer.
 *
 * What the observer knows is {following, belief, posterior}: for each component the law of the state that emits next, the
 * belief about the state (over all components), and the law of the component.
 */
class HiddenProcess {
  constructor(packed) {
    for (const name of ["initial", "weights", "transition", "emission", "labelled"]) {
      this[name] = packed[name] ? Numbers.unpack(packed[name]) : null;
    }
    this.symbols = packed.symbols;
    this.states = packed.states;
    this.numStates = packed.states.length;
    this.numSymbols = packed.symbols.length;
    this.numComponents = this.weights.length;
    this.shows = this.#shows();
  }

  begin() {
    const following = Array.from({ length: this.numComponents }, (_, m) => this.#initial(m));
    return this.#known(following, following, Float64Array.from(this.weights));
  }

  /** After a symbol; a `restart` draws the state anew before it. Null if the symbol is impossible. */
  see(known, symbol, restart) {
    const following = restart ? known.following.map((_, m) => this.#initial(m)) : known.following;
    const beliefs = following.map((law, m) => this.#absorb(m, law, symbol));
    const posterior = known.posterior.map((weight, m) => weight * Numbers.norm(beliefs[m]));
    if (!(Numbers.norm(posterior) > 0)) return null;
    Numbers.normalise(posterior);
    beliefs.forEach(Numbers.normalise);
    return this.#known(beliefs.map((belief, m) => this.#next(m, belief)), beliefs, posterior);
  }

  /** The law of the next symbol. */
  predict(known, restart) {
    const law = new Float64Array(this.numSymbols);
    known.posterior.forEach((weight, m) => {
      const following = restart ? this.#initial(m) : known.following[m];
      following.forEach((mass, s) => {
        for (let v = 0; v < law.length; v++) law[v] += weight * mass * this.#show(m, s, v);
      });
    });
    return law;
  }

  /** What an observer of the first component with this belief, after a symbol, expects next. */
  expect(belief) {
    return this.predict({ following: [this.#next(0, Float64Array.from(belief))], posterior: [1] }, false);
  }

  /** A hidden {component, state} that agrees with what is known: the state that emits next. */
  imagine(known, restart, uniform) {
    const component = Numbers.draw(known.posterior, uniform);
    return { component, state: Numbers.draw(restart ? this.#initial(component) : known.following[component], uniform) };
  }

  /** A symbol from a hidden state that is about to emit: {symbol, shown, next}, the state shown and the one to emit next. */
  speak({ component, state }, uniform) {
    if (this.emission) {
      const symbol = Numbers.draw(this.#row(this.emission, component, state), uniform);
      return { symbol, shown: state, next: Numbers.draw(this.#row(this.transition, component, state), uniform) };
    }
    const { numStates: S, numSymbols: V } = this;
    const law = new Float64Array(V * S).map((_, at) => this.labelled[this.#edge(component, Math.floor(at / S), state) + (at % S)]);
    const drawn = Numbers.draw(law, uniform);
    return { symbol: Math.floor(drawn / S), shown: drawn % S, next: drawn % S };
  }

  #known(following, beliefs, posterior) {
    const belief = new Float64Array(this.numStates);
    posterior.forEach((weight, m) => beliefs[m].forEach((mass, s) => (belief[s] += weight * mass)));
    return { following, belief, posterior };
  }

  #absorb(m, law, symbol) {
    if (this.emission) return law.map((mass, s) => mass * this.#show(m, s, symbol));
    const out = new Float64Array(this.numStates);
    law.forEach((mass, i) => {
      const at = this.#edge(m, symbol, i);
      for (let j = 0; j < out.length; j++) out[j] += mass * this.labelled[at + j];
    });
    return out;
  }

  #next(m, belief) {
    if (!this.transition) return belief;
    const out = new Float64Array(this.numStates);
    belief.forEach((mass, s) => this.#row(this.transition, m, s).forEach((step, j) => (out[j] += mass * step)));
    return out;
  }

  /** P(symbol | state that is about to emit), component by component. */
  #shows() {
    if (this.emission) return this.emission;
    const { numComponents: M, numStates: S, numSymbols: V } = this;
    const shows = new Float64Array(M * S * V);
    for (let m = 0; m < M; m++) for (let v = 0; v < V; v++) for (let i = 0; i < S; i++) {
      const at = this.#edge(m, v, i);
      shows[(m * S + i) * V + v] = Numbers.norm(this.labelled.subarray(at, at + S));
    }
    return shows;
  }

  #show(m, s, v) {
    return this.shows[(m * this.numStates + s) * this.numSymbols + v];
  }

  #edge(m, v, i) {
    return ((m * this.numSymbols + v) * this.numStates + i) * this.numStates;
  }

  #row(array, m, s) {
    const width = array.shape[2];
    const start = (m * this.numStates + s) * width;
    return array.subarray(start, start + width);
  }

  #initial(m) {
    return Float64Array.from(this.initial.subarray(m * this.numStates, (m + 1) * this.numStates));
  }
}

/** n-grams p_k = (count + p_{k-1}) / (total + 1) on uniform: counted in training, or in the sequence itself. */
class NGram {
  constructor(data, numSymbols) {
    this.tables = data ? data.tables.map(Numbers.unpack) : null;
    this.numSymbols = numSymbols;
    this.order = data ? data.tables.length - 1 : 1;
  }

  get title() {
    const words = ["order 0 (symbol frequencies)", "order 1", "order 2"][this.order];
    return this.tables ? `n-gram, ${words}` : `n-gram of this sequence, ${words}`;
  }

  /** After these symbols, at this position in its sequence; `positions` are those of the symbols. */
  predict(symbols, positions, position) {
    let law = new Float64Array(this.numSymbols).fill(1 / this.numSymbols);
    for (let k = 0; k <= Math.min(this.order, position); k++) {
      const counts = this.tables ? this.#trained(symbols, k) : this.#seen(symbols, positions, k);
      const total = Numbers.norm(counts);
      law = law.map((lower, v) => (counts[v] + lower) / (total + 1));
    }
    return law;
  }

  #trained(symbols, k) {
    const context = symbols.slice(symbols.length - k).reduce((code, symbol) => code * this.numSymbols + symbol, 0);
    return this.tables[k].subarray(context * this.numSymbols, (context + 1) * this.numSymbols);
  }

  #seen(symbols, positions, k) {
    const counts = new Float64Array(this.numSymbols);
    for (let u = k; u < symbols.length; u++) {
      const same = positions[u] >= k && (k === 0 || symbols[u - 1] === symbols.at(-1));
      if (same) counts[symbols[u]] += 1;
    }
    return counts;
  }
}
