// SPDX-License-Identifier: Apache-2.0
// The explorer of docs/explorer.md: shows what an operator reads and what it returns.
//
// Values and weights come from the kernels themselves, compiled to WebAssembly: the weight of a
// cell in a bin is the gradient of the bin by the cell. The form is made from the operators' own
// declarations, gluon_roi_operators(). Only the places of bins and samples are computed here.
'use strict';
(() => {
const HEIGHT = 12, WIDTH = 16, CELLS = HEIGHT * WIDTH;  // of the map
const MOST = 16;  // bins, groups or parts along an axis; samples of a bin along an axis are SAMPLES
const SAMPLES = 64, ALL_SAMPLES = 2500;
const STEP = 0.1;  // of a drawing; the mouse and the arrow keys place boxes on multiples of it
const HIDDEN = ['output_dim', 'rois_grad', 'bad_index'];  // without effect on one box and channel
const HINTS = {
  sampling_ratio: 'per bin and axis; 0: adaptive',
  sample_per_part: 'per bin and axis',
  aligned: 'moves the bins by half a cell',
  convention: 'how the box is rounded',
  spatial_scale: 'cells per pixel, such as 1/16',
  group_size: 'maps per axis',
  part_size: 'offsets per axis',
  trans_std: 'factor of the offsets',
  gamma: 'factor of the offsets',
  mode: 'of the samples of a bin',
};
// Each as a function here and in NumPy, with equal results.
const PATTERNS = {
  hills: {
    value: (x, y) => Math.max(0, 36 - (x - 5) ** 2 - (y - 4) ** 2) +
      Math.max(0, 25 - (x - 11) ** 2 - (y - 8) ** 2),
    python: 'np.maximum(0, 36 - (x - 5) ** 2 - (y - 4) ** 2)\n' +
      'cells += np.maximum(0, 25 - (x - 11) ** 2 - (y - 8) ** 2)',
  },
  ramp: { value: (x, y) => x + 16 * y, python: 'x + 16 * y' },
  'single cell': { value: (x, y) => Number(x === 8 && y === 6), python: '(x == 8) & (y == 6)' },
  checks: { value: (x, y) => (x + y) % 2, python: '(x + y) % 2' },
};
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const TURNS = { '+': 5, '-': -5 };  // degrees
const ROLL = 5;  // cells along x by which a score map differs from the one before it

// ---- The kernels --------------------------------------------------------------------------------

class Kernels {
  constructor(module) {
    this.module = module;
    const text = module.UTF8ToString(module._gluon_roi_operators());
    const all = JSON.parse(text);
    this.all = new Map(all.map((operator) => [operator.name, operator]));
    // Those that pool the boxes of one map.
    this.operators = new Map(all
      .filter(({ inputs: [data, rois] }) => !data.several && rois && rois.role === 'rois')
      .map((operator) => [operator.name, operator]));
  }

  // The output (float32) of inputs { shape, values }.
  forward(operator, values, inputs, shape) {
    const out = { shape, values: null };
    this.call(operator, 'forward', values, inputs, [[out]]);
    return out.values;
  }

  // The gradient of data, if `slope` { shape, values } is that of the output.
  backward(operator, values, inputs, slope) {
    const gradient = { shape: inputs[0].shape, values: null };
    const others = inputs.slice(1).map(() => null);
    this.call(operator, 'backward', values, inputs, [[slope], [gradient, ...others]]);
    return gradient.values;
  }

  // Arrays without values are outputs: the kernel fills them.
  call(operator, way, values, inputs, others) {
    const { module } = this, taken = [], outputs = [];
    const take = (bytes) => {
      const place = module._malloc(Math.max(bytes, 8));
      taken.push(place);
      if (!place) throw Error('The browser gives the kernels no more memory.');
      module.HEAPU8.fill(0, place, place + bytes);
      return place;
    };
    // An array of gluon_roi_tensor, as gluon_roi.h declares it, with pointers of 4 bytes.
    const tensors = (list) => {
      const start = take(48 * list.length);
      list.forEach((tensor, index) => {
        if (!tensor) return;
        const data = take(4 * tensor.shape.reduce((a, b) => a * b));
        if (tensor.values) module.HEAPF32.set(tensor.values, data / 4);
        else outputs.push([tensor, data]);
        const place = (start + 48 * index) / 4;
        module.HEAP32[place] = data;
        module.HEAP32[place + 2] = tensor.shape.length;
        tensor.shape.forEach((size, axis) => { module.HEAP32[place + 4 + 2 * axis] = size; });
      });
      return start;
    };
    try {
      const params = take(operator.params_size);
      for (const param of operator.params) {
        const numbers = numbersOf(param, values[param.name]);
        param.fields.forEach(([type, offset], index) => {
          const place = params + offset;
          if (type === 'double') module.HEAPF64[place / 8] = numbers[index];
          else module.HEAP32[place / 4] = numbers[index];
        });
      }
      const tables = [tensors(inputs), inputs.length, ...others.map(tensors)];
      const call = module[`_gluon_roi_${operator.symbol}_${way}`];
      if (call(params, ...tables, take(16))) {
        throw Error(module.UTF8ToString(module._gluon_roi_last_error()));
      }
      for (const [tensor, data] of outputs) {
        const size = tensor.shape.reduce((a, b) => a * b);
        tensor.values = module.HEAPF32.slice(data / 4, data / 4 + size);
      }
    } finally {
      taken.forEach((place) => module._free(place));
    }
  }
}

// The numbers that the C interface takes for a value of the form; undefined: the default.
function numbersOf({ name, kind, default: text, fields, choices }, value = defaultOf(kind, text)) {
  if (value === null) return fields.map(() => 0);
  if (kind === 'choice') return [choices[value]];
  if (kind === 'boolean') return [Number(value)];
  const numbers = [value].flat().map(Number);
  if (kind === 'positive' || kind === 'number') return numbers;
  for (const number of numbers) {
    if (Number.isNaN(number)) throw Error(`${name}: expected a whole number`);
    if (!Number.isInteger(number)) throw Error(`${name}: expected a whole number, got ${number}`);
  }
  const most = { samples: SAMPLES, integer: SAMPLES }[kind] || MOST;
  if (Math.max(...numbers) > most) {
    throw Error(`${name}: this page draws up to ${most}, got ${Math.max(...numbers)}`);
  }
  if (kind === 'size' && text !== null && Math.min(...numbers) < 1) {
    throw Error(`${name}: expected at least 1, got ${Math.min(...numbers)}`);
  }
  return numbers;
}

function defaultOf(kind, text) {
  if (text === null || text === 'None') return null;
  if (kind === 'boolean') return text === 'True';
  return kind === 'choice' ? text : Number(text);
}

// ---- Where bins and samples lie -----------------------------------------------------------------

const float = Math.fround;

// The grid of bins, in coordinates in which cell 0 has its centre at 0; null for operators whose
// bins are whole cells. The formulas are those of docs/operators/. grid.place(q, p) is a place in
// units of bins; samples lie grid.first and further steps into a bin.
function gridOf(operator, values, rois) {
  const [P, Q] = values.pooled_size, scale = float(values.spatial_scale);
  const box = rois.map(float), has = (name) => operator.params.some((param) => param.name === name);
  const grid = { samples: null, first: 0.5, reach: 1 };
  const offset = values.aligned ? 0.5 : 0, least = values.aligned ? -Infinity : 1;
  let start, size, theta = 0;
  if (has('sample_per_part')) {
    const round = (value) => Math.sign(value) * Math.round(Math.abs(value));
    start = [0, 1].map((axis) => round(box[axis]) * scale - 0.5);
    size = [0, 1].map((axis) =>
      Math.max((round(box[axis + 2]) + 1) * scale - 0.5 - start[axis], 0.1));
    const samples = [0, 1].map(() => values.sample_per_part);
    Object.assign(grid, { samples, first: 0, reach: 0.5 });
  } else if (operator.coordinates === 5) {
    size = [2, 3].map((axis) => Math.max(float(box[axis] * scale), least));
    theta = box[4];
    start = turned(-size[0] / 2, -size[1] / 2, theta)
      .map((value, axis) => value + box[axis] * scale - offset);
  } else if (has('sampling_ratio')) {
    start = [0, 1].map((axis) => float(float(box[axis] * scale) - offset));
    size = [0, 1].map((axis) =>
      Math.max(float(float(float(box[axis + 2] * scale) - offset) - start[axis]), least));
  } else if (has('rois_grad')) {
    start = [0, 1].map((axis) => box[axis] * scale);
    size = [0, 1].map((axis) => box[axis + 2] * scale - start[axis]);
  } else {
    return null;
  }
  if (has('sampling_ratio')) {
    const ratio = values.sampling_ratio, bins = [Q, P];
    grid.samples = size.map((length, axis) =>
      ratio > 0 ? ratio : Math.max(1, Math.ceil(float(length / bins[axis]))));
  }
  grid.size = size;
  grid.place = (q, p) =>
    turned(q * size[0] / Q, p * size[1] / P, theta).map((value, axis) => start[axis] + value);
  return grid;
}

// ---- The state ----------------------------------------------------------------------------------

const initial = () => ({
  operator: 'ROIAlign',
  rois: [2.3, 1.6, 11.4, 10.2],  // as the operator takes them, without the batch index
  theta: 30,  // for the next rotated box
  scale: 1,  // the last spatial_scale that was a number above 0
  values: { pooled_size: [3, 3], spatial_scale: '1', sampling_ratio: 2, trans_std: 0.1 },
  offsets: {},  // 'y,x' of a part -> offset [x, y]
  factors: {},  // 'y,x' of a bin -> its element of mask
  bin: [1, 1],
  pattern: 'hills',
  numbering: 'values',
  colouring: 'chosen',
});
const state = initial();
let kernels = null, view = null;

const operator = () => kernels.operators.get(state.operator);
const declares = (name) => operator().params.some((param) => param.name === name);
const turns = () => operator().coordinates === 5;
const takes = (name) => operator().inputs.some((input) => input.name === name);
// The input with the offsets; undefined for an operator without.
const offsetInput = () => ['trans', 'offset'].find(takes);
const coordinates = () => turns() ? ['cx', 'cy', 'w', 'h', 'theta'] : ['x1', 'y1', 'x2', 'y2'];
const tidy = (value) => Number(value.toFixed(4));

// "1/16" -> 0.0625; NaN, which the kernels reject, for what is no number.
function scaleOf(text) {
  const [above, below = 1, ...rest] = String(text).split('/').map((part) =>
    part.trim() ? Number(part) : NaN);
  return rest.length ? NaN : above / below;
}

// The values of all parameters of the operator, those left out with their defaults.
function currentValues() {
  const values = {};
  for (const { name, kind, default: text } of operator().params) {
    const value = HIDDEN.includes(name) ? undefined : state.values[name];
    values[name] = value === undefined ? defaultOf(kind, text) : value;
  }
  values.spatial_scale = scaleOf(state.values.spatial_scale);
  return values;
}

// The box as a centre, sides and an angle, in pixels.
function shapeOf(rois) {
  if (rois.length === 5) return { x: rois[0], y: rois[1], w: rois[2], h: rois[3], theta: rois[4] };
  const [x1, y1, x2, y2] = rois;
  return { x: (x1 + x2) / 2, y: (y1 + y2) / 2, w: x2 - x1, h: y2 - y1, theta: 0 };
}

// The other form of the box, at the same place.
function convertBox(rois) {
  const { x, y, w, h } = shapeOf(rois);
  if (rois.length === 5) {
    state.theta = rois[4];
    return [x - w / 2, y - h / 2, x + w / 2, y + h / 2].map(tidy);
  }
  return [...[x, y, w, h].map(tidy), state.theta];
}

// Along the box's own axes, seen along those of the map: (u, v) -> [x, y]; and back with -theta.
function turned(u, v, theta) {
  const cos = Math.cos(theta * Math.PI / 180), sin = Math.sin(theta * Math.PI / 180);
  return [u * cos + v * sin, v * cos - u * sin];
}

// ---- The computation ----------------------------------------------------------------------------

function mapOf(channel) {
  const { value } = PATTERNS[state.pattern], values = new Float32Array(CELLS);
  for (let y = 0; y < HEIGHT; ++y) {
    for (let x = 0; x < WIDTH; ++x) {
      const from = ((x - ROLL * channel) % WIDTH + WIDTH) % WIDTH;
      values[y * WIDTH + x] = value(from, y);
    }
  }
  return values;
}

const partsOf = (values) => values.part_size || values.pooled_size;
// The part whose offset moves bin (p, q).
const partOf = (values, p, q) => [p, q].map((index, axis) =>
  Math.floor(index * partsOf(values)[axis] / values.pooled_size[axis]));
const offsetOf = (values, p, q) => state.offsets[partOf(values, p, q)] || [0, 0];
const factorOf = (p, q) => state.factors[[p, q]] ?? 1;
// What an offset is multiplied by, besides the size of the box.
const strengthOf = (values) => offsetInput() === 'trans' ? values.trans_std : values.gamma;

// The offsets of parts that there are with these values: { y, x, offset }.
function offsetsOf(values) {
  const [rows, columns] = partsOf(values);
  return Object.entries(state.offsets).map(([part, offset]) => {
    const [y, x] = part.split(',').map(Number);
    return { y, x, offset };
  }).filter(({ y, x }) => y < rows && x < columns);
}

// The factors other than 1 of bins that there are with these values: { y, x, factor }.
function factorsOf({ pooled_size: [rows, columns] }) {
  if (!takes('mask')) return [];
  return Object.entries(state.factors).map(([bin, factor]) => {
    const [y, x] = bin.split(',').map(Number);
    return { y, x, factor };
  }).filter(({ y, x, factor }) => y < rows && x < columns && factor !== 1);
}

// The arrays of offsets and, if a factor is not 1, of factors.
function offsetInputs(values) {
  const [rows, columns] = partsOf(values), offsets = new Float32Array(2 * rows * columns);
  for (const { y, x, offset } of offsetsOf(values)) {
    offset.forEach((value, axis) => { offsets[(axis * rows + y) * columns + x] = value; });
  }
  const inputs = [{ shape: [1, 2, rows, columns], values: offsets }];
  const factors = factorsOf(values);
  if (factors.length) {
    const mask = new Float32Array(rows * columns).fill(1);
    for (const { y, x, factor } of factors) mask[y * columns + x] = factor;
    inputs.push({ shape: [1, 1, rows, columns], values: mask });
  }
  return inputs;
}

// Everything that is drawn.
function compute() {
  const values = currentValues(), op = operator();
  coordinates().forEach((name, index) => {
    if (!Number.isFinite(state.rois[index])) throw Error(`${name}: expected a number`);
  });
  op.params.forEach((param) => numbersOf(param, values[param.name]));
  const [P, Q] = values.pooled_size, count = P * Q;
  let groups = [1, 1];
  if (declares('group_size')) groups = values.group_size || values.pooled_size;
  else if (declares('output_dim')) groups = values.pooled_size;
  const channels = groups[0] * groups[1];

  const data = new Float32Array(channels * CELLS);
  for (let channel = 0; channel < channels; ++channel) data.set(mapOf(channel), channel * CELLS);
  const rois = { shape: [1, op.coordinates + 1], values: [0, ...state.rois] };
  const inputs = [{ shape: [1, channels, HEIGHT, WIDTH], values: data }, rois];
  if (offsetInput()) inputs.push(...offsetInputs(values));
  const shape = [1, 1, P, Q];
  const out = kernels.forward(op, values, inputs, shape);

  const grid = gridOf(op, values, state.rois);
  // An operator without a grid and without score maps is a maximum, whose gradient goes to one cell
  // or one sample. Maps of a single 1 tell which cells a bin reads.
  let read = null;
  if ((!grid && channels === 1) || values.mode === 'max') {
    const single = new Float32Array(CELLS * CELLS);
    for (let cell = 0; cell < CELLS; ++cell) single[cell * CELLS + cell] = 1;
    const probe = { shape: [1, CELLS, HEIGHT, WIDTH], values: single };
    read = kernels.forward(op, values, [probe, rois], [1, CELLS, P, Q]);
  }
  const bins = [];
  for (let index = 0; index < count; ++index) {
    const slope = new Float32Array(count), [p, q] = [Math.floor(index / Q), index % Q];
    slope[index] = 1;
    const gradient = kernels.backward(op, values, inputs, { shape, values: slope });
    const first = gradient.findIndex((weight) => weight !== 0);
    const channel = first < 0 ? 0 : Math.floor(first / CELLS);
    const weights = gradient.slice(channel * CELLS, (channel + 1) * CELLS);
    const cells = [];
    for (let cell = 0; cell < CELLS; ++cell) {
      if (read ? read[cell * count + index] : weights[cell]) cells.push(cell);
    }
    bins.push({ p, q, value: out[index], channel, weights, cells, maximum: read !== null });
  }
  for (const bin of bins) place(bin, values, grid);
  return { values, channels, bins, grid, P, Q };
}

// The corners and the samples of a bin, on the map as it is drawn, where cell 0 begins at 0.
function place(bin, values, grid) {
  const { p, q, cells } = bin;
  bin.samples = [];
  if (!grid) {
    const xs = cells.map((cell) => cell % WIDTH);
    const ys = cells.map((cell) => Math.floor(cell / WIDTH));
    const [left, right] = [Math.min(...xs), Math.max(...xs) + 1];
    const [top, bottom] = [Math.min(...ys), Math.max(...ys) + 1];
    bin.corners = cells.length ? [[left, top], [right, top], [right, bottom], [left, bottom]] : [];
    return;
  }
  const shift = offsetInput() ? offsetOf(values, p, q).map((offset, axis) =>
    offset * strengthOf(values) * grid.size[axis]) : [0, 0];
  const at = (x, y) => grid.place(x, y).map((value, axis) => value + shift[axis] + 0.5);
  bin.corners = [at(q, p), at(q + 1, p), at(q + 1, p + 1), at(q, p + 1)];
  if (!grid.samples) return;
  const [across, down] = grid.samples;
  if (across * down * values.pooled_size[0] * values.pooled_size[1] > ALL_SAMPLES) return;
  for (let j = 0; j < down; ++j) {
    for (let i = 0; i < across; ++i) {
      const [x, y] = at(q + (i + grid.first) / across, p + (j + grid.first) / down);
      const inside = [[x, WIDTH], [y, HEIGHT]].every(([value, size]) =>
        value >= 0.5 - grid.reach && value <= size - 0.5 + grid.reach);
      bin.samples.push({ x, y, inside });
    }
  }
  if (bin.maximum) markLargest(bin);
}

// The place of a maximum of samples: the mean of the cells, by the weights that the sample has.
function largestOf({ cells, weights }) {
  const place = [0, 0];
  for (const cell of cells) {
    place[0] += weights[cell] * (cell % WIDTH);
    place[1] += weights[cell] * Math.floor(cell / WIDTH);
  }
  return place;
}

// Samples past the centre of a border cell have the value there, and the first of them counts.
function markLargest(bin) {
  const largest = largestOf(bin);
  let near = Infinity, found = null;
  for (const sample of bin.samples.filter(({ inside }) => inside)) {
    const away = [[sample.x, WIDTH], [sample.y, HEIGHT]].map(([value, size], axis) =>
      Math.min(Math.max(value - 0.5, 0), size - 1) - largest[axis]);
    const far = Math.hypot(...away);
    if (far < near - 1e-4) [near, found] = [far, sample];
  }
  if (found) found.largest = true;
}

// ---- Drawing ------------------------------------------------------------------------------------

const find = (name) => document.getElementById(`explorer-${name}`);

function element(tag, attributes = {}, ...children) {
  const svg = ['rect', 'text', 'polygon', 'circle', 'line', 'path', 'g'].includes(tag);
  const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) :
    document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const hue = ({ p, q }) => (p * 97 + q * 137.5 + 210) % 360;
const points = (corners) => corners.map((corner) => corner.map(tidy).join(',')).join(' ');
const short = (number, digits = 4) => String(Number(number.toPrecision(digits)));

// ".125", at most four characters.
function shortWeight(weight) {
  const text = short(Number(weight.toFixed(3))).replace(/^0\./, '.');
  return text === '0' ? '≈0' : text;
}

function drawCells(chosen) {
  const values = mapOf(chosen.channel), high = Math.max(...mapOf(0));
  const weighted = state.numbering === 'weights', drawn = [], texts = [];
  for (let cell = 0; cell < CELLS; ++cell) {
    const [x, y] = [cell % WIDTH, Math.floor(cell / WIDTH)];
    const opacity = tidy(0.34 * values[cell] / high);
    drawn.push(element('rect', { x, y, width: 1, height: 1, 'fill-opacity': opacity }));
    const weight = chosen.weights[cell] ? shortWeight(chosen.weights[cell]) : '';
    const text = weighted ? weight : short(values[cell]);
    const place = { x: x + 0.5, y: y + 0.5, class: text.length > 3 ? 'explorer-long' : '' };
    if (text) texts.push(element('text', place, text));
  }
  find('cells').replaceChildren(...drawn);
  find('texts').replaceChildren(...texts);
}

function drawBins(chosen) {
  const all = state.colouring === 'all', weights = [], outlines = [], samples = [];
  for (const bin of all ? view.bins : [chosen]) {
    const high = bin.maximum ? 1.6 : Math.max(...bin.cells.map((cell) => bin.weights[cell]));
    for (const cell of bin.cells) {
      const share = bin.maximum ? 0.3 + bin.weights[cell] : bin.weights[cell] / high;
      const attributes = { x: cell % WIDTH, y: Math.floor(cell / WIDTH), width: 1, height: 1,
        'data-weight': bin.weights[cell],
        'fill-opacity': tidy(0.1 + 0.45 * Math.max(share, 0)) };
      if (all) attributes.style = `fill: hsl(${hue(bin)} 75% 50%)`;
      weights.push(element('rect', attributes));
    }
  }
  for (const bin of [...view.bins.filter((bin) => bin !== chosen), chosen]) {
    const marked = bin === chosen ? 'explorer-chosen' : '';
    outlines.push(element('polygon', { points: points(bin.corners), class: marked }));
    for (const { x, y, inside, largest } of bin.samples) {
      const r = (bin === chosen ? 0.12 : 0.08) + (largest ? 0.06 : 0);
      const kind = [marked, inside ? '' : 'explorer-outside', largest ? 'explorer-largest' : '']
        .filter(Boolean).join(' ');
      samples.push(element('circle', { cx: tidy(x), cy: tidy(y), r, class: kind,
        'data-bin': `${bin.p},${bin.q}` }));
    }
  }
  find('weights').replaceChildren(...weights);
  find('bins').replaceChildren(...outlines);
  find('samples').replaceChildren(...samples);
}

// Where the box can be taken: on the map as it is drawn.
function handles() {
  const scale = scaleOf(state.values.spatial_scale), { x, y, w, h, theta } = shapeOf(state.rois);
  const at = (u, v) => {
    const [dx, dy] = turned(u * scale, v * scale, theta);
    return { x: x * scale + dx, y: y * scale + dy };
  };
  const list = [[0, 0], [1, 0], [1, 1], [0, 1]].map(([right, low]) =>
    ({ kind: 'corner', right, low, ...at((right - 0.5) * w, (low - 0.5) * h) }));
  if (turns()) {
    const away = 1.1 / scale * Math.sign(h || 1);
    list.unshift({ kind: 'turn', ...at(0, -h / 2 - away), from: at(0, -h / 2) });
  }
  const bin = view && chosenBin();
  if (offsetInput() && bin && bin.corners.length) {
    const [begin, end] = [bin.corners[0], bin.corners[2]];
    list.unshift({ kind: 'offset', x: (begin[0] + end[0]) / 2, y: (begin[1] + end[1]) / 2 });
  }
  return list;
}

function drawBox() {
  const drawn = [], all = handles(), corners = all.filter(({ kind }) => kind === 'corner');
  if (corners.some(({ x, y }) => !Number.isFinite(x + y))) return find('box').replaceChildren();
  drawn.push(element('polygon', { points: points(corners.map(({ x, y }) => [x, y])) }));
  find('box').replaceChildren(...drawn, ...all.flatMap(handleShapes));
}

// What is drawn for a handle: a square on a corner, a circle elsewhere, and a line to its box.
function handleShapes({ kind, x, y, from }) {
  if (kind === 'corner') {
    return [element('rect', { x: x - 0.17, y: y - 0.17, width: 0.34, height: 0.34 })];
  }
  const line = from ? [element('line', { x1: from.x, y1: from.y, x2: x, y2: y })] : [];
  return [...line, element('circle', { cx: x, cy: y, r: kind === 'turn' ? 0.24 : 0.3,
    class: `explorer-${kind}` })];
}

function drawOutput(chosen) {
  const focused = find('output').contains(document.activeElement);
  const high = Math.max(...view.bins.map((bin) => Math.abs(bin.value))) || 1;
  const digits = view.Q > 10 ? 2 : view.Q > 5 ? 3 : 5, rows = [];
  for (let p = 0; p < view.P; ++p) {
    const row = element('tr', { role: 'row' });
    for (const bin of view.bins.slice(p * view.Q, (p + 1) * view.Q)) {
      const cell = element('td', { role: 'gridcell', tabindex: bin === chosen ? 0 : -1,
        'aria-selected': bin === chosen, 'aria-label': `bin ${bin.p}, ${bin.q}: ${bin.value}`,
        'data-bin': `${bin.p},${bin.q}`, 'data-value': bin.value, title: bin.value });
      const shade = tidy(0.34 * Math.max(bin.value, 0) / high);
      cell.style.setProperty('--shade', shade);
      if (state.colouring === 'all') cell.style.setProperty('--hue', hue(bin));
      cell.append(element('span', {}, short(bin.value, digits)));
      row.append(cell);
      if (focused && bin === chosen) requestAnimationFrame(() => cell.focus());
    }
    rows.push(row);
  }
  find('output').className = view.Q > 5 ? 'explorer-many' : '';
  find('output').dataset.coloured = state.colouring;
  find('output').replaceChildren(...rows);
}

const plural = (count, noun) => `${count} ${noun}${count === 1 ? '' : 's'}`;

function describe(bin) {
  const { cells, weights } = bin;
  let text = `Bin (${bin.p}, ${bin.q}) is ${short(bin.value, 6)}: `;
  if (!cells.length) return `${text}it reads no cell.`;
  if (bin.maximum && view.grid) {
    const count = view.grid.samples[0] * view.grid.samples[1];
    const [x, y] = largestOf(bin).map((value) => short(value, 4));
    return `${text}the largest of ${plural(count, 'sample')}, ` +
      `which read ${plural(cells.length, 'cell')}, found at column ${x}, row ${y}.`;
  }
  if (bin.maximum) {
    const cell = weights.findIndex((weight) => weight);
    return `${text}the maximum of ${plural(cells.length, 'cell')}, ` +
      `found in column ${cell % WIDTH} and row ${Math.floor(cell / WIDTH)}.`;
  }
  const used = cells.map((cell) => weights[cell]);
  const [low, high] = [Math.min(...used), Math.max(...used)];
  if (view.grid && view.grid.samples) {
    const [across, down] = view.grid.samples;
    text += `the mean of ${across} × ${down} samples, which read ${plural(cells.length, 'cell')}`;
  } else {
    text += view.grid ? 'the mean of the surface over ' : 'the mean of ';
    text += plural(cells.length, 'cell');
  }
  if (takes('mask') && factorOf(bin.p, bin.q) !== 1) {
    text += `, times ${short(factorOf(bin.p, bin.q))}`;
  }
  if (view.channels > 1) text += ` of score map ${bin.channel}`;
  const range = low === high ? `${short(low)}` : `${short(low, 3)} to ${short(high, 3)}`;
  return `${text}. Weight${low === high ? '' : 's'}: ${range}.`;
}

// The same call in Python, as a program.
function python() {
  const op = operator(), { values, channels } = view;
  const lines = ['import mxnet as mx, numpy as np, gluon_roi', '',
    `y, x = np.mgrid[:${HEIGHT}, :${WIDTH}]`, `cells = ${PATTERNS[state.pattern].python}`];
  if (channels > 1) {
    lines.push(`cells = [np.roll(cells, ${ROLL} * k, axis=1) for k in range(${channels})]`);
    lines.push('data = mx.nd.array([cells])');
  } else {
    lines.push('data = mx.nd.array([[cells]])');
  }
  const names = coordinates().join(', ');
  lines.push(`rois = mx.nd.array([[0, ${state.rois.join(', ')}]])  # image 0; ${names}`);
  const call = ['data', 'rois'];
  const moved = offsetInput();
  if (moved) {
    const [rows, columns] = partsOf(values);
    lines.push(`${moved} = mx.nd.zeros((1, 2, ${rows}, ${columns}))`);
    for (const { y, x, offset } of offsetsOf(values)) {
      offset.forEach((value, axis) => {
        if (value) lines.push(`${moved}[0, ${axis}, ${y}, ${x}] = ${value}`);
      });
    }
    call.push(moved);
    const factors = factorsOf(values);
    if (factors.length) {
      lines.push(`mask = mx.nd.ones((1, 1, ${rows}, ${columns}))`);
      for (const { y, x, factor } of factors) lines.push(`mask[0, 0, ${y}, ${x}] = ${factor}`);
      call.push('mask');
    }
  }
  for (const { name, kind, default: text } of op.params) {
    const value = values[name];
    if (text !== null && String(value) === String(defaultOf(kind, text))) continue;
    let shown = String(value);
    if (name === 'spatial_scale') shown = String(state.values.spatial_scale).trim();
    else if (kind === 'choice') shown = `'${value}'`;
    else if (kind === 'boolean') shown = value ? 'True' : 'False';
    else if (kind === 'size') {
      shown = value[0] === value[1] ? String(value[0]) : `(${value.join(', ')})`;
    }
    call.push(`${name}=${shown}`);
  }
  lines.push(`gluon_roi.nd.${op.name}(${call.join(', ')})`);
  return lines.join('\n');
}

const chosenBin = () => view.bins.find(({ p, q }) => p === state.bin[0] && q === state.bin[1]);

function update() {
  try {
    view = compute();
    state.bin = state.bin.map((index, axis) => Math.min(index, [view.P, view.Q][axis] - 1));
    const chosen = chosenBin();
    drawCells(chosen);
    drawBins(chosen);
    drawOutput(chosen);
    find('about').textContent = describe(chosen);
    find('python').querySelector('pre').textContent = python();
    find('error').hidden = true;
    find('body').classList.remove('explorer-broken');
  } catch (error) {
    find('error').textContent = error.message;
    find('error').hidden = false;
    find('body').classList.add('explorer-broken');
    for (const name of ['weights', 'bins', 'samples']) find(name).replaceChildren();
    drawCells({ channel: 0, weights: [] });
    find('output').replaceChildren();
    find('about').textContent = '';
    view = null;
  }
  drawBox();
  fillNumbers();
  keepInAddress();
}

// A function that calls `draw` once before the browser paints again, however often it is called.
function scheduler(draw) {
  let waiting = false;
  return () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  };
}
const schedule = scheduler(update);

// ---- The form -----------------------------------------------------------------------------------

function numberInput(label, attributes, change) {
  const input = element('input', { type: 'number', 'aria-label': label, ...attributes });
  input.addEventListener('input', () => {
    change(input.value === '' ? null : input.valueAsNumber);
    schedule();
  });
  return input;
}

function selectInput(choices, chosen, change) {
  const select = element('select', {}, ...choices.map((choice) => element('option', {}, choice)));
  select.value = chosen;
  select.addEventListener('change', () => { change(select.value); schedule(); });
  return select;
}

// The inputs of a parameter, by its declared kind.
function inputsOf({ name, kind, default: text, choices }) {
  const value = currentValues()[name], set = (given) => { state.values[name] = given; };
  if (kind === 'choice') return [selectInput(Object.keys(choices), value, set)];
  if (kind === 'boolean') {
    const input = element('input', { type: 'checkbox' });
    input.checked = value;
    input.addEventListener('change', () => { set(input.checked); schedule(); });
    return [input];
  }
  if (kind === 'size') {
    const least = { min: 1, max: MOST, step: 1, placeholder: text === null ? '' : 'auto' };
    const inputs = ['height', 'width'].map((side) => numberInput(`${name}, ${side}`, least, () => {
      const sizes = inputs.map((one) => one.value === '' ? NaN : one.valueAsNumber);
      set(text !== null && sizes.every(Number.isNaN) ? null : sizes);
    }));
    inputs.forEach((input, axis) => { input.value = value ? value[axis] : ''; });
    return [inputs[0], '×', inputs[1]];
  }
  if (kind === 'positive') {
    const input = element('input', { type: 'text', inputmode: 'decimal', size: 5 });
    input.value = state.values[name];
    input.addEventListener('input', () => { rescale(input.value); schedule(); });
    return [input];
  }
  const whole = kind !== 'number';
  const input = numberInput(name, { step: whole ? 1 : 0.05, ...(whole && { max: SAMPLES }) },
    (given) => set(given === null ? undefined : given));
  input.value = value;
  return [input];
}

// Keeps the box at its place on the map. `scale` is the one before what is being typed.
function rescale(text) {
  const wanted = scaleOf(text);
  state.values.spatial_scale = text;
  if (!(wanted > 0 && Number.isFinite(wanted))) return;
  state.rois = state.rois.map((value, index) =>
    index < 4 ? tidy(value * state.scale / wanted) : value);
  state.scale = wanted;
}

function row(name, label, inputs) {
  const hint = HINTS[label] ? [element('small', {}, HINTS[label])] : [];
  const several = inputs.filter((input) => input.tagName === 'INPUT').length > 1;
  const words = element('span', {}, element('code', {}, label), ...hint);
  const made = element(several ? 'div' : 'label', { class: 'explorer-row', 'data-name': name });
  made.append(words, element('span', { class: 'explorer-inputs' }, ...inputs));
  return made;
}

// Made again for another operator.
function fillForm() {
  find('numbers').replaceChildren(...coordinates().map((name, index) => {
    const input = numberInput(name, { step: 'any', 'data-index': index }, (given) => {
      state.rois[index] = given === null ? NaN : given;
    });
    return element('label', {}, element('code', {}, name), input);
  }));
  const rows = operator().params.filter(({ name }) => !HIDDEN.includes(name))
    .map((param) => row(param.name, param.name, inputsOf(param)));
  const slider = (name, label, attributes, change) => {
    const input = element('input', { type: 'range', step: 0.1, ...attributes });
    input.addEventListener('input', () => change(input.valueAsNumber));
    rows.push(row(name, label, [element('output'), input]));
  };
  for (const axis of offsetInput() ? [0, 1] : []) {
    slider(`offset${axis}`, `offset ${'xy'[axis]} of bin`,
      { min: -3, max: 3, 'data-axis': axis }, (value) => {
        const offset = [...chosenOffset()];
        offset[axis] = value;
        setOffset(offset);
      });
  }
  if (takes('mask')) {
    slider('mask', 'mask of bin', { min: 0, max: 2, 'data-mask': '' }, (value) => {
      state.factors[state.bin] = value;
      schedule();
    });
  }
  find('arguments').replaceChildren(...rows);
  find('operator').value = state.operator;
  find('pattern').value = state.pattern;
  find('numbering').value = state.numbering;
  find('colouring').value = state.colouring;
}

function chosenOffset() {
  return view ? offsetOf(view.values, ...state.bin) : [0, 0];
}

function setOffset(offset) {
  if (!view) return;
  const part = partOf(view.values, ...state.bin);
  state.offsets[part] = offset.map((value) => Number(value.toFixed(2)));
  schedule();
}

// Shows a number that the mouse has changed; not in an input that is being typed into.
function fill(input, value) {
  if (input !== document.activeElement && Number.isFinite(value)) input.value = value;
}

function fillNumbers() {
  for (const input of find('numbers').querySelectorAll('input')) {
    fill(input, state.rois[input.dataset.index]);
  }
  for (const input of find('arguments').querySelectorAll('[data-axis]')) {
    input.value = chosenOffset()[input.dataset.axis];
    input.previousSibling.value = input.value;
  }
  for (const input of find('arguments').querySelectorAll('[data-mask]')) {
    input.value = factorOf(...state.bin);
    input.previousSibling.value = input.value;
  }
}

// ---- Mouse, finger and keys ---------------------------------------------------------------------

// The place of an event on a drawing, and how much of the drawing is a pixel of the screen.
function placeOf(drawing, event) {
  const { left, top, width } = drawing.getBoundingClientRect();
  const { x, y, width: size } = drawing.viewBox.baseVal, pixel = size / width;
  return { x: (event.clientX - left) * pixel + x, y: (event.clientY - top) * pixel + y, pixel };
}

function inside(corners, x, y) {
  const sides = corners.map(([x1, y1], index) => {
    const [x2, y2] = corners[(index + 1) % corners.length];
    return (x2 - x1) * (y - y1) - (y2 - y1) * (x - x1);
  });
  return sides.length > 0 && (sides.every((side) => side >= 0) || sides.every((side) => side <= 0));
}

// The handle that a place takes hold of; a finger reaches further than a mouse.
function nearest(handles, { x, y, pixel }, touch) {
  return handles.map((handle) => ({ ...handle, far: Math.hypot(handle.x - x, handle.y - y) }))
    .filter(({ far }) => far <= (touch ? 22 : 11) * pixel).sort((a, b) => a.far - b.far)[0];
}

// What a place takes hold of: a handle, the box, or nothing.
function heldAt(place, touch) {
  const all = handles(), handle = nearest(all, place, touch);
  if (handle) return handle;
  const corners = all.filter(({ kind }) => kind === 'corner').map((corner) => [corner.x, corner.y]);
  return { kind: inside(corners, place.x, place.y) ? 'box' : 'new' };
}

const snapped = (value) => tidy(Math.round(value / STEP) * STEP);
// Pixels of the image, on multiples of STEP cells.
const snap = (cells) => tidy(snapped(cells) / scaleOf(state.values.spatial_scale));

// The box between two of its corners, in cells. The first one is given in pixels, to stay as it is.
function spanBox(fixed, x, y) {
  if (turns()) {
    const [dx, dy] = [snap(x) - fixed[0], snap(y) - fixed[1]], theta = state.rois[4];
    const [u, v] = turned(dx, dy, -theta);
    state.rois = [fixed[0] + dx / 2, fixed[1] + dy / 2, Math.abs(u), Math.abs(v), theta].map(tidy);
  } else {
    const [x1, x2] = [fixed[0], snap(x)].sort((a, b) => a - b);
    const [y1, y2] = [fixed[1], snap(y)].sort((a, b) => a - b);
    state.rois = [x1, y1, x2, y2];
  }
}

function moveBox(from, dx, dy) {
  const step = [snap(dx), snap(dy)];
  const moved = turns() ? 2 : 4;
  state.rois = from.map((value, index) => index < moved ? tidy(value + step[index % 2]) : value);
}

function chooseAt({ x, y }) {
  const hit = view && [...view.bins].reverse().find((bin) => inside(bin.corners, x, y));
  if (hit) state.bin = [hit.p, hit.q];
}

function watchMap() {
  const map = find('map');
  let drag = null;
  map.addEventListener('pointerdown', (event) => {
    if (event.button || drag) return;
    const start = placeOf(map, event), held = heldAt(start, event.pointerType !== 'mouse');
    drag = { start, held, rois: [...state.rois], offset: [...chosenOffset()], moved: false };
    if (held.kind === 'corner') {
      const { x, y, w, h, theta } = shapeOf(state.rois);
      const [dx, dy] = turned((0.5 - held.right) * w, (0.5 - held.low) * h, theta);
      drag.fixed = turns() ? [x + dx, y + dy] :
        [state.rois[held.right ? 0 : 2], state.rois[held.low ? 1 : 3]];
    }
    if (held.kind === 'new') drag.fixed = [snap(start.x), snap(start.y)];
    map.setPointerCapture(event.pointerId);
    map.focus();
    event.preventDefault();
  });
  map.addEventListener('pointermove', (event) => {
    const now = placeOf(map, event);
    showCell(now);
    if (!drag) {
      map.dataset.held = heldAt(now, false).kind;
      return;
    }
    const { start, held, rois } = drag, [dx, dy] = [now.x - start.x, now.y - start.y];
    drag.moved = drag.moved || Math.hypot(dx, dy) > 4 * now.pixel;
    if (!drag.moved) return;
    if (held.kind === 'box') moveBox(rois, dx, dy);
    else if (held.kind === 'turn') {
      const { x, y } = shapeOf(rois), scale = scaleOf(state.values.spatial_scale);
      const angle = Math.atan2(x * scale - now.x, y * scale - now.y) * 180 / Math.PI;
      state.rois[4] = Math.round(angle);
    } else if (held.kind === 'offset') {
      const strength = view ? strengthOf(view.values) : 0;
      if (strength) {
        setOffset([dx, dy].map((value, axis) =>
          drag.offset[axis] + value / view.grid.size[axis] / strength));
      }
    } else spanBox(drag.fixed, now.x, now.y);
    schedule();
  });
  const end = (event) => {
    if (drag && !drag.moved && event.type === 'pointerup') chooseAt(placeOf(map, event));
    drag = null;
    schedule();
  };
  map.addEventListener('pointerup', end);
  map.addEventListener('pointercancel', end);
  map.addEventListener('keydown', (event) => {
    const arrow = ARROWS[event.key];
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (arrow && event.shiftKey) {
      const step = arrow.map((value) => snap(value * STEP));
      state.rois = state.rois.map((value, index) =>
        index === 2 || index === 3 ? tidy(value + step[index - 2]) : value);
    } else if (arrow) {
      moveBox(state.rois, ...arrow.map((value) => value * STEP));
    } else if (turns() && event.key in TURNS) {
      state.rois[4] += TURNS[event.key];
    } else return;
    event.preventDefault();
    schedule();
  });
}

function showCell({ x, y }) {
  const [column, line] = [Math.floor(x), Math.floor(y)];
  const there = view && column >= 0 && column < WIDTH && line >= 0 && line < HEIGHT;
  let text = '\u00a0';
  if (there) {
    const cell = line * WIDTH + column, bin = chosenBin();
    text = `Column ${column}, row ${line}: value ${mapOf(bin.channel)[cell]}, ` +
      `weight ${short(bin.weights[cell])}`;
  }
  find('cell').textContent = text;
}

function watchOutput() {
  const output = find('output');
  output.addEventListener('click', (event) => {
    const cell = event.target.closest('[data-bin]');
    if (cell) state.bin = cell.dataset.bin.split(',').map(Number);
    schedule();
  });
  output.addEventListener('keydown', (event) => {
    const arrow = ARROWS[event.key];
    if (!arrow || !view) return;
    event.preventDefault();
    state.bin = state.bin.map((index, axis) =>  // rows first
      Math.min(Math.max(index + arrow[1 - axis], 0), [view.P, view.Q][axis] - 1));
    schedule();
  });
}

// ---- The address --------------------------------------------------------------------------------

// #op=ROIAlign&box=2,1,11,10&... describes all of the state, so that a view can be passed on.
let address = '', timer = 0;
function keepInAddress() {
  const words = [['op', state.operator], ['box', state.rois]];
  for (const { name } of operator().params) {
    const value = state.values[name];
    if (!HIDDEN.includes(name) && value !== undefined && value !== null) words.push([name, value]);
  }
  if (offsetInput()) {
    for (const [part, offset] of Object.entries(state.offsets)) {
      words.push([offsetInput(), [part, ...offset]]);
    }
  }
  if (takes('mask')) {
    for (const [bin, factor] of Object.entries(state.factors)) words.push(['mask', [bin, factor]]);
  }
  words.push(['bin', state.bin]);
  for (const name of ['pattern', 'numbering', 'colouring']) words.push([name, state[name]]);
  words.push(...Object.entries(explorer.words));
  address = `#${words.map(([name, value]) => `${name}=${encodeURIComponent(value)}`).join('&')}`
    .replace(/%2C/g, ',').replace(/%2F/g, '/');
  clearTimeout(timer);
  // Browsers allow some three changes a second.
  timer = setTimeout(() => history.replaceState(null, '', address), 400);
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  if (!kernels.operators.has(words.get('op'))) return;
  Object.assign(state, initial(), { operator: words.get('op') });
  const numbers = (text) => text.split(',').map(Number);
  const box = numbers(words.get('box') || '');
  const length = operator().coordinates;
  if (box.length === length && box.every(Number.isFinite)) state.rois = box;
  else if (state.rois.length !== length) state.rois = convertBox(state.rois);
  for (const { name, kind, choices } of operator().params) {
    const text = words.get(name);
    if (text === null || HIDDEN.includes(name)) continue;
    if (kind === 'choice') state.values[name] = text in choices ? text : undefined;
    else if (kind === 'boolean') state.values[name] = text === 'true';
    else if (kind === 'positive') state.values[name] = text;
    else state.values[name] = kind === 'size' ? [...numbers(text), NaN].slice(0, 2) : Number(text);
  }
  state.scale = scaleOf(state.values.spatial_scale) > 0 ? scaleOf(state.values.spatial_scale) : 1;
  for (const text of words.getAll(offsetInput())) {
    const [y, x, ...offset] = numbers(text);
    if (offset.length === 2 && offset.every(Number.isFinite)) state.offsets[[y, x]] = offset;
  }
  for (const text of words.getAll('mask')) {
    const [y, x, factor] = numbers(text);
    if (Number.isFinite(factor)) state.factors[[y, x]] = factor;
  }
  const bin = numbers(words.get('bin') || '');
  if (bin.length === 2 && bin.every((index) => index >= 0)) state.bin = bin.map(Math.floor);
  if (words.get('pattern') in PATTERNS) state.pattern = words.get('pattern');
  for (const name of ['numbering', 'colouring']) {
    const known = [...find(name).options].map((option) => option.value);
    if (known.includes(words.get(name))) state[name] = words.get(name);
  }
}

// ---- The start ----------------------------------------------------------------------------------

function start(loaded) {
  kernels = loaded;
  const options = (names) => [...names].map((name) => element('option', {}, name));
  find('operator').append(...options(kernels.operators.keys()));
  find('pattern').append(...options(Object.keys(PATTERNS)));
  find('operator').addEventListener('change', () => {
    state.operator = find('operator').value;
    if (state.rois.length !== operator().coordinates) state.rois = convertBox(state.rois);
    fillForm();
    schedule();
  });
  for (const name of ['pattern', 'numbering', 'colouring']) {
    find(name).addEventListener('change', () => { state[name] = find(name).value; schedule(); });
  }
  find('form').addEventListener('submit', (event) => event.preventDefault());
  addEventListener('hashchange', () => {
    if (location.hash === address) return;
    readAddress();
    fillForm();
    update();
  });
  watchMap();
  watchOutput();
  readAddress();
  find('wait').hidden = true;
  find('body').parentElement.removeAttribute('aria-busy');
  find('body').hidden = false;
  fillForm();
  update();
}

// For the other parts of the page. Each adds its words to the address.
window.explorer = {
  kernels: gluonRoi().then((module) => new Kernels(module)),
  words: {}, keepInAddress, element, turned, inside, tidy, short, points,
  ARROWS, TURNS, STEP, handleShapes, scheduler, fill, placeOf, nearest, snapped,
};
explorer.kernels.then(start).catch((error) => {
  find('wait').setAttribute('role', 'alert');
  find('body').parentElement.removeAttribute('aria-busy');
  find('wait').textContent = 'The kernels do not run in this browser. They need WebAssembly with ' +
    `SIMD and exceptions, as in Chrome 95, Firefox 100 or Safari 16.4. (${error.message || error})`;
});
})();
