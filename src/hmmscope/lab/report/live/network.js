"use strict";

/**
 * Trained networks, one column at a time. `begin` gives an empty memory, `step` reads a token into it and answers with
 * {streams, patterns, law}: the stream after the embedding and each layer, each head's attention over the columns so far,
 * and the law of the next symbol. `rewind` forgets all but the first columns.
 *
 * Edits: `silent` holds heads as "layer.head", whose output is zero; `push` adds `delta` to the stream `layer` of `column`.
 */
class Decoder {
  constructor(about, tensors) {
    this.about = about;
    this.tensors = tensors;
    this.width = tensors["embedding.weight"].shape[1];
    this.headWidth = this.width / about.heads;
  }

  begin() {
    return { length: 0, keys: this.#perLayer(), values: this.#perLayer() };
  }

  rewind(memory, columns) {
    memory.length = Math.min(memory.length, columns);
    for (const kept of [...memory.keys, ...memory.values]) kept.length = memory.length;
  }

  step(memory, token, { silent = new Set(), push = null } = {}) {
    const at = memory.length++;
    let x = this.#placed(this.#row("embedding.weight", token), at);
    const streams = [];
    const patterns = [];
    const tap = (layer) => {
      if (push && push.layer === layer && push.column === at) x = Numbers.addTo(Float64Array.from(x), push.delta);
      streams.push(Float64Array.from(x));
    };
    tap(0);
    for (let layer = 0; layer < this.about.layers; layer++) {
      const name = `blocks.${layer}`;
      const { mixed, looks } = this.#attend(memory, layer, this.#normed(`${name}.attention_norm`, x), at, silent);
      patterns.push(looks);
      Numbers.addTo(x, this.#linear(`${name}.attention.out`, mixed));
      if (this.tensors[`${name}.mlp.hidden.weight`]) {
        const hidden = this.#linear(`${name}.mlp.hidden`, this.#normed(`${name}.mlp_norm`, x)).map(Numbers.gelu);
        Numbers.addTo(x, this.#linear(`${name}.mlp.out`, hidden));
      }
      tap(layer + 1);
    }
    return { streams, patterns, law: Numbers.softmax(this.#linear("head", this.#normed("norm", x))) };
  }

  #attend(memory, layer, x, at, silent) {
    const { width, headWidth } = this;
    const { heads, scale } = this.about;
    const qkv = this.#linear(`blocks.${layer}.attention.qkv`, x);
    const [query, key, value] = [0, 1, 2].map((part) => qkv.subarray(part * width, (part + 1) * width));
    if (this.about.positions === "rotary") for (const turned of [query, key]) this.#rotate(turned, at);
    memory.keys[layer].push(key);
    memory.values[layer].push(value);
    const mixed = new Float64Array(width);
    const looks = [];
    for (let head = 0; head < heads; head++) {
      const [from, to] = [head * headWidth, (head + 1) * headWidth];
      const logits = memory.keys[layer].map((past) => {
        let product = 0;
        for (let i = from; i < to; i++) product += query[i] * past[i];
        return product * scale;
      });
      const pattern = Numbers.softmax(logits);
      looks.push(pattern);
      if (silent.has(`${layer}.${head}`)) continue;
      pattern.forEach((weight, u) => {
        const past = memory.values[layer][u];
        for (let i = from; i < to; i++) mixed[i] += weight * past[i];
      });
    }
    return { mixed, looks };
  }

  /** Turns the pairs (i, i + half) of each head by position * base^(-2i / head width). */
  #rotate(x, position) {
    const half = this.headWidth / 2;
    for (let start = 0; start < x.length; start += this.headWidth) {
      for (let i = start; i < start + half; i++) {
        const angle = position * this.about.rotary_base ** ((-2 * (i - start)) / this.headWidth);
        const [cos, sin, first, second] = [Math.cos(angle), Math.sin(angle), x[i], x[i + half]];
        x[i] = first * cos - second * sin;
        x[i + half] = second * cos + first * sin;
      }
    }
  }

  /** The embedding with what says where the column stands. */
  #placed(x, at) {
    if (this.tensors["features.weight"]) {
      const angle = (at * Math.PI) / (4 * (this.about.max_length - 1));
      Numbers.addTo(x, this.#linear("features", [Math.sin(angle), Math.cos(angle), 1]));
    }
    if (this.about.positions === "learned") Numbers.addTo(x, this.#row("positions", at));
    if (this.about.positions === "sinusoidal") {
      const half = this.width / 2;
      for (let i = 0; i < half; i++) {
        const angle = at * 10000 ** ((-2 * i) / this.width);
        x[i] += Math.sin(angle);
        x[i + half] += Math.cos(angle);
      }
    }
    return x;
  }

  #perLayer() {
    return Array.from({ length: this.about.layers }, () => []);
  }

  #row(name, row) {
    return Float64Array.from(this.tensors[name].subarray(row * this.width, (row + 1) * this.width));
  }

  #linear(name, x) {
    return Numbers.linear(this.tensors[`${name}.weight`], this.tensors[`${name}.bias`], x);
  }

  #normed(name, x) {
    const weight = this.tensors[`${name}.weight`];
    return weight ? Numbers.layerNorm(x, weight, this.tensors[`${name}.bias`]) : x;
  }
}

/** torch.nn.RNN (relu, tanh), LSTM and GRU on one-hot tokens or on rows of a table. A push moves the state itself, so that it is carried on. */
class Recurrent {
  constructor(about, tensors) {
    this.about = about;
    this.tensors = tensors;
    this.width = tensors["head.weight"].shape[1];
  }

  begin() {
    return { length: 0, states: [this.#first()] };
  }

  rewind(memory, columns) {
    memory.length = Math.min(memory.length, columns);
    memory.states.length = memory.length + 1;
  }

  step(memory, token, { push = null } = {}) {
    const at = memory.length++;
    let x = this.#read(token);
    if (push && push.layer === 0 && push.column === at) Numbers.addTo(x, push.delta);
    const streams = [x];
    const states = memory.states[at].map((state, layer) => {
      const next = this.#cell(layer, x, state);
      if (push && push.layer === layer + 1 && push.column === at) Numbers.addTo(next[0], push.delta);
      x = next[0];
      streams.push(x);
      return next;
    });
    memory.states.push(states);
    const logits = Numbers.linear(this.tensors["head.weight"], this.tensors["head.bias"], x);
    return { streams, patterns: [], law: Numbers.softmax(logits) };
  }

  /** The token as the first layer reads it: one-hot, or its row of a table. */
  #read(token) {
    const table = this.tensors["embedding.weight"];
    if (table) return Float64Array.from(table.subarray(token * table.shape[1], (token + 1) * table.shape[1]));
    const x = new Float64Array(this.about.tokens);
    x[token] = 1;
    return x;
  }

  #cell(layer, x, [h, c]) {
    const part = (side, input) =>
      Numbers.linear(
        this.tensors[`layers.${layer}.weight_${side}_l0`], this.tensors[`layers.${layer}.bias_${side}_l0`], input,
      );
    const [read, kept, d] = [part("ih", x), part("hh", h), this.width];
    const gate = (n, i) => Numbers.sigmoid(read[n * d + i] + kept[n * d + i]);
    if (this.about.cell === "lstm") {
      const cell = c.map((old, i) => gate(1, i) * old + gate(0, i) * Math.tanh(read[2 * d + i] + kept[2 * d + i]));
      return [cell.map((value, i) => gate(3, i) * Math.tanh(value)), cell];
    }
    if (this.about.cell === "gru") {
      return [
        h.map((old, i) => {
          const fresh = Math.tanh(read[2 * d + i] + gate(0, i) * kept[2 * d + i]);
          return fresh + gate(1, i) * (old - fresh);
        }),
      ];
    }
    const bend = this.about.cell === "relu" ? (value) => Math.max(value, 0) : Math.tanh;
    return [h.map((_, i) => bend(read[i] + kept[i]))];
  }

  #first() {
    const count = this.about.cell === "lstm" ? 2 : 1;
    const learned = this.tensors.initial;
    return Array.from({ length: this.about.layers }, (_, layer) =>
      Array.from({ length: count }, (_, n) => {
        const start = (layer * count + n) * this.width;
        return learned ? Float64Array.from(learned.subarray(start, start + this.width)) : new Float64Array(this.width);
      }),
    );
  }
}

function makeNetwork(about, packed) {
  const tensors = Object.fromEntries(Object.entries(packed).map(([name, one]) => [name, Numbers.unpack(one)]));
  return about.kind === "decoder" ? new Decoder(about, tensors) : new Recurrent(about, tensors);
}
