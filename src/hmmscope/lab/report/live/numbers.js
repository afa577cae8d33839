"use strict";

/** Packed arrays, the functions that a network needs, and a seeded generator. */
const Numbers = (() => {
  const KINDS = { "<f4": Float32Array, "<f8": Float64Array };

  /** {type, shape, data} with base64 data, as a flat array with its shape. */
  function unpack({ type, shape, data }) {
    const bytes = Uint8Array.from(atob(data), (char) => char.charCodeAt(0));
    return Object.assign(new KINDS[type](bytes.buffer), { shape });
  }

  /** weight x + bias for a weight of (out, in); what the bias is added to may be given. */
  function linear(weight, bias, x, out = new Float64Array(weight.shape[0])) {
    const width = x.length;
    for (let o = 0, at = 0; o < out.length; o++) {
      let sum = bias ? bias[o] : 0;
      for (let i = 0; i < width; i++) sum += weight[at++] * x[i];
      out[o] = sum;
    }
    return out;
  }

  /** x matrix (+ offset) for a matrix of (in, out). */
  function times(x, matrix, offset) {
    const width = matrix.shape.at(-1);
    const out = offset ? Float64Array.from(offset) : new Float64Array(width);
    for (let i = 0, at = 0; i < x.length; i++) for (let o = 0; o < width; o++) out[o] += x[i] * matrix[at++];
    return out;
  }

  function addTo(x, y) {
    for (let i = 0; i < x.length; i++) x[i] += y[i];
    return x;
  }

  function layerNorm(x, weight, bias) {
    let mean = 0;
    for (const value of x) mean += value / x.length;
    let variance = 1e-5;
    for (const value of x) variance += (value - mean) ** 2 / x.length;
    const scale = 1 / Math.sqrt(variance);
    return x.map((value, i) => (value - mean) * scale * weight[i] + bias[i]);
  }

  function softmax(logits) {
    const most = logits.reduce((a, b) => Math.max(a, b), -Infinity);
    const out = Float64Array.from(logits, (value) => Math.exp(value - most));
    return normalise(out);
  }

  /** A law from weights, in place; its sum before is the second answer of `norm`. */
  function normalise(weights) {
    const sum = norm(weights);
    if (sum > 0) for (let i = 0; i < weights.length; i++) weights[i] /= sum;
    return weights;
  }

  function norm(weights) {
    let sum = 0;
    for (const value of weights) sum += value;
    return sum;
  }

  /** The error function to 1.2e-7 (Numerical Recipes, erfcc). */
  function erf(x) {
    const t = 1 / (1 + Math.abs(x) / 2);
    const terms = [0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196];
    const series = terms.reduce((sum, term) => sum * t + term, 0);
    const rest = t * Math.exp(-x * x - 1.26551223 + t * (1.00002368 + t * series));
    return x >= 0 ? 1 - rest : rest - 1;
  }

  const gelu = (x) => (x * (1 + erf(x * Math.SQRT1_2))) / 2;
  const sigmoid = (x) => 1 / (1 + Math.exp(-x));

  /** KL divergence in nats of `law` from `exact`. */
  function divergence(exact, law) {
    let sum = 0;
    for (let v = 0; v < exact.length; v++) if (exact[v] > 0) sum += exact[v] * Math.log(exact[v] / law[v]);
    return Math.max(sum, 0);
  }

  /** Uniform numbers in [0, 1) from a seed (mulberry32). */
  function generator(seed) {
    let state = seed >>> 0;
    return () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let mixed = Math.imul(state ^ (state >>> 15), state | 1);
      mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
      return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
    };
  }

  /** An index drawn with these weights. */
  function draw(weights, uniform) {
    let left = uniform() * norm(weights);
    for (let i = 0; i < weights.length; i++) if ((left -= weights[i]) < 0) return i;
    return weights.findLastIndex((weight) => weight > 0);
  }

  return {
    unpack, linear, times, addTo, layerNorm, softmax, normalise, norm, erf, gelu, sigmoid, divergence, generator, draw,
  };
})();
