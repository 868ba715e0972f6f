// SPDX-License-Identifier: Apache-2.0
// The second part of the explorer: two rotated boxes, and their overlap as BoxIoU computes it.
//
// The numbers come from the kernel. Only the polygon that is drawn is computed here.
'use strict';
(() => {
const FIELDS = ['x', 'y', 'width', 'height', 'angle'];
const NAMES = ['lhs', 'rhs'];
const { element, turned, inside, tidy, short, points, ARROWS, TURNS, STEP, handleShapes, scheduler,
  fill, placeOf, nearest, snapped } = explorer;
const initial = () => ({ lhs: [6, 5.5, 8, 4, 20], rhs: [9.5, 6.5, 7, 3.5, -40] });
const boxes = initial();
const find = (name) => document.getElementById(`overlap-${name}`);
let kernels = null;

// ---- Geometry -----------------------------------------------------------------------------------

// A place of a box: u and v are fractions of its sides, from its centre on.
function placeOn([x, y, width, height, angle], u, v) {
  const [dx, dy] = turned(u * width, v * height, angle);
  return [x + dx, y + dy];
}

const CORNERS = [[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]];
const cornersOf = (box) => CORNERS.map(([u, v]) => placeOn(box, u, v));

// The corners of the intersection: rhs clipped by the sides of lhs, in coordinates of lhs.
function intersection() {
  const { lhs, rhs } = boxes;
  if (!(Math.min(lhs[2], lhs[3], rhs[2], rhs[3]) > 0)) return [];
  let polygon = cornersOf(rhs).map(([x, y]) => turned(x - lhs[0], y - lhs[1], -lhs[4]));
  for (const axis of [0, 1]) {
    for (const sign of [-1, 1]) {
      const beyond = (place) => sign * place[axis] - lhs[2 + axis] / 2;
      polygon = polygon.flatMap((end, index) => {
        const begin = polygon.at(index - 1), [from, to] = [beyond(begin), beyond(end)];
        const share = from / (from - to);
        const crossing = begin.map((value, i) => value + share * (end[i] - value));
        return [...((from > 0) !== (to > 0) ? [crossing] : []), ...(to > 0 ? [] : [end])];
      });
    }
  }
  return polygon.map(([x, y]) => {
    const [dx, dy] = turned(x, y, lhs[4]);
    return [lhs[0] + dx, lhs[1] + dy];
  });
}

// ---- The computation ----------------------------------------------------------------------------

function measure(mode, one, other) {
  const inputs = [one, other].map((values) => ({ shape: [1, 5], values }));
  return kernels.forward(kernels.all.get('BoxIoU'), { format: 'rotated', mode, aligned: true },
    inputs, [1])[0];
}

function compute() {
  for (const name of NAMES) {
    boxes[name].forEach((value, index) => {
      if (!Number.isFinite(value)) throw Error(`${FIELDS[index]} of ${name}: expected a number`);
    });
  }
  const { lhs, rhs } = boxes;
  return { iou: measure('iou', lhs, rhs), of_lhs: measure('iof', lhs, rhs),
    of_rhs: measure('iof', rhs, lhs) };
}

function describe({ iou, of_lhs }) {
  const [a, b] = NAMES.map((name) => boxes[name][2] * boxes[name][3]);
  if (!of_lhs) return 'The boxes do not intersect.';
  const common = short(of_lhs * a);
  return `The intersection covers ${common} square pixels: ` +
    `${common} / (${short(a)} + ${short(b)} − ${common}) = ${short(iou)}.`;
}

function python() {
  return ['import mxnet as mx, gluon_roi', '',
    ...NAMES.map((name) => `${name} = mx.nd.array([[${boxes[name].join(', ')}]])`),
    "gluon_roi.nd.BoxIoU(lhs, rhs, format='rotated')"].join('\n');
}

// ---- Drawing ------------------------------------------------------------------------------------

// Where a box can be taken.
function handlesOf(name) {
  const box = boxes[name], [x, y] = placeOn(box, 0, -0.5);
  const [dx, dy] = turned(0, box[3] < 0 ? 1.1 : -1.1, box[4]);
  return [{ kind: 'turn', name, x: x + dx, y: y + dy, from: { x, y } },
    ...CORNERS.map(([u, v]) => {
      const [x, y] = placeOn(box, u, v);
      return { kind: 'corner', name, u, v, x, y };
    })];
}

function drawBox(name) {
  const group = find(name), drawn = [];
  if (boxes[name].every(Number.isFinite)) {
    drawn.push(element('polygon', { points: points(cornersOf(boxes[name])) }),
      ...handlesOf(name).flatMap(handleShapes));
    const [left, middle] = placeOn(boxes[name], -0.5, 0), [dx, dy] = turned(-0.6, 0, boxes[name][4]);
    drawn.push(element('text', { x: left + dx, y: middle + dy }, name));
  }
  group.replaceChildren(...drawn);
}

function update() {
  let result = null, message = '';
  try {
    result = compute();
  } catch (error) {
    message = error.message;
  }
  find('error').textContent = message;
  find('error').hidden = result !== null;
  find('common').replaceChildren(...(result && result.iou ?
    [element('polygon', { points: points(intersection()) })] : []));
  for (const name of ['iou', 'of_lhs', 'of_rhs']) {
    const cell = find(name);
    cell.textContent = result ? short(result[name]) : '';
    cell.dataset.value = result ? result[name] : '';
  }
  find('about').textContent = result ? describe(result) : '';
  find('python').querySelector('pre').textContent = result ? python() : '';
  NAMES.forEach(drawBox);
  for (const input of find('numbers').querySelectorAll('input')) {
    fill(input, boxes[input.dataset.name][input.dataset.index]);
  }
  for (const name of NAMES) explorer.words[name] = boxes[name];
  explorer.keepInAddress();
}

const schedule = scheduler(update);

// ---- Form, mouse, finger and keys ---------------------------------------------------------------

function fillForm() {
  for (const name of NAMES) {
    const inputs = FIELDS.map((field, index) => {
      const input = element('input', { type: 'number', step: 'any',
        'aria-label': `${field} of ${name}`, 'data-name': name, 'data-index': index });
      input.addEventListener('input', () => {
        boxes[name][index] = input.value === '' ? NaN : input.valueAsNumber;
        schedule();
      });
      return element('label', {}, element('code', {}, field), input);
    });
    find('numbers').append(element('fieldset', {}, element('legend', {}, name),
      element('div', { class: 'explorer-numbers' }, ...inputs)));
  }
}

// The handle or the box at a place; rhs lies above lhs.
function heldAt(place, touch) {
  const handle = nearest(NAMES.flatMap(handlesOf), place, touch);
  if (handle) return handle;
  const name = ['rhs', 'lhs'].find((one) => inside(cornersOf(boxes[one]), place.x, place.y));
  return name ? { kind: 'box', name } : null;
}

function drag({ kind, name, u, v }, from, start, now) {
  const [x, y, , , angle] = from;
  if (kind === 'box') {
    boxes[name] = [tidy(x + snapped(now.x - start.x)), tidy(y + snapped(now.y - start.y)),
      ...from.slice(2)];
  } else if (kind === 'turn') {
    boxes[name][4] = Math.round(Math.atan2(x - now.x, y - now.y) * 180 / Math.PI);
  } else {
    const [fixed_x, fixed_y] = placeOn(from, -u, -v);
    const [dx, dy] = [now.x - fixed_x, now.y - fixed_y];
    const sides = turned(dx, dy, -angle).map((side) => Math.max(snapped(Math.abs(side)), STEP));
    boxes[name] = [fixed_x + dx / 2, fixed_y + dy / 2, ...sides, angle].map(tidy);
  }
}

function watchMap() {
  const map = find('map');
  let dragged = null;
  map.addEventListener('pointerdown', (event) => {
    const start = placeOf(map, event), held = heldAt(start, event.pointerType !== 'mouse');
    if (event.button || dragged || !held) return;
    dragged = { start, held, from: [...boxes[held.name]] };
    map.setPointerCapture(event.pointerId);
    find(held.name).focus();
    event.preventDefault();
  });
  map.addEventListener('pointermove', (event) => {
    const now = placeOf(map, event);
    if (!dragged) {
      map.dataset.held = (heldAt(now, false) || { kind: '' }).kind;
      return;
    }
    drag(dragged.held, dragged.from, dragged.start, now);
    schedule();
  });
  for (const end of ['pointerup', 'pointercancel']) {
    map.addEventListener(end, () => { dragged = null; });
  }
  map.addEventListener('keydown', (event) => {
    const group = event.target.closest('[data-box]'), arrow = ARROWS[event.key];
    if (!group || event.ctrlKey || event.altKey || event.metaKey) return;
    const box = boxes[group.dataset.box];
    if (arrow) {
      const first = event.shiftKey ? 2 : 0;
      arrow.forEach((value, axis) => { box[first + axis] = tidy(box[first + axis] + STEP * value); });
    } else if (event.key in TURNS) {
      box[4] += TURNS[event.key];
    } else return;
    event.preventDefault();
    schedule();
  });
}

function readAddress() {
  const words = new URLSearchParams(location.hash.slice(1));
  Object.assign(boxes, initial());
  for (const name of NAMES) {
    const box = (words.get(name) || '').split(',').map(Number);
    if (box.length === 5 && box.every(Number.isFinite)) boxes[name] = box;
  }
}

function start(loaded) {
  kernels = loaded;
  fillForm();
  watchMap();
  addEventListener('hashchange', () => { readAddress(); update(); });
  readAddress();
  find('body').hidden = false;
  update();
}

explorer.kernels.then(start, () => {});  // explorer.js says what is wrong
})();
