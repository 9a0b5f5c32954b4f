// Draws rows of spans, the axis of time, and the number of blocked tasks over time.

const LABELS = 150;
const BAR = 12;
const OVERVIEW_STEPS = 600;
const COLOURS = ['ground', 'line', 'text', 'quiet', 'read', 'write', 'write-mark', 'work', 'blocked',
  'blocked-mark', 'helped', 'helped-mark', 'core', 'core-mark', 'disk', 'disk-mark', 'hold', 'chosen', 'raised'];

let palette = {};

// Reads the colours that the style sheet has now, and makes the patterns. With the patterns, a
// reader need not rely on colours.
function readPalette() {
  const probe = document.createElement('i');
  document.body.append(probe);
  palette = {};
  for (const name of COLOURS) {
    probe.style.color = `var(--${name})`;
    palette[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  palette.patterns = [];
  palette.patterns[WAIT] = tile(8, palette.blocked, palette['blocked-mark'], (c) => {
    c.lineWidth = 2.6;
    for (const x of [-8, 0, 8]) { c.moveTo(x - 2, 10); c.lineTo(x + 10, -2); }
  });
  palette.patterns[HELPED] = tile(8, palette.helped, palette['helped-mark'], (c) => {
    c.lineWidth = 1.4;
    for (const x of [-8, 0, 8]) { c.moveTo(x - 2, -2); c.lineTo(x + 10, 10); }
  });
  palette.patterns[CORE] = tile(6, palette.core, palette['core-mark'], (c) => {
    c.lineWidth = 2;
    c.moveTo(1, 2); c.lineTo(3, 2); c.moveTo(4, 5); c.lineTo(6, 5);
  });
  palette.patterns[DISK] = tile(4, palette.disk, palette['disk-mark'], (c) => {
    c.lineWidth = 2;
    c.moveTo(0, 2); c.lineTo(4, 2);
  });
  palette.patterns[NETWORK] = tile(6, palette.disk, palette['disk-mark'], (c) => {
    c.lineWidth = 2;
    c.moveTo(3, 0); c.lineTo(3, 6);
  });
}

function tile(size, ground, mark, draw) {
  const canvas = document.createElement('canvas');
  const scale = window.devicePixelRatio || 1;
  canvas.width = canvas.height = Math.max(1, Math.round(size * scale));
  const context = canvas.getContext('2d');
  context.scale(canvas.width / size, canvas.width / size);
  context.fillStyle = ground;
  context.fillRect(0, 0, size, size);
  context.strokeStyle = mark;
  context.beginPath();
  draw(context);
  context.stroke();
  const pattern = context.createPattern(canvas, 'repeat');
  pattern.setTransform(new DOMMatrix().scale(size / canvas.width));
  return pattern;
}

// Sets the size of a canvas, given in points of the page (CSS pixels), and clears it. Returns its
// drawing context.
function sheet(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  const [wide, high] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext('2d');
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = '11.5px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return context;
}

function paintBar(context, what, kind, left, top, width, height) {
  const solid = { [WAIT]: 'blocked-mark', [HELPED]: 'helped-mark', [CORE]: 'core-mark', [DISK]: 'disk-mark', [NETWORK]: 'disk-mark' };
  if (what === RUN || what === HOLD) context.fillStyle = palette[kind];
  else context.fillStyle = width < 3 ? palette[solid[what]] : palette.patterns[what];
  const thin = what === DISK || what === NETWORK ? 3 : 0;
  context.fillRect(left, top + thin, width, height - 2 * thin);
  if (kind === 'write' && (what === RUN || what === HOLD) && width >= 3) {
    context.fillStyle = palette['write-mark'];
    context.fillRect(left, top + height / 2 - 1, width, 2);
  }
}

// Draws spans that are narrower than a point. Of all spans in a point, the longest is painted.
// Neighbouring points that look the same are painted together.
class Blur {
  constructor(painter, paint) {
    this.panel = painter.panel;
    this.paint = paint;
    this.held = this.alike = -1;
    this.at = this.from = 0;
  }

  add(span, left, party) {
    const at = Math.floor(left);
    if (this.held >= 0 && at === this.at) {
      if (this.took(span) > this.took(this.held)) this.held = span;
      return;
    }
    this.settle(party);
    this.held = span;
    this.at = at;
  }

  took(span) {
    return this.panel.to[span] - this.panel.from[span];
  }

  // Ends a point. If it looks like the points before it, it is added to them.
  settle(party) {
    const { panel, held, alike } = this;
    if (held < 0) return;
    const isMore = alike >= 0 && this.at === this.to && panel.look[held] === panel.look[alike]
      && panel.kind(held) === panel.kind(alike) && (!party || party.has(held) === party.has(alike));
    if (!isMore) {
      this.flush();
      this.alike = held;
      this.from = this.at;
    }
    this.to = this.at + 1;
    this.held = -1;
  }

  flush() {
    if (this.alike >= 0) this.paint(this.alike, this.from, this.to - this.from);
    this.alike = -1;
  }

  end() {
    this.settle();
    this.flush();
  }
}

class Painter {
  constructor(panel, view) {
    this.panel = panel;
    this.view = view;
    this.counts = this.blocked();
  }

  x(at) {
    return LABELS + ((at - this.view.from) / (this.view.to - this.view.from)) * this.view.width;
  }

  // `chosen` is the selection: `party` has the spans that belong to the selected span, and `chain`
  // has the selected span and its causes, in their order.
  paint(canvas, width, height, scrolled, chosen) {
    const { panel } = this;
    const party = chosen?.party;
    const context = sheet(canvas, width, height);
    let row = this.rowAt(scrolled);
    for (; row < panel.rows.length && panel.tops[row] < scrolled + height; row++) {
      const top = panel.tops[row] - scrolled;
      this.paintRow(context, panel.rows[row], top, width, party);
    }
    context.fillStyle = palette.line;
    context.fillRect(LABELS - 1, 0, 1, Math.min(height, panel.height - scrolled));
    if (chosen) this.paintChosen(context, chosen, scrolled, height);
  }

  rowAt(y) {
    const { tops, rows } = this.panel;
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle + 1] <= y) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  paintRow(context, row, top, width, party) {
    context.save();
    context.beginPath();
    context.rect(LABELS, top, width - LABELS, row.height);
    context.clip();
    const place = row.isLock ? { top: top + 1, height: 10 } : { top: top + 3, height: BAR };
    const blur = new Blur(this, (span, left, width) => this.paintSpan(context, row, span, left, width, place, party));
    const { panel, view } = this;
    const points = view.width / (view.to - view.from);
    row.within(panel, view.from, view.to, (span) => {
      const left = LABELS + (Math.max(panel.from[span], view.from) - view.from) * points;
      const width = (Math.min(panel.to[span], view.to) - panel.from[span]) * points;
      if (width < 1) return blur.add(span, left, party);
      blur.end();
      const right = LABELS + (Math.min(panel.to[span], view.to) - view.from) * points;
      this.paintSpan(context, row, span, left, right - left, place, party);
    });
    blur.end();
    if (row.lanes.length > 1) this.paintNames(context, row, place);
    context.restore();
    this.paintLabel(context, row, top);
  }

  paintSpan(context, row, span, left, width, place, party) {
    const { panel } = this;
    const isAside = party && !party.has(span);
    context.globalAlpha = isAside ? 0.28 : 1;
    if (panel.what[span] === HOLD && !row.isLock) {
      context.fillStyle = palette.hold;
      context.fillRect(left, place.top + place.height + 1, width, 2);
    } else {
      paintBar(context, panel.look[span], panel.kind(span), left, place.top, width, place.height);
    }
    context.globalAlpha = 1;
  }

  // If several lanes share a row, each is named in it where there is enough space.
  paintNames(context, row, place) {
    context.textAlign = 'left';
    const { view } = this;
    const perPoint = (view.to - view.from) / view.width;
    row.lanes.forEach((lane, at) => {
      const next = row.lanes[at + 1]?.from ?? Infinity;
      // Most lanes have too little space. They are skipped before their name is measured.
      if (lane.to < view.from || lane.from > view.to || next - lane.from < 22 * perPoint) return;
      const name = this.panel.names[lane.name].match(/#\d+$/)?.[0] ?? this.panel.names[lane.name];
      const width = context.measureText(name).width + 6;
      const begin = Math.max(this.x(lane.from), LABELS);
      const end = Math.min(this.x(lane.to), LABELS + view.width);
      // The name is in the lane's bars, or after them if they are too short.
      const left = (end - begin > width ? begin : end) + 3;
      if (left + width > Math.min(this.x(next), LABELS + view.width)) return;
      const middle = place.top + place.height / 2 + 0.5;
      context.fillStyle = palette.ground;
      context.globalAlpha = 0.82;
      context.fillRect(left - 2, middle - 5, width - 2, 10);
      context.globalAlpha = 1;
      context.fillStyle = palette.text;
      context.fillText(name, left, middle);
    });
  }

  paintLabel(context, row, top) {
    if (row.label === '') return;
    context.save();
    context.beginPath();
    context.rect(0, top, LABELS - 6, 20);
    context.clip();
    context.textAlign = 'left';
    context.fillStyle = row.isLock ? palette.quiet : palette.text;
    const x = row.isLock ? 18 : 4;
    const middle = top + (row.isLock ? 6.5 : 9.5);
    if (row.isLock) paintLock(context, 6, middle);
    context.fillText(row.label, x, middle);
    context.restore();
  }

  // Draws outlines, and an arrow from each span of the chain to its cause in another row.
  paintChosen(context, { party, chain }, scrolled, height) {
    const { panel } = this;
    context.strokeStyle = palette.chosen;
    context.lineWidth = 2;
    for (const span of party) this.outline(context, span, panel.rowOf(span), scrolled, height);
    const spots = chain.map((span) => this.outline(context, span, panel.rowOfLaneOf(span), scrolled, height));
    for (let at = 0; at + 1 < spots.length; at++) {
      const [wait, cause] = [spots[at], spots[at + 1]];
      if (!wait || !cause || wait.row === cause.row) continue;
      const x = Math.min(Math.max(wait.left, cause.left) + 8, Math.min(wait.right, cause.right));
      const isBelow = wait.row < cause.row;
      arrow(context, x, isBelow ? wait.bottom : wait.top, isBelow ? cause.top : cause.bottom);
    }
  }

  // Draws an outline and returns its position, if it is visible.
  outline(context, span, row, scrolled, height) {
    const { panel } = this;
    if (row < 0) return undefined;
    const { isLock } = panel.rows[row];
    const isHeld = panel.what[span] === HOLD;
    const offset = isLock ? 1 : isHeld ? BAR + 3 : 3;
    const tall = isLock ? 10 : isHeld ? 4 : BAR;
    const top = panel.tops[row] - scrolled + offset;
    const left = Math.max(this.x(panel.from[span]), LABELS);
    const right = Math.min(this.x(panel.to[span]), LABELS + this.view.width);
    if (right < LABELS || left > right || top + tall < 0 || top > height) return undefined;
    context.strokeRect(left, top, Math.max(right - left, 2), tall);
    return { row, left, right, top, bottom: top + tall };
  }

  // Returns the number of tasks that wait for a lock, in each step of the whole time.
  blocked() {
    const { panel, view } = this;
    const step = (view.last - view.first) / OVERVIEW_STEPS || 1;
    const change = new Float64Array(OVERVIEW_STEPS + 2);
    for (const span of panel.waits.filter((span) => panel.look[span] === WAIT)) {
      const first = Math.floor((panel.from[span] - view.first) / step);
      change[Math.min(first, OVERVIEW_STEPS)]++;
      change[Math.min(Math.floor((panel.to[span] - view.first) / step), OVERVIEW_STEPS) + 1]--;
    }
    let now = 0;
    return Array.from(change.subarray(0, OVERVIEW_STEPS), (more) => (now += more));
  }
}

function paintLock(context, x, y) {
  context.strokeStyle = context.fillStyle;
  context.lineWidth = 1.4;
  context.fillRect(x - 3, y - 1, 8, 5.5);
  context.beginPath();
  context.arc(x + 1, y - 1, 2.6, Math.PI, 0);
  context.stroke();
}

function arrow(context, x, from, to) {
  const tip = to + (from < to ? -6 : 6);
  const back = from < to ? -5 : 5;
  context.fillStyle = context.strokeStyle;
  context.beginPath();
  context.moveTo(x, from);
  context.lineTo(x, tip);
  context.stroke();
  context.beginPath();
  context.moveTo(x, tip - back);
  context.lineTo(x - 4, tip + back / 2);
  context.lineTo(x + 4, tip + back / 2);
  context.fill();
}

// Returns round numbers along the axis, and the step between them.
function ticks(from, to, count) {
  const rough = (to - from) / count;
  const ten = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((by) => by * ten).find((step) => step >= rough);
  const all = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) all.push(at);
  return { all, step };
}

function paintAxis(canvas, view, zero) {
  const context = sheet(canvas, view.whole, 24);
  const { all, step } = ticks(view.from + zero, view.to + zero, Math.max(2, view.width / 130));
  const [unit, name] = step >= 1e9 ? [1e9, 's'] : step >= 1e6 ? [1e6, 'ms'] : step >= 1e3 ? [1e3, 'µs'] : [1, 'ns'];
  const digits = Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9));
  context.textAlign = 'center';
  for (const at of all) {
    const x = LABELS + ((at - zero - view.from) / (view.to - view.from)) * view.width;
    context.fillStyle = palette.line;
    context.fillRect(x, 18, 1, 6);
    context.fillStyle = palette.quiet;
    if (x > LABELS + 20 && x < LABELS + view.width - 20) {
      context.fillText(`${(at / unit).toFixed(digits)} ${name}`, x, 10);
    }
  }
}

// Draws the number of blocked tasks over the whole time, in a strip for each panel, and marks the
// shown part.
function paintOverview(canvas, view, painters) {
  const context = sheet(canvas, view.whole, 44);
  const most = Math.max(1, ...painters.flatMap((painter) => painter.counts));
  const high = 40 / painters.length;
  painters.forEach(({ counts }, at) => {
    const foot = 2 + high * (at + 1);
    context.fillStyle = palette['blocked-mark'];
    counts.forEach((count, step) => {
      const tall = (count / most) * (high - 3);
      const wide = view.width / OVERVIEW_STEPS;
      context.fillRect(LABELS + step * wide, foot - tall, wide + 0.3, tall);
    });
    context.fillStyle = palette.line;
    context.fillRect(LABELS, foot, view.width, 1);
  });
  const x = (at) => LABELS + ((at - view.first) / (view.last - view.first)) * view.width;
  context.fillStyle = palette.quiet;
  context.textAlign = 'left';
  context.fillText(`blocked, at most ${most}`, 4, 24);
  context.globalAlpha = 0.12;
  context.fillStyle = palette.text;
  context.fillRect(x(view.from), 1, x(view.to) - x(view.from), 42);
  context.globalAlpha = 1;
  context.strokeStyle = palette.quiet;
  context.lineWidth = 1;
  context.strokeRect(x(view.from) + 0.5, 1.5, Math.max(2, x(view.to) - x(view.from) - 1), 41);
}
