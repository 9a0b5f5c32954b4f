'use strict';
// The recorded data, in a form in which its visible part is found quickly.
//
// A row holds its spans in the order of their starts. Next to each span it stores the latest end of
// all spans so far. This end never decreases. So the first span that reaches into a stretch of time
// is found by binary search, although spans may overlap.

const RUN = 0, CORE = 1, WAIT = 2, DISK = 3, NETWORK = 4, HOLD = 5;
// The look of a wait for a worker. It differs from the look of a wait for a lock.
const HELPED = 6;
const COLUMNS = 6;
const LOCK_ROWS_MAX = 6;
// Maximum number of spans in a chain of causes. Longer chains are cut off.
const CHAIN_MAX = 9;
// A cause must overlap at least this part of the time during which all spans of the chain overlap.
const LEAST_PART = 0.1;

class Row {
  constructor(panel, label, kind, spans, lanes, isLock) {
    const { from, to } = panel;
    // The name of the row. Only the first row of a group shows it.
    this.name = this.label = label;
    this.kind = kind;
    this.lanes = lanes;
    this.isLock = isLock;
    // The number of the lock, if this is the row of a lock.
    this.lock = isLock ? panel.of[spans[0]] : undefined;
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

  // Returns the index of the first span that ends after this time. If no span does, returns the
  // number of spans.
  first(time) {
    let low = 0, high = this.reached.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.reached[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Returns whether a part of a span is between the two times.
  has(panel, from, to) {
    const at = this.first(from);
    return at < this.spans.length && panel.from[this.spans[at]] < to;
  }

  // Returns the wanted span that overlaps this stretch longest. If several are equal, returns the
  // first.
  longest(panel, from, to, wanted) {
    let longest, most = 0;
    this.within(panel, from, to, (span) => {
      const overlap = panel.overlap(span, from, to);
      if (overlap > most && wanted(span)) [longest, most] = [span, overlap];
    });
    return longest;
  }

  // Calls `call` for each span that has a part between the two times.
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
    this.about = data.about;
    this.colours = data.colours;
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
    this.requestWaits = this.waits.filter((span) => this.kind(span) !== 'work' && this.behind[span] >= 0)
      .sort((a, b) => this.length(b) - this.length(a) || this.from[a] - this.from[b]);
    this.end = this.to.reduce((latest, to) => Math.max(latest, to), 0);
    this.begin = this.from.reduce((first, from) => Math.min(first, from), this.end);
  }

  length(span) {
    return this.to[span] - this.from[span];
  }

  overlap(span, from, to) {
    return Math.max(0, Math.min(this.to[span], to) - Math.max(this.from[span], from));
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
      // No hold of this resource was recorded. The span then counts as a wait for a worker, unless
      // the blocker is a request: a request can only have held a lock.
      if (this.behind[span] < 0 || this.kinds.get(this.behind[span]) === 'work') this.look[span] = HELPED;
    }
  }

  kind(span) {
    return this.kinds.get(this.lane[span]);
  }

  // Makes the rows: first the lanes of a chain of causes, then requests and workers, then locks. If
  // the rows are packed, a row shows lanes of one class that do not overlap. A class then has as
  // many rows as the largest number of its lanes at one time.
  lay(isPacked, chain) {
    const top = new Set(chain.map((span) => this.lanes.get(this.lane[span])));
    this.allRows = Array.from(top, (lane) => lane.row);
    const groups = new Map();
    for (const lane of this.lanes.values()) {
      // A lane that has only holds gets no row: the rows of the locks show its holds.
      if (top.has(lane) || lane.spans.every((span) => this.what[span] === HOLD)) continue;
      if (!groups.has(lane.group)) groups.set(lane.group, []);
      groups.get(lane.group).push(lane);
    }
    if (isPacked) {
      for (const [group, lanes] of groups) this.layPacked(this.names[group], lanes);
    } else {
      const lanes = Array.from(groups.values()).flat();
      this.allRows.push(...lanes.sort((a, b) => a.from - b.from).map((lane) => lane.row));
    }
    for (const lock of this.locks.values()) this.layLock(lock);
  }

  // Selects the rows that have a part of a span between the two times.
  showRows(from, to) {
    this.rows = this.allRows.filter((row) => row.has(this, from, to));
    this.tops = [0];
    let last;
    for (const row of this.rows) {
      this.tops.push(this.tops[this.tops.length - 1] + row.height);
      row.label = row.name === last?.name && row.isLock === last.isLock ? '' : row.name;
      last = row;
    }
    this.rowOfLane = undefined;
    this.height = this.tops[this.tops.length - 1];
  }

  // Adds rows for the holds of a lock. Holds at the same time are in different rows, one below the
  // other. There are at most six rows, so holds in the last one may overlap.
  layLock(lock) {
    const layers = share(Array.from(lock.spans), (span) => this.from[span], (span) => this.to[span], LOCK_ROWS_MAX);
    for (const spans of layers) this.allRows.push(new Row(this, lock.name, 'work', spans, [], true));
  }

  layPacked(name, lanes) {
    for (const layer of share(lanes, (lane) => lane.from, (lane) => lane.to, Infinity)) {
      const spans = layer.flatMap((lane) => lane.spans);
      this.allRows.push(new Row(this, name, layer[0].kind, spans, layer, false));
    }
  }

  // Returns the index of the row that shows a span, or -1 if no row does. For a hold, this is a row
  // of the lock; for any other span, it is the row of the span's lane.
  rowOf(span) {
    if (this.what[span] === HOLD) {
      return this.rows.findIndex((row) => row.lock === this.of[span] && row.spans.includes(span));
    }
    return this.rowOfLaneOf(span);
  }

  // Returns the index of the row of the span's lane, or -1 if the lane is not shown.
  rowOfLaneOf(span) {
    if (!this.rowOfLane) {
      this.rowOfLane = new Map();
      this.rows.forEach((row, at) => row.lanes.forEach((lane) => this.rowOfLane.set(lane.name, at)));
    }
    return this.rowOfLane.get(this.lane[span]) ?? -1;
  }

  // Returns the other lanes that held the lock during a wait for it, and for how long. The longest
  // is first.
  holders(span, from = this.from[span], to = this.to[span]) {
    const lock = this.locks.get(this.of[span]);
    const shares = new Map();
    if (this.what[span] !== WAIT || !lock) return [];
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

  // Returns the wait, its cause, the cause of this cause, and so on. The rules are the same as in
  // wait_chain.rs, which finds the chains for the sentences of tables and pictures.
  chain(wait) {
    const chain = [wait];
    let [from, to] = [this.from[wait], this.to[wait]];
    for (let last = wait; chain.length < CHAIN_MAX;) {
      last = this.cause(last, chain, from, to);
      if (last === undefined || this.overlap(last, from, to) < LEAST_PART * (to - from)) break;
      chain.push(last);
      [from, to] = [Math.max(from, this.from[last]), Math.min(to, this.to[last])];
    }
    return chain;
  }

  // Returns the span that caused a wait or a hold to last between the two times. The result is
  // undefined if the span is neither, or if no cause was recorded. `chain` is the chain up to `span`.
  cause(span, chain, from, to) {
    if (this.what[span] === WAIT) return this.causeOfWait(span, chain, from, to);
    if (this.what[span] !== HOLD) return undefined;
    const busy = this.longestOf(this.lane[span], from, to, () => true);
    const isMost = busy !== undefined && this.overlap(busy, from, to) * 2 > to - from;
    return isMost && this.what[busy] === WAIT ? busy : undefined;
  }

  // Returns the candidate that overlaps the time between `from` and `to` longest. The candidates
  // are a wait of the blocker, a hold of the lock by another lane, and, if the blocker does not
  // hold the lock, another activity of the blocker. A later wait of the blocker for the same lock is
  // no candidate, and no lane of the chain has one.
  causeOfWait(wait, chain, from, to) {
    const blocker = this.behind[wait];
    const isOther = (lane) => !chain.some((known) => this.lane[known] === lane);
    const isWait = (span) => this.what[span] === WAIT;
    const isCause = (span) =>
      isWait(span) && (this.of[span] !== this.of[wait] || this.from[span] <= this.from[wait]);
    const ofBlocker = (wanted) => (isOther(blocker) ? this.longestOf(blocker, from, to, wanted) : undefined);
    const hold = this.locks.get(this.of[wait])?.longest(this, from, to, (span) => isOther(this.lane[span]));
    const hasLock = this.holders(wait, from, to).some((holder) => holder.lane === blocker);
    const other = hasLock ? undefined : ofBlocker((span) => !isWait(span));
    let longest, most = 0;
    for (const candidate of [ofBlocker(isCause), hold, other]) {
      const overlap = candidate === undefined ? 0 : this.overlap(candidate, from, to);
      if (overlap > most) [longest, most] = [candidate, overlap];
    }
    return longest;
  }

  // Returns the wanted activity of a lane that takes the longest part of a stretch. A hold is not
  // an activity here.
  longestOf(lane, from, to, wanted) {
    const isDone = (span) => this.what[span] !== HOLD && wanted(span);
    return this.lanes.get(lane)?.row.longest(this, from, to, isDone);
  }
}

// Distributes things to layers so that the things of a layer do not overlap. There are as few
// layers as possible. If more than `max` layers were needed, the last one has overlaps.
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
