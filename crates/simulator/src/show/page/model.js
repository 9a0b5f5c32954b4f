'use strict';
// What was recorded, in a form in which the visible part is found quickly.
//
// A row holds spans by their beginnings, and beside each the latest end up to there. That never falls, so
// the first span that reaches into a stretch of time is found by halving, though spans may overlap.

const RUN = 0, CORE = 1, WAIT = 2, DISK = 3, NETWORK = 4, HOLD = 5;
// A wait for the work of a worker: shown in another way than a wait for a lock.
const HELPED = 6;
const COLUMNS = 6;
const LOCK_ROWS_MAX = 6;

class Row {
  constructor(panel, label, kind, spans, lanes, isLock) {
    const { from, to } = panel;
    this.label = label;
    this.kind = kind;
    this.lanes = lanes;
    this.isLock = isLock;
    this.spans = Int32Array.from(spans).sort((a, b) => from[a] - from[b] || a - b);
    this.reached = new Float64Array(this.spans.length);
    let reached = -Infinity;
    this.spans.forEach((span, at) => {
      reached = Math.max(reached, to[span]);
      this.reached[at] = reached;
    });
  }

  get height() {
    return this.isLock ? 12 : 20;
  }

  // The place of the first span that may reach beyond this time.
  first(time) {
    let low = 0, high = this.reached.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reached[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Calls for each span of which something lies in between.
  within(panel, from, to, call) {
    for (let at = this.first(from); at < this.spans.length; at++) {
      const span = this.spans[at];
      if (panel.from[span] >= to) return;
      if (panel.to[span] > from) call(span);
    }
  }
}

class Panel {
  constructor(data, number) {
    this.number = number;
    this.title = data.title;
    this.zero = data.zero;
    this.names = data.names;
    this.count = data.spans.length / COLUMNS;
    for (const column of ['lane', 'what', 'of', 'behind']) this[column] = new Int32Array(this.count);
    for (const column of ['from', 'to']) this[column] = new Float64Array(this.count);
    for (let span = 0, at = 0; span < this.count; span++, at += COLUMNS) {
      this.lane[span] = data.spans[at];
      this.what[span] = data.spans[at + 1];
      this.of[span] = data.spans[at + 2];
      this.behind[span] = data.spans[at + 3];
      this.from[span] = data.spans[at + 4];
      this.to[span] = data.spans[at + 4] + data.spans[at + 5];
    }
    this.fillLanes(data.lanes);
    this.fillLocks();
    this.fillLooks();
    this.waits = this.all((span) => this.what[span] === WAIT).sort((a, b) => this.from[a] - this.from[b]);
    this.end = this.to.reduce((latest, to) => Math.max(latest, to), 0);
    this.begin = this.from.reduce((first, from) => Math.min(first, from), this.end);
  }

  all(wanted) {
    const spans = [];
    for (let span = 0; span < this.count; span++) if (wanted(span)) spans.push(span);
    return spans;
  }

  fillLanes(lanes) {
    this.lanes = new Map();
    for (const [name, kind, group] of lanes) {
      this.lanes.set(name, { name, kind, group, spans: [], from: Infinity, to: -Infinity });
    }
    for (let span = 0; span < this.count; span++) {
      const lane = this.lanes.get(this.lane[span]);
      lane.spans.push(span);
      lane.from = Math.min(lane.from, this.from[span]);
      lane.to = Math.max(lane.to, this.to[span]);
    }
    for (const lane of this.lanes.values()) {
      lane.row = new Row(this, this.names[lane.name], lane.kind, lane.spans, [lane], false);
    }
  }

  fillLocks() {
    const holds = new Map();
    for (const span of this.all((span) => this.what[span] === HOLD)) {
      if (!holds.has(this.of[span])) holds.set(this.of[span], []);
      holds.get(this.of[span]).push(span);
    }
    this.locks = new Map();
    for (const [lock, spans] of holds) {
      this.locks.set(lock, new Row(this, this.names[lock], 'work', spans, [], true));
    }
  }

  fillLooks() {
    this.look = Uint8Array.from(this.what);
    this.kinds = new Map(Array.from(this.lanes.values(), (lane) => [lane.name, lane.kind]));
    for (let span = 0; span < this.count; span++) {
      if (this.what[span] !== WAIT || this.locks.has(this.of[span])) continue;
      if (this.kinds.get(this.behind[span]) === 'work') this.look[span] = HELPED;
    }
  }

  kind(span) {
    return this.kinds.get(this.lane[span]);
  }

  // The rows to show. Packed, a row holds one after another of a class, as many rows as were there at once.
  lay(isPacked) {
    this.rows = [];
    const groups = new Map();
    for (const lane of this.lanes.values()) {
      // A lane that only has locks is seen there.
      if (lane.spans.every((span) => this.what[span] === HOLD)) continue;
      if (!groups.has(lane.group)) groups.set(lane.group, []);
      groups.get(lane.group).push(lane);
    }
    if (isPacked) {
      for (const [group, lanes] of groups) this.layPacked(this.names[group], lanes);
    } else {
      const lanes = Array.from(groups.values()).flat();
      this.rows = lanes.sort((a, b) => a.from - b.from).map((lane) => lane.row);
    }
    for (const lock of this.locks.values()) this.layLock(lock);
    this.tops = [0];
    for (const row of this.rows) this.tops.push(this.tops[this.tops.length - 1] + row.height);
    this.rowOfSpan = new Map();
    this.height = this.tops[this.tops.length - 1];
  }

  // Lanes that share a lock are shown side by side.
  layLock(lock) {
    const layers = share(Array.from(lock.spans), (span) => this.from[span], (span) => this.to[span], LOCK_ROWS_MAX);
    layers.forEach((spans, at) => {
      this.rows.push(new Row(this, at === 0 ? lock.label : '', 'work', spans, [], true));
    });
  }

  layPacked(label, lanes) {
    const layers = share(lanes, (lane) => lane.from, (lane) => lane.to, Infinity);
    layers.forEach((lanes, at) => {
      const spans = lanes.flatMap((lane) => lane.spans);
      this.rows.push(new Row(this, at === 0 ? label : '', lanes[0].kind, spans, lanes, false));
    });
  }

  // The row in which a span is shown: a lock's for what is held, else its lane's.
  rowOf(span) {
    if (this.rowOfSpan.size === 0) {
      this.rows.forEach((row, at) => row.spans.forEach((span) => {
        if (row.isLock || !this.rowOfSpan.has(span)) this.rowOfSpan.set(span, at);
      }));
    }
    return this.rowOfSpan.get(span);
  }

  // The lanes that had a lock in between, and for how long of it, the longest first.
  holders(span) {
    const lock = this.locks.get(this.of[span]);
    const shares = new Map();
    if (this.what[span] !== WAIT || !lock) return [];
    const [from, to] = [this.from[span], this.to[span]];
    lock.within(this, from, to, (hold) => {
      if (this.lane[hold] === this.lane[span]) return;
      const time = Math.min(this.to[hold], to) - Math.max(this.from[hold], from);
      const known = shares.get(this.lane[hold]) ?? { lane: this.lane[hold], time: 0, spans: [] };
      known.time += time;
      known.spans.push(hold);
      shares.set(this.lane[hold], known);
    });
    return Array.from(shares.values()).sort((a, b) => b.time - a.time);
  }

  // What the blocking lane does when the wait begins.
  front(span) {
    const lane = this.lanes.get(this.behind[span]);
    if (!lane) return undefined;
    let found;
    lane.row.within(this, this.from[span], this.to[span], (other) => {
      if (found === undefined && this.what[other] !== HOLD) found = other;
    });
    return found;
  }
}

// Puts things into as few layers as there are at once, at most so many.
function share(things, from, to, max) {
  const layers = [], ends = [];
  for (const thing of things.sort((a, b) => from(a) - from(b))) {
    let layer = ends.findIndex((end) => end <= from(thing));
    if (layer < 0) layer = Math.min(layers.length, max - 1);
    if (!layers[layer]) layers[layer] = [];
    layers[layer].push(thing);
    ends[layer] = Math.max(ends[layer] ?? 0, to(thing));
  }
  return layers;
}
